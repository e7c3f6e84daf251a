"""Layers as programs: what is to be summed up in, instructions that load, compute and store out.

A result is cut into tiles of rows that the accumulators hold, by blocks of 16 channels. A tile
is the sum of one or more products; each product goes through as many blocks of input channels at a
time as half of each scratchpad holds, while the next ones are loaded into the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from graft.backends.fpga.isa import (
    ACC_WORDS,
    ACT_WORDS,
    PAR_WORDS,
    PARAMETER_WORDS,
    WGT_WORDS,
    Op,
    Program,
    Unit,
    cycles,
)
from graft.backends.fpga.runtime import LANES
from graft.base.errors import UnsupportedError

_HALF_ACT, _HALF_WGT = ACT_WORDS // 2, WGT_WORDS // 2
_SLOTS = PAR_WORDS // LANES  # of parameters
_TO_WGT, _TO_PAR = 1 << 14, 2 << 14

Pair = tuple[int, int]  # vertical, horizontal


@dataclass(frozen=True, slots=True)
class Tensor:
    """Images in memory, as [images, blocks, height, width, 16 channels]; addresses are of words."""

    address: int
    images: int
    channels: int
    height: int
    width: int
    signed: bool

    @property
    def blocks(self) -> int:
        return -(-self.channels // LANES)

    @property
    def words(self) -> int:
        return self.images * self.blocks * self.height * self.width

    def flat(self) -> Tensor:
        """With pixels in one column, which can be cut anywhere."""
        return replace(self, height=self.height * self.width, width=1)


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution of a tensor, times `scale`."""

    data: Tensor
    padding_value: int  # the zero point
    weights: tuple[int, ...]  # addresses of the tiles of each block of the result
    spans: tuple[tuple[int, int], ...]  # of it, the blocks of the tensor that it reads: first, count
    scale: int = 1
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)  # above, on the left

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == self.strides == (1, 1) and self.padding == (0, 0)

    def rows(self, first: int, count: int) -> tuple[int, int]:
        """The rows of the tensor that rows of the result need, at least one: from, to."""
        start = first * self.strides[0] - self.padding[0]
        reach = (count - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
        begin = min(max(start, 0), self.data.height - 1)
        return begin, max(begin + 1, min(start + reach, self.data.height))


@dataclass(frozen=True)
class Layer:
    """A sum of products, requantised: `form` is zero point, lowest and highest byte."""

    products: tuple[Product, ...]
    parameters: int  # address, 16 words for each block of the result
    result: Tensor
    form: tuple[int, int, int]

    @cached_property
    def flat(self) -> Layer:
        """With images as columns of pixels, where that is the same."""
        if not all(product.is_pointwise for product in self.products):
            return self
        products = tuple(replace(one, data=one.data.flat()) for one in self.products)
        return replace(self, products=products, result=self.result.flat())


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the compute unit, with what is loaded before and stored behind it."""

    layer: Layer
    product: Product
    image: int
    rows: tuple[int, int]  # of the result: first, count
    block: int  # of the result
    chunk: tuple[int, int]  # blocks of the tensor: first, count
    tiles: int  # address of its weights
    begins: bool
    ends: bool

    @property
    def activations(self) -> tuple[Tensor, int, tuple[int, int], tuple[int, int]]:
        """What has to be in the scratchpad."""
        return self.product.data, self.image, self.product.rows(*self.rows), self.chunk


def generate(layers: Sequence[Layer]) -> Program:
    """The program of some layers, one after the other."""
    emitter = _Emitter(Program())
    emitter.run([(step, index) for index, layer in enumerate(layers) for step in _best(layer)])
    return emitter.program


def _best(layer: Layer) -> list[Step]:
    """Steps of tiles as large as accumulators allow, or so small that all input channels are in
    the scratchpad at once: whatever takes fewer cycles."""
    layer = layer.flat
    widest = max(count for one in layer.products for _, count in one.spans)
    rows = {min(_most_rows(layer, blocks), layer.result.height) for blocks in (1, widest)} - {0}
    if not rows:
        raise UnsupportedError(_why_not(layer))
    plans = [list(_steps(layer, count)) for count in sorted(rows)]

    def price(steps: list[Step]) -> int:
        emitter = _Emitter(Program())
        emitter.run([(step, 0) for step in steps])
        return cycles(emitter.program.instructions)

    return plans[0] if len(plans) == 1 else min(plans, key=price)


def _most_rows(layer: Layer, blocks: int) -> int:
    """Rows of the result in a tile, such that accumulators and so many blocks of data fit."""
    most = ACC_WORDS // layer.result.width
    for one in layer.products:
        reach = (one.kernel[0] - 1) * one.dilation[0] + 1
        available = _HALF_ACT // (one.data.width * blocks)  # rows of the tensor
        tiles = one.kernel[0] * one.kernel[1] * LANES
        if available < min(reach, one.data.height) or tiles > _HALF_WGT:
            return 0
        if available < one.data.height:
            most = min(most, (available - reach) // one.strides[0] + 1)
    return most


def _why_not(layer: Layer) -> str:
    needs = [f"{layer.result.width} accumulators for a row of {ACC_WORDS}"]
    for one in layer.products:
        reach = (one.kernel[0] - 1) * one.dilation[0] + 1
        act = min(reach, one.data.height) * one.data.width
        tiles = one.kernel[0] * one.kernel[1] * LANES
        needs.append(f"{act} words of activations of {_HALF_ACT}")
        needs.append(f"{tiles} words of weights of {_HALF_WGT}")
    return f"its smallest tile does not fit on the chip: it needs {', '.join(dict.fromkeys(needs))}"


def _steps(layer: Layer, rows: int) -> Iterator[Step]:
    tiles = -(-layer.result.height // rows)
    rows = -(-layer.result.height // tiles)  # of one size
    for image in range(layer.result.images):
        for first in range(0, layer.result.height, rows):
            extent = (first, min(rows, layer.result.height - first))
            for block in range(layer.result.blocks):
                yield from _sum(layer, image, extent, block)


def _sum(layer: Layer, image: int, rows: tuple[int, int], block: int) -> Iterator[Step]:
    parts = []
    for product in layer.products:
        taps = product.kernel[0] * product.kernel[1]
        begin, end = product.rows(*rows)
        plane = (end - begin) * product.data.width
        most = min(_HALF_ACT // plane, _HALF_WGT // (taps * LANES))
        start, count = product.spans[block]
        for done in range(0, count, most):
            address = product.weights[block] + done * taps * LANES
            parts.append((product, (start + done, min(most, count - done)), address))
    for number, (product, chunk, address) in enumerate(parts):
        ends = number == len(parts) - 1
        yield Step(layer, product, image, rows, block, chunk, address, number == 0, ends)


class _Emitter:
    """Writes steps as instructions: while one computes, the next one's operands are loaded."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._inside: object = None  # what the half of the scratchpad in use holds
        self._act = self._wgt = self._bank = self._slot = 0  # where the last load went to
        self._parameters = 0  # slot of the step that computes

    def run(self, steps: Sequence[tuple[Step, int]]) -> None:
        """Steps, each with the number of its layer: a layer reads what those before have stored."""
        program, layer = self.program, -1
        for index in range(-1, len(steps)):
            if index >= 0:
                self._compute(steps[index][0])
            following = steps[index + 1] if index + 1 < len(steps) else None
            is_new = following is not None and following[1] != layer
            if following is not None:
                self._load_constants(following[0])
                if not is_new:
                    self._load_activations(following[0])
            program.wait(Unit.LOAD | Unit.CONV)
            if index >= 0 and steps[index][0].ends:
                self._store(steps[index][0])
            if following is not None and is_new:
                layer = following[1]
                program.wait(Unit.STORE)
                self._load_activations(following[0])
                program.wait(Unit.LOAD)
        program.stop()

    def _load_constants(self, step: Step) -> None:
        """Weights of a step and, with its last product, the parameters of its result."""
        self._wgt ^= _HALF_WGT
        words = step.chunk[1] * step.product.kernel[0] * step.product.kernel[1] * LANES
        self._load(step.tiles, _TO_WGT | self._wgt, words)
        if step.ends:
            self._slot = (self._slot + 1) % _SLOTS
            source = step.layer.parameters + LANES * step.block
            self._load(source, _TO_PAR | LANES * self._slot, PARAMETER_WORDS)

    def _load_activations(self, step: Step) -> None:
        if step.activations == self._inside:
            return
        self._inside, self._act = step.activations, self._act ^ _HALF_ACT
        data, image, (begin, end), (first, count) = step.activations
        plane = data.height * data.width
        start = data.address + (image * data.blocks + first) * plane + begin * data.width
        words = (end - begin) * data.width
        self._load(start, self._act, words, count, plane, not data.signed)

    def _load(
        self, source: int, to: int, run: int, runs: int = 1, stride: int = 0, flip: bool = False
    ) -> None:
        registers = {"LOAD_FROM": source, "LOAD_TO": to, "LOAD_RUN": run, "LOAD_RUNS": runs}
        self.program.start(Op.LOAD, **registers, LOAD_STRIDE=stride, LOAD_FLIP=int(flip))

    def _compute(self, step: Step) -> None:
        product, (first, count) = step.product, step.rows
        begin, end = product.rows(first, count)
        width = product.data.width
        self._parameters = self._slot
        if step.begins:
            self._bank ^= ACC_WORDS
        origin = (first * product.strides[0] - product.padding[0] - begin, -product.padding[1])
        self.program.start(
            Op.CONV,
            ACT=(self._act + origin[0] * width + origin[1]) % ACT_WORDS,
            WGT=self._wgt,
            ACC=self._bank,
            IN_SIZE=(end - begin, width),
            OUT_SIZE=(count, step.layer.result.width),
            PIXELS=count * step.layer.result.width,
            KERNEL=product.kernel,
            BLOCKS=step.chunk[1],
            ORIGIN=origin,
            STRIDES=product.strides,
            DILATION=product.dilation,
            STRIDE_STEP=product.strides[0] * width,
            TAP_STEP=product.dilation[0] * width,
            PLANE=(end - begin) * width,
            SCALE=product.scale,
            MODE=(product.padding_value & 0xFF) << 8 | (not step.begins),
        )

    def _store(self, step: Step) -> None:
        result, (first, count) = step.layer.result, step.rows
        plane = result.height * result.width
        address = result.address + (step.image * result.blocks + step.block) * plane
        zero, lowest, highest = (code & 0xFF for code in step.layer.form)
        self.program.start(
            Op.STORE,
            STORE_FROM=self._bank,
            STORE_TO=address + first * result.width,
            STORE_COUNT=count * result.width,
            STORE_PAR=LANES * self._parameters,
            STORE_FORM=(not result.signed) << 24 | highest << 16 | lowest << 8 | zero,
        )
