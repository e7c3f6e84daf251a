"""Dense layers on row-major tensors: rows times constant weights, with the epilogue in registers.

The weights are packed to [units / width, inputs, width], padded with zeros, so that a tile's
vectors of units are contiguous at each step. With few rows the layer is bound by memory and each
thread streams its share of the weights once. With many, Strassen's algorithm may be chosen.
Narrow numbers are multiplied a word at a time, see `words.py` and `integer_weights.py`.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from graft.backends.host.coordinates import times
from graft.backends.host.group import Group, Strassen
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.integer_weights import (
    no_quads,
    starts,
    taken_off,
    unsigned,
)
from graft.backends.host.kernels.product import (
    OutputVector,
    Product,
    ProductSchedule,
    blocked_schedule,
    default_schedule,
)
from graft.backends.host.kernels.strassen import StrassenProduct, chunk_depth, pack_quarters
from graft.backends.host.kernels.strassen import default_schedule as strassen_schedule
from graft.backends.host.kernels.views import total, unflattened
from graft.backends.host.kernels.words import in_words, no_halves, per_word, widened
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array, DType
from graft.loop.ir import Binary, BinaryKind, Buffer, Const, Expr, Load, Ramp, Stmt
from graft.rewrite.rule import Refusal
from graft.target.target import Target

INTEGER, MIXED = "qnn.dense", "mixed.dense"


def choose_product(group: Group, target: Target) -> Strassen | Refusal:
    """Strassen's algorithm for a dense layer where it is possible and pays."""
    anchor = group.sole_anchor
    data, literal = anchor.args[0], group.constants.get(anchor.args[1])
    if literal is None or anchor.op.name != "nn.dense" or not data.tensor.is_static:
        return Refusal("the weights are not constant, or the rows not counted")
    units, inputs = literal.array.shape
    *items, rows, _ = (1, *static_shape(data))
    if len(items) < 2 or math.prod(items) != 1:
        # Strassen's sums mix rows, so that a NaN in one spoils another
        return Refusal("the rows may belong to several items of a batch")
    chunk = chunk_depth(target, data.dtype, rows, units, inputs)
    return Strassen(chunk) if chunk else Refusal("plain sums are cheaper")


