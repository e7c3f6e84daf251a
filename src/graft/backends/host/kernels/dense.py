"""Dense layers on row-major tensors: rows times constant weights, with the epilogue in registers.

The weights are packed to [units / width, inputs, width], padded with zeros, so that a tile's
vectors of units are contiguous at each step. With few rows the layer is bound by memory and each
thread streams its share of the weights once.
"""

from __future__ import annotations

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.product import Product, Spot, default_schedule
from graft.backends.host.kernels.views import not_in_rows, unflattened
from graft.base.dtypes import Array, DType
from graft.llvm.target import Target
from graft.loop.ir import Const, Expr, Load, Ramp, Stmt
from graft.rewrite.rule import Refusal

_DTYPES = (DType.FLOAT32, DType.FLOAT64)


def dense(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """A dense layer with constant weights and whatever follows it."""
    anchor = group.anchor
    if anchor is None or anchor.op.name != "nn.dense":
        return Refusal("there is no dense layer")
    literal = group.constants.get(anchor.args[1])
    if literal is None or anchor.output.dtype not in _DTYPES:
        return Refusal("the weights are not constant, or not of float32 or float64")
    refused = not_in_rows(group, stores)
    if refused is not None:
        return refused
    inputs = literal.array.shape[1]
    found = epilogue_of(group, stores, anchor, {anchor.args[0]: inputs})
    return found if isinstance(found, Refusal) else _kernel(found, literal.array, target)


def _kernel(epilogue: Epilogue, weight: Array, target: Target) -> Kernel:
    anchor = epilogue.anchor
    units, inputs = weight.shape
    leading = epilogue.extents[:-1]
    rows = int(np.prod(leading))
    dtype = anchor.output.dtype
    schedule = default_schedule(target, dtype, rows, units)
    parameters = epilogue.parameters
    _, source = parameters.value(anchor.args[0], "data")
    packed = parameters.packed(pack_units(weight, schedule.width), "weights")

    def element(_batch: Expr, row: Expr, step: Expr) -> Expr:
        return Load(source, (*unflattened(row, leading), step))

    def weights(_batch: Expr, block: Expr, step: Expr, vector: int) -> Expr:
        lanes = Ramp(Const(vector * schedule.lanes), 1, schedule.lanes)
        return Load(packed, (block, step, lanes))

    def finish(spot: Spot, sums: Expr) -> Stmt:
        at = (*unflattened(spot.row, leading), spot.columns)
        return epilogue.store(at, sums, spot.condition)

    product = Product(1, rows, units, inputs, dtype, schedule, element, weights, finish)
    return parameters.kernel(product.body())


def pack_units(weight: Array, width: int) -> Array:
    """[units, inputs] as [units / width, inputs, width], with zeros for units that are not."""
    units, inputs = weight.shape
    blocks = -(-units // width)
    if units % width:
        whole = np.zeros((blocks * width, inputs), weight.dtype)
        whole[:units] = weight
        weight = whole
    return weight.reshape(blocks, width, inputs).transpose(0, 2, 1)
