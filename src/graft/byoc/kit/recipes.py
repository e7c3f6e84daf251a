"""Random calls of operators: the types of existing operands in, a complete call out.

A recipe gets the types of operands that exist (None for those that it may choose), and draws types
for the others and attributes. A call that the operator's type rule refuses is drawn again.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.registry import Registry
from graft.byoc.kit.draw import ODD_DTYPES, Draw
from graft.ir.attrs import Number
from graft.ir.op import Kind, Op
from graft.ir.types import TensorType

Fixed = Sequence[TensorType | None]


@dataclass(frozen=True)
class Call:
    """Operand types, in order (None: left out), and attributes; contents where they matter."""

    operands: tuple[TensorType | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    contents: dict[int, Array] = field(default_factory=dict)


Recipe = Callable[[Draw, Op, Fixed], Call]
RECIPES: Registry[Recipe] = Registry("recipe")
recipe = RECIPES.entry


def call_of(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """A call of the operator on existing operands, by a guess if it has no recipe."""
    draw_call = RECIPES.get(op.name) if op.name in RECIPES else _guess
    return draw_call(draw, op, fixed)


def given(fixed: Fixed, position: int = 0) -> TensorType | None:
    """The type of an operand that exists."""
    return fixed[position] if position < len(fixed) else None


def extents(type_: TensorType) -> tuple[int, ...]:
    """The shape, which is static in everything that the kit builds."""
    return tuple(int(str(dim)) for dim in type_.shape or ())


def first(draw: Draw, fixed: Fixed, rank: int | None = None) -> TensorType:
    """The first operand, drawn unless it exists."""
    return given(fixed) or TensorType(draw.dtype(), draw.shape(rank))


def _guess(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Operands of one type; of shapes that broadcast, where the operator does."""
    data = next((type_ for type_ in fixed if type_ is not None), None) or _fitting(draw, op)
    operands: list[TensorType | None] = list(fixed)
    if op.operands and op.operands[-1].variadic and not operands:
        operands = [None] * draw.between(1, 4)
    required = sum(not (operand.optional or operand.variadic) for operand in op.operands)
    operands += [None] * (required - len(operands))
    shapes = op.kind is Kind.BROADCAST
    return Call(
        tuple(
            type_ or (_broadcast(draw, data) if shapes and position else data)
            for position, type_ in enumerate(operands)
        ),
        {} if op.scalar is None else _attributes(draw, op),
    )


def _fitting(draw: Draw, op: Op) -> TensorType:
    """A type that the operator takes."""
    dtype = draw.dtype()
    if op.dtypes is not None and dtype not in op.dtypes:
        dtype = draw.among([one for one in ODD_DTYPES if one in op.dtypes])
    return TensorType(dtype, draw.shape())


# What attributes of pointwise operators are drawn from, by their type.
_ATTRIBUTES: dict[Any, Sequence[Any]] = {
    bool: (False, True),
    float: (0.01, 0.0, 1.0, 2.5, -0.5),
    Number | None: (None, -1, -0.25, 0, 0.5, 1, 6, 1e30),
}


def _attributes(draw: Draw, op: Op) -> dict[str, Any]:
    hints = typing.get_type_hints(op.attrs)
    return {
        name: draw.among(_ATTRIBUTES[hint]) for name, hint in hints.items() if hint in _ATTRIBUTES
    }


def _broadcast(draw: Draw, data: TensorType) -> TensorType:
    """A type that broadcasts with another: equal, ones instead, fewer axes or more."""
    shape = list(extents(data))
    kind = draw.between(0, 5)
    if kind == 1 and shape:
        axis = draw.between(0, len(shape) - 1)
        shape[axis] = 1
    elif kind == 2 and shape:
        shape = shape[draw.between(1, len(shape)) :]
    elif kind == 3:
        shape = [draw.extent(3), *shape]
    elif kind == 4:
        shape = [1 if draw.chance(0.5) else extent for extent in shape]
    return TensorType(data.dtype, tuple(shape))