@kernel_template(
    ("nn.dense", INTEGER, MIXED),
    Layout.ROW_MAJOR,
    dtypes=FLOATS | {DType.INT32},
    constants=(1,),
    schedule=ProductSchedule,
    algorithm=choose_product,
)
def dense(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A dense layer with constant weights and whatever follows it."""
    anchor = group.sole_anchor
    weight = group.constants[anchor.args[1]].array
    if anchor.op.name == INTEGER:
        reason = no_quads(group, anchor, weight.shape[1])
    elif anchor.op.name == MIXED:
        reason = no_halves(group, anchor, weight.shape[1])
    else:
        is_integer = anchor.output.dtype is DType.INT32
        reason = "the data is int32, not of float32, float64 or bytes" if is_integer else None
    if reason is not None:
        return Refusal(reason)
    epilogue = epilogue_of(group, stores, anchor, {anchor.args[0]: weight.shape[1]})
    return epilogue if isinstance(epilogue, Refusal) else partial(_kernel, epilogue, weight, target)


def _kernel(epilogue: Epilogue, weight: Array, target: Target) -> Kernel:
    units = weight.shape[0]
    rows = total(epilogue.extents[:-1])
    dtype = epilogue.anchor.output.dtype
    algorithm = epilogue.parameters.group.algorithm
    if isinstance(algorithm, Strassen) and isinstance(rows, int):
        schedule = strassen_schedule(target, dtype, rows)
        if units % (2 * schedule.width) == 0:
            return _Writer(epilogue, schedule).in_quarters(weight, rows, algorithm.chunk)
    if dtype is DType.INT32 or epilogue.anchor.op.name == MIXED:
        schedule = default_schedule(target, dtype, rows, units)
    else:
        schedule = blocked_schedule(target, dtype, rows, units, weight.shape[1])
    return _Writer(epilogue, schedule).plain(weight)


class _Writer:
    """Writes one dense layer: a plain product, or Strassen's."""

    def __init__(self, epilogue: Epilogue, schedule: ProductSchedule) -> None:
        self.epilogue, self.schedule = epilogue, schedule
        self.parameters = epilogue.parameters
        self.leading = epilogue.leading
        self.dtype = epilogue.anchor.output.dtype
        data = epilogue.anchor.args[0]
        is_narrow = epilogue.anchor.op.name in (INTEGER, MIXED)
        self.together = per_word(data.dtype) if is_narrow else 1  # inputs of an element
        read = self.parameters.words if self.together > 1 else self.parameters.value
        self.data, self.source = read(data, "data")
        self.begin: Buffer | None = None

    def plain(self, weight: Array) -> Kernel:
        units, inputs = weight.shape
        schedule = self.schedule
        width, together = schedule.width, self.together

        def pack(array: Array) -> Array:
            packed = pack_units(array, width)
            return in_words(packed, axis=1) if together > 1 else packed

        inputs //= together
        if self.dtype is DType.INT32:
            self.begin = self.beginning()
        packed = self.parameters.packed(self.epilogue.anchor.args[1], pack, "weights")

        def weights(_batch: Expr, block: Expr, step: Expr, vector: int) -> Expr:
            lanes = Ramp(Const(vector * schedule.lanes), 1, schedule.lanes)
            return widened(Load(packed, (block, step, lanes)))

        def element(_batch: Expr, row: Expr, step: Expr) -> Expr:
            return self.element(row, step)

        one: Expr = Const(1)
        rows = reduce(times, self.leading, one)
        shape = (Const(1), rows, Const(units), Const(inputs))
        parts = (*shape, self.dtype, schedule, element, weights, self.finish)
        product = Product(*parts, is_paired=self.data.dtype is DType.BFLOAT16)
        return self.parameters.kernel(product.body())

    def beginning(self) -> Buffer | None:
        """What the sums of units start from, with zeros up to a whole block."""
        anchor, width = self.epilogue.anchor, self.schedule.width
        less = taken_off(self.parameters.group, anchor, self.data.dtype)

        def pack(array: Array) -> Array:
            first = starts(array, less)
            return np.pad(first, (0, -len(first) % width))

        return self.parameters.packed(anchor.args[1], pack, "begin") if less else None

    def in_quarters(self, weight: Array, rows: int, chunk: int) -> Kernel:
        """By Strassen's algorithm."""
        units, inputs = weight.shape
        width = self.schedule.width
        packed = self.parameters.packed(
            self.epilogue.anchor.args[1], lambda one: pack_quarters(one, width, chunk), "weights"
        )
        product = StrassenProduct(
            *(rows, units, inputs, chunk),
            self.dtype,
            self.schedule,
            self.element,
            packed,
            lambda row, columns: (self.epilogue.target, self.at(row, columns)),
            self.finish,
        )
        return self.parameters.kernel(product.body())

    def at(self, row: Expr, last: Expr) -> tuple[Expr, ...]:
        return (*unflattened(row, self.leading), last)

    def element(self, row: Expr, step: Expr) -> Expr:
        return unsigned(widened(Load(self.source, self.at(row, step))), self.data.dtype)

    def finish(self, output: OutputVector, sums: Expr) -> Stmt:
        if self.begin is not None:
            sums = Binary(BinaryKind.ADD, sums, Load(self.begin, (output.columns,)))
        return self.epilogue.store(self.at(output.row, output.columns), sums, output.condition)


def pack_units(weight: Array, width: int) -> Array:
    """[units, inputs] as [units / width, inputs, width], with zeros for units that are not."""
    units, inputs = weight.shape
    blocks = -(-units // width)
    if units % width:
        whole = np.zeros((blocks * width, inputs), weight.dtype)
        whole[:units] = weight
        weight = whole
    return weight.reshape(blocks, width, inputs).transpose(0, 2, 1)
