"""Depthwise convolution of bytes by weights of 8 bits, in int32, with its epilogue in registers.

As `depthwise.py`, but products are those of `dot4`. Where the processor has an instruction for it,
four neighbouring pixels of a channel become one word, by one permutation of a vector that holds the
whole block of channels for these pixels. Such a word serves all windows that lie within it: with
three taps two of them, each by weights at another place within the word. So a row of a kernel of 3
takes half a load, half a permutation and one product per vector of the result. Elsewhere each
product is of a single byte, exact and without saturation by products of 16-bit pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.coordinates import plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.conv_plan import INTEGER, words_across
from graft.backends.host.kernels.depthwise import (
    DepthwiseSchedule,
    DepthwiseWriter,
    pack_weights,
    unrolled_taps,
)
from graft.backends.host.kernels.depthwise import unfit as unfit_window
from graft.backends.host.kernels.image import no_image, unfit_epilogue, vector_lanes
from graft.backends.host.kernels.integer_weights import (
    QUAD,
    bias_behind,
    in_blocks,
    starts,
    taken_off,
    unsigned,
    zero_point_of,
)
from graft.backends.host.kernels.tile import Tile
from graft.backends.host.storage import Storage
from graft.base.dims import product
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
from graft.loop.ir import (
    Block,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class WordWindows:
    """How windows of a row share words of four pixels: `windows` neighbouring ones, `stride` pixels
    apart, lie within `words` words from the first one's first pixel on."""

    words: int
    windows: int
    stride: int

    @staticmethod
    def of(taps: int, stride: int) -> WordWindows:
        words = words_across(taps)
        return WordWindows(words, (QUAD * words - taps) // stride + 1, stride)


@kernel_template((INTEGER,), Layout.BLOCKED, constants=(1,), schedule=DepthwiseSchedule)
def depthwise_bytes(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution of each channel's bytes with a kernel of its own, with whatever follows it."""
    anchor = group.sole_anchor
    weight = group.constants[anchor.args[1]].array
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    reason = (
        no_image(result)
        or unfit_window(anchor, weight, data, result)
        or _unfit_types(group, anchor, weight, data)
        or unfit_epilogue(group, stores, anchor)
    )
    if reason:
        return Refusal(reason)
    lanes = vector_lanes(target, DType.INT32, result.block)
    is_quick = target.multiplies_bytes(lanes) and lanes == result.block
    dilation, taps = anchor.attrs.dilation[1], weight.shape[3]
    windows = None
    if is_quick and dilation == 1 and taps > 1:
        windows = WordWindows.of(taps, anchor.attrs.strides[1])
    schedule = default_schedule(target, lanes, taps, windows)
    return plan_of(
        group, stores, lambda p: ByteDepthwiseWriter(p, schedule, anchor, weight, windows).body()
    )


def default_schedule(
    target: Target, lanes: int, taps: int, windows: WordWindows | None
) -> DepthwiseSchedule:
    """Tiles that fill the registers beside the weights of a kernel row, two words of the data and
    what the permutation takes; whole groups of windows that share words."""
    beside = taps if windows is None else windows.words * windows.windows
    spare = max(target.vector_registers - beside - 3, target.vector_registers // 4)
    together = 1 if windows is None else windows.windows
    pixels = max(together, spare // together * together)
    return DepthwiseSchedule(lanes, pixels, unrolled_taps(taps))


def _unfit_types(group: Group, anchor: Node, weight: Array, data: Storage) -> str | None:
    """Why the kernel cannot compute with such numbers, if it cannot."""
    if weight.dtype != np.int8:
        return f"the weights are {weight.dtype}, not int8"
    zero_point = zero_point_of(group, anchor)
    if zero_point is None:
        return "the zero point is not constant"
    wrong = any(data.halo) and data.fill != zero_point
    return "the halo of the data is not of its zero point" if wrong else None


class ByteDepthwiseWriter(DepthwiseWriter):
    """Writes the loop nest of one depthwise convolution of bytes."""

    def __init__(
        self,
        parameters: Parameters,
        schedule: DepthwiseSchedule,
        anchor: Node,
        weight: Array,
        windows: WordWindows | None,
    ) -> None:
        self.windows = windows
        super().__init__(parameters, schedule, anchor, weight)
        if windows is not None:
            self.source = self.in_rows()

    def in_rows(self) -> Buffer:
        """The data with a row of pixels, all channels of a block each, as one axis."""
        *leading, width, block = self.data.extents
        row = product((width, block))
        storage = Storage(self.data.dtype, (*leading, row))  # type: ignore[arg-type]
        return self.parameters.viewed(self.anchor.args[0], "pixels", storage)

    def packed_weights(self, parameters: Parameters) -> Buffer:
        block, windows = self.result.block, self.windows

        def pack(array: Array) -> Array:
            if windows is not None:
                return pack_words(array, block, windows)
            return pack_weights(array.view(np.uint8).astype(np.int32), block)

        return parameters.packed(self.anchor.args[1], pack, self.weights_name)

    def beginning(self, parameters: Parameters) -> Buffer | None:
        block, less = self.result.block, taken_off(parameters.group, self.anchor, self.data.dtype)
        bias = bias_behind(parameters.group, self.anchor)
        if bias is not None:
            self.summed = bias.output

        def pack(array: Array, added: Array | None = None) -> Array:
            return in_blocks(starts(array, less, added), block)

        more = () if bias is None else (bias.args[1],)
        if not less and not more:
            return None
        return parameters.packed(self.anchor.args[1], pack, "begin", *more)

    def steps(self, tile: Tile, column: Expr, first: int, line: Var) -> Stmt:
        """One row of the kernel."""
        if self.windows is None:
            return super().steps(tile, column, first, line)
        return self.step_of_words(self.windows, tile, column, line)

    def element(self, at: tuple[Expr, ...]) -> Expr:
        """A byte per lane, as an unsigned one in the lowest bits."""
        loaded = Cast(DType.INT32, Load(self.source, at))
        return unsigned(loaded, self.data.dtype)

    def accumulate(self, tile: Tile, pixel: int, element: Expr, weight: Expr) -> Stmt:
        total = Call("dot4", (element, weight, tile.value(pixel, 0)), tile.dtype)
        return Store(tile.accumulators, tile.at(pixel, 0), total)

    def step_of_words(self, windows: WordWindows, tile: Tile, column: Expr, line: Var) -> Stmt:
        """Every word of pixels to all sums that it is part of."""
        attrs, lanes = self.anchor.attrs, self.lanes
        row = self.source_row(line)
        start = plus(times(column, windows.stride), self.data.halo[1] - attrs.padding[1])
        names = [
            [Var(f"w{i}{j}{tile.tag}", self.dtype, lanes) for j in range(windows.words)]
            for i in range(windows.windows)
        ]
        statements: list[Stmt] = []
        for pixel in range(0, tile.pixels, windows.windows):
            sharing = range(min(windows.windows, tile.pixels - pixel))
            for number in range(windows.words):
                word = Var(f"x{pixel}_{number}{tile.tag}", self.dtype, lanes)
                offset = pixel * windows.stride + QUAD * number
                begin = times(plus(start, offset), lanes)
                pixels = Load(self.source, (*row, Ramp(begin, 1, QUAD * lanes)))
                loaded = unsigned(Call("interleave4", (pixels,), DType.INT32), self.data.dtype)
                updates = (
                    self.accumulate(tile, pixel + i, word, names[i][number]) for i in sharing
                )
                statements.append(Let(word, loaded, Block(tuple(updates))))
        body: Stmt = Block(tuple(statements))
        along = Ramp(Const(0), 1, lanes)
        for i, shifted in enumerate(names):
            for number, name in enumerate(shifted):
                at = (self.block, line, Const(i), Const(number), along)
                body = Let(name, Load(self.weights, at), body)
        return body


def pack_words(weight: Array, block: int, windows: WordWindows) -> Array:
    """[channels, 1, rows, columns] of int8 as [channels / block, rows, windows, words, block] of
    words, in which the taps of each window lie where its pixels do."""
    channels, _, rows, taps = weight.shape
    spread = np.zeros(
        (-(-channels // block) * block, rows, windows.windows, QUAD * windows.words), np.int8
    )
    for window in range(windows.windows):
        first = window * windows.stride
        spread[:channels, :, window, first : first + taps] = weight[:, 0]
    split = spread.reshape(-1, block, rows, windows.windows, windows.words, QUAD)
    words = np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1, 5))
    return words.view(np.int32)[..., 0]