@recipe("where")
def _where(draw: Draw, op: Op, fixed: Fixed) -> Call:
    condition, one, other = (given(fixed, position) for position in range(3))
    data = one or other or TensorType(draw.dtype(), draw.shape())
    condition = condition or TensorType(DType.BOOL, _broadcast(draw, data).shape)
    return Call((condition, one or data, other or _broadcast(draw, data)))


@recipe("nn.bias_add", "nn.prelu", "nn.batch_norm", "nn.instance_norm")
def _per_channel(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Vectors with a number per channel beside the data."""
    data = first(draw, fixed, draw.among((2, 3, 4, 4)))
    shape = extents(data)
    axis = 1
    if op.name == "nn.bias_add" and shape and draw.chance(0.3):
        axis = draw.between(-len(shape), len(shape) - 1)
    channels = shape[axis] if -len(shape) <= axis < len(shape) else 1
    vector = TensorType(data.dtype, (channels,))
    if op.name == "nn.prelu":
        return Call((data, draw.among((TensorType(data.dtype, (channels, 1, 1)), data, vector))))
    attrs: dict[str, Any] = {"axis": axis} if axis != 1 else {}
    count = len(op.operands)
    contents = {}
    if op.name == "nn.batch_norm":
        attrs["epsilon"] = draw.among((1e-5, 1e-3, 0.5))
        contents[4] = np.abs(draw.array(data.dtype, (channels,))) + data.dtype.numpy.type(0.5)
    return Call((data, *(vector for _ in range(count - 1))), attrs, contents)


@recipe("nn.layer_norm")
def _layer_norm(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, draw.among((2, 3, 3)))
    axis = draw.among((-1, -1, -1, len(data.shape or ()) - 1, -2))
    rest = TensorType(data.dtype, extents(data)[axis:])
    extra = draw.among(((rest, rest), (rest, rest), (rest,), ()))
    return Call((data, *extra), {"axis": axis, "epsilon": draw.among((1e-5, 1e-2))})


@recipe("nn.softmax", "nn.log_softmax", "nn.lrn")
def _along_axis(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = first(draw, fixed, 4 if op.name == "nn.lrn" else draw.between(1, 4))
    rank = len(data.shape or ())
    if op.name == "nn.lrn":
        attrs = {"size": draw.among((1, 3, 5)), "alpha": 0.1, "beta": draw.among((0.75, 0.5))}
        return Call((data,), attrs)
    return Call((data,), {"axis": draw.between(-rank, rank - 1) if rank else -1})


@recipe("nn.dense")
def _dense(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data, weight = given(fixed, 0), given(fixed, 1)
    if data is None and weight is not None:
        data = TensorType(weight.dtype, (*draw.shape(draw.between(0, 3)), extents(weight)[-1]))
    data = data or TensorType(draw.dtype(), draw.shape(draw.among((1, 2, 2, 3, 4))))
    return Call((data, weight or TensorType(data.dtype, (draw.extent(), extents(data)[-1]))))


@recipe("nn.batch_matmul")
def _batch_matmul(draw: Draw, op: Op, fixed: Fixed) -> Call:
    a = first(draw, fixed, draw.among((2, 3, 3, 4)))
    shape = extents(a)
    flip_a, flip_b = draw.chance(0.3), draw.chance(0.3)
    depth, columns = shape[-2 if flip_a else -1], draw.extent()
    batch = shape[:-2]
    if batch and draw.chance(0.3):
        batch = draw.among(((), (1,) * len(batch), batch[1:]))
    b = (*batch, columns, depth) if flip_b else (*batch, depth, columns)
    attrs = {"transpose_a": flip_a, "transpose_b": flip_b}
    return Call((a, given(fixed, 1) or TensorType(a.dtype, b)), attrs)
