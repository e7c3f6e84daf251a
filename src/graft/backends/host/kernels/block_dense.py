"""Dense layers by weights of 4 bits with scales for blocks of inputs, unpacked in registers.

Weights are packed to [units / width, inputs / 8, width] words, each of which holds eight inputs of
a unit. Sums of a block of inputs are of codes alone, as floats; its scales are applied to these
once, and its zero points times the sum of the data. So a vector of weights costs a shift and a
lookup, or a mask and a conversion, beside its products, and memory is read at 4 bits per weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np

from graft.backends.host.coordinates import plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template
from graft.backends.host.kernels.dense import pack_units
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.product import (
    MANY,
    WIDEST_PANEL,
    OutputVector,
    Product,
    ProductSchedule,
)
from graft.backends.host.kernels.tile import Tile
from graft.backends.host.kernels.views import total, unflattened
from graft.base.dims import Dim
from graft.base.dtypes import Array, DType, dtype_of
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    For,
    Let,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Panels that the threads should at least have to share.
_ENOUGH_PANELS = 16

BLOCKS = "mixed.block_dense"
PER_WORD = 8  # codes of 4 bits
_BITS, _MIDDLE = 4, 8  # of a code, and of its range


@kernel_template(
    (BLOCKS,),
    Layout.ROW_MAJOR,
    dtypes=frozenset({DType.FLOAT32}),
    constants=(1, 2),
    schedule=ProductSchedule,
)
def block_dense(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A dense layer by constant weights of 4 bits, and whatever follows it."""
    anchor = group.sole_anchor
    if any(value not in group.constants for value in anchor.args[1:]):
        return Refusal("the zero points are not constant")
    if anchor.attrs.block_size % PER_WORD:
        return Refusal(f"blocks of {anchor.attrs.block_size} inputs are no eights")
    units, inputs = group.constants[anchor.args[1]].array.shape
    epilogue = epilogue_of(group, stores, anchor, {anchor.args[0]: inputs})
    if isinstance(epilogue, Refusal):
        return epilogue
    return partial(_kernel, epilogue, units, inputs, target)


def _kernel(epilogue: Epilogue, units: int, inputs: int, target: Target) -> Kernel:
    schedule = default_schedule(target, total(epilogue.extents[:-1]), units)
    return _Writer(epilogue, schedule, units, inputs).kernel()


