"""Which operators have tensor expressions, and how they are asked for.

An operator's expression is a function of its attributes, its operands as tensors (None where one is
left out), the types of its results and a name. It gives one tensor per result, named after it and
computed from the operands, by way of further tensors where it needs some (all of them named after
it too, and none of them a result); or it says why it has none for these attributes. Tensors are
row-major: their extents are those of the types. Extents may be symbolic; the symbols of types and
attributes are then the scalars that the operands' extents mention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array, dtype_of
from graft.base.registry import Registry
from graft.ir.graph import Node
from graft.ir.types import TensorType
from graft.loop.index import UnknownExtentError
from graft.loop.ir import Buffer, Const
from graft.loop.tensor import Tensor
from graft.ops.expression.shapes import NumbersNeededError


@dataclass(frozen=True, slots=True)
class Unexpressed:
    """Why an operator has no tensor expression here."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Table(Tensor):
    """Numbers that an expression looks up: an input that whoever runs it has to pass."""

    array: Array = field(default_factory=lambda: np.zeros(0))


Inputs = Sequence[Tensor | None]
Types = Sequence[TensorType]
Results = tuple[Tensor, ...] | Unexpressed
Expression = Callable[[Any, Inputs, Types, str], Results]

EXPRESSIONS: Registry[Expression] = Registry("tensor expression")


def expresses(*names: str) -> Callable[[Expression], Expression]:
    """Register the decorated function as the expression of operators."""

    def register(function: Expression) -> Expression:
        for name in names:
            EXPRESSIONS.add(name, function)
        return function

    return register


def express(
    node: Node,
    inputs: Inputs,
    name: str,
    results: Types | None = None,
    attrs: Any = None,
) -> Results:
    """A node's results as tensors called `name`, or `name` with their number behind it.

    `results` and `attrs` are the types of the results and the attributes where they are seen under
    another shape or with other symbols.
    """
    if node.op.name not in EXPRESSIONS:
        return Unexpressed(f"{node.op.name} has no tensor expression")
    types = [value.type for value in (*node.args, *node.outputs)]
    if not all(isinstance(type_, TensorType) and _is_known(type_) for type_ in types):
        return Unexpressed(f"{node.op.name} on shapes that are not known")
    missing = [None] * (len(node.op.operands) - len(inputs))
    if results is None:
        results = [value.type for value in node.outputs if isinstance(value.type, TensorType)]
    expression = EXPRESSIONS.get(node.op.name)
    try:
        return expression(attrs or node.attrs, [*inputs, *missing], results, name)
    except (NumbersNeededError, UnknownExtentError) as error:
        return Unexpressed(f"{node.op.name}: {error}")


def _is_known(type_: TensorType) -> bool:
    return type_.shape is not None and not any(dim is UNKNOWN for dim in type_.shape)


def table(name: str, array: Array) -> Table:
    """The numbers as a tensor."""
    extents = tuple(Const(extent) for extent in array.shape)
    return Table(Buffer(name, dtype_of(array.dtype), extents), array=np.ascontiguousarray(array))