def default_schedule(target: Target, rows: Dim, units: int) -> ProductSchedule:
    """Tiles of which registers hold all sums twice, those of a block apart, beside a word per
    vector and four more; wide ones for few rows, as long as the threads have enough to share."""
    lanes, registers = target.lanes(DType.FLOAT32), target.vector_registers
    count = rows if isinstance(rows, int) else MANY

    def most_rows(vectors: int) -> int:
        return max(1, (registers - vectors - 4) // (2 * vectors))

    vectors = WIDEST_PANEL
    while vectors > 1 and (
        most_rows(vectors) < min(count, WIDEST_PANEL) or units < _ENOUGH_PANELS * lanes * vectors
    ):
        vectors //= 2
    return ProductSchedule(min(count, most_rows(vectors)), vectors, lanes)


class _Writer:
    """Writes one such layer."""

    def __init__(
        self, epilogue: Epilogue, schedule: ProductSchedule, units: int, inputs: int
    ) -> None:
        self.epilogue, self.schedule = epilogue, schedule
        self.units, self.inputs = units, inputs
        parameters, anchor = epilogue.parameters, epilogue.anchor
        self.block_size: int = anchor.attrs.block_size
        self.source = parameters.value(anchor.args[0], "data")[1]
        width = schedule.width
        self.codes = parameters.packed(anchor.args[1], lambda one: pack_codes(one, width), "codes")
        self.scales, *zeros = (
            parameters.packed(value, lambda one: np.ascontiguousarray(pack_units(one, width)), name)
            for value, name in zip(anchor.args[2:], ("scales", "zeros"), strict=False)
        )
        self.zeros: Buffer | None = zeros[0] if zeros else None

    def kernel(self) -> Kernel:
        one: Expr = Const(1)
        rows = reduce(times, self.epilogue.leading, one)
        shape = (Const(1), rows, Const(self.units), Const(self.inputs))
        parts = (*shape, DType.FLOAT32, self.schedule, self.element, self.words, self.finish)
        product = _BlockProduct(*parts, layer=self)
        return self.epilogue.parameters.kernel(product.body())

    def at(self, row: Expr, last: Expr) -> tuple[Expr, ...]:
        return (*unflattened(row, self.epilogue.leading), last)

    def element(self, _batch: Expr, row: Expr, step: Expr) -> Expr:
        return Load(self.source, self.at(row, step))

    def words(self, _batch: Expr, block: Expr, step: Expr, vector: int) -> Expr:
        """Eight codes of each unit of a vector; a step is of eight inputs here."""
        return Load(self.codes, (block, step, self.units_of(vector)))

    def units_of(self, vector: int) -> Ramp:
        return Ramp(Const(vector * self.schedule.lanes), 1, self.schedule.lanes)

    def code(self, word: Expr, number: int) -> Expr:
        """A code of each word, without a sign, as a float."""
        bits = Const(_BITS * number, DType.INT32, word.lanes)
        moved = Binary(BinaryKind.SHIFT_RIGHT, word, bits) if number else word
        return Call("nibble", (moved,), DType.FLOAT32)

    def zero(self, block: Expr, part: Expr, vector: int) -> Expr | None:
        """What codes without a sign are more than the numbers that they stand for, if they are."""
        is_signed = self.epilogue.anchor.args[1].dtype is DType.INT4
        middle = Const(_MIDDLE, DType.FLOAT32, self.schedule.lanes) if is_signed else None
        if self.zeros is None:
            return middle
        zeros = self.parameter(self.zeros, block, part, vector)
        return zeros if middle is None else Binary(BinaryKind.ADD, zeros, middle)

    def parameter(self, buffer: Buffer, block: Expr, part: Expr, vector: int) -> Expr:
        """The scales or zero points of a vector of units for a block of inputs, as floats."""
        loaded = Load(buffer, (block, part, self.units_of(vector)))
        return loaded if loaded.dtype is DType.FLOAT32 else Cast(DType.FLOAT32, loaded)

    def finish(self, output: OutputVector, sums: Expr) -> Stmt:
        return self.epilogue.store(self.at(output.row, output.columns), sums, output.condition)


@dataclass(frozen=True)
class _BlockProduct(Product):
    """The product, whose depth is gone through in blocks of inputs."""

    layer: _Writer = field(kw_only=True)

    def steps(self, tile: Tile, batch: Expr, block: Expr, row: Expr) -> Stmt:
        layer, tag = self.layer, f"_part{tile.tag}"
        lanes, pixels = tile.lanes, tile.pixels
        part, word = Var(f"part{tile.tag}"), Var(f"word{tile.tag}")
        sums, inputs = Tile(pixels, tile.vectors, lanes, tag), Tile(pixels, 1, lanes, f"_seen{tag}")
        words = layer.block_size // PER_WORD
        position = plus(times(part, words), word)
        eight = self.eight_inputs(sums, inputs, batch, block, row, position)
        inner = For(word, Const(0), Const(words), eight)
        parts = (sums.clear(), inputs.clear(), inner, self.scaled(tile, sums, inputs, block, part))
        body: Stmt = Allocate(inputs.accumulators, Allocate(sums.accumulators, Block(parts)))
        return For(part, Const(0), Const(layer.inputs // layer.block_size), body)

    def eight_inputs(
        self,
        sums: Tile,
        inputs: Tile,
        batch: Expr,
        block: Expr,
        row: Expr,
        position: Expr,
    ) -> Stmt:
        """The products of the inputs of a word."""
        words = [Var(f"codes{v}{sums.tag}", DType.INT32, sums.lanes) for v in range(sums.vectors)]
        statements: list[Stmt] = []
        for number in range(PER_WORD):
            step = plus(times(position, PER_WORD), number)
            weights = [
                Var(f"w{v}_{number}{sums.tag}", sums.dtype, sums.lanes) for v in range(sums.vectors)
            ]
            updates: list[Stmt] = []
            for pixel in range(sums.pixels):
                name = Var(f"x{pixel}_{number}{sums.tag}", sums.dtype, sums.lanes)
                products: list[Stmt] = [
                    Store(
                        sums.accumulators,
                        sums.at(pixel, v),
                        _fma(name, weights[v], sums.value(pixel, v)),
                    )
                    for v in range(sums.vectors)
                ]
                more = Binary(BinaryKind.ADD, inputs.value(pixel, 0), name)
                products.append(Store(inputs.accumulators, inputs.at(pixel, 0), more))
                spread = Broadcast(self.element(batch, plus(row, pixel), step), sums.lanes)
                updates.append(Let(name, spread, Block(tuple(products))))
            body: Stmt = Block(tuple(updates))
            for v, weight in enumerate(weights):
                body = Let(weight, self.layer.code(words[v], number), body)
            statements.append(body)
        whole: Stmt = Block(tuple(statements))
        for v, name in enumerate(words):
            whole = Let(name, self.weights(batch, block, position, v), whole)
        return whole

    def scaled(self, tile: Tile, sums: Tile, inputs: Tile, block: Expr, part: Expr) -> Stmt:
        """The sums of a block of inputs, less its zero points, times its scales, to the others."""
        layer = self.layer

        def add(pixel: int, vector: int) -> Stmt:
            value, zero = sums.value(pixel, vector), layer.zero(block, part, vector)
            if zero is not None:
                less = Binary(BinaryKind.MULTIPLY, zero, inputs.value(pixel, 0))
                value = Binary(BinaryKind.SUBTRACT, value, less)
            scales = layer.parameter(layer.scales, block, part, vector)
            more = _fma(value, scales, tile.value(pixel, vector))
            return Store(tile.accumulators, tile.at(pixel, vector), more)

        return tile.each(add)


def _fma(left: Expr, right: Expr, addend: Expr) -> Expr:
    return Call("fma", (left, right, addend), DType.FLOAT32)


def pack_codes(codes: Array, width: int) -> Array:
    """[units, inputs] of 4 bits as [units / width, inputs / 8, width] words, the first input in the
    lowest bits. Signed codes are stored as more than they are."""
    units, inputs = codes.shape
    more = _MIDDLE if dtype_of(codes.dtype) is DType.INT4 else 0
    eights = (codes.astype(np.int8) + more).view(np.uint8).reshape(units, -1, PER_WORD // 2, 2)
    octets = (eights[..., 0] | eights[..., 1] << _BITS).astype(np.uint8)
    words = np.ascontiguousarray(octets).view(np.int32).reshape(units, inputs // PER_WORD)
    return np.ascontiguousarray(pack_units(words, width))
