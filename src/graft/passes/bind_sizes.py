"""Specialises a graph: binds symbols to sizes.

What was computed from the sizes becomes constant, which later passes fold. Nested graphs have
symbols of their own; those that are the same in every iteration are bound, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from graft.base.dims import AnyDim, substitute
from graft.base.errors import GraftError, UserError
from graft.ir.graph import Graph, Node, Value
from graft.ir.substitution import Substitution
from graft.ir.types import Type, dims_of
from graft.ir.verify import verify
from graft.ops.control import nested_bindings

Sizes = Mapping[str, AnyDim]


def bind_sizes(graph: Graph, sizes: Sizes) -> Graph:
    """Substitute numbers or other dims for symbols; raise an error for impossible sizes."""
    try:
        return verify(_Binder(sizes).graph(graph)) if sizes else graph
    except GraftError as error:
        names = ", ".join(f"{name}={size}" for name, size in sizes.items())
        message = f"the model cannot have {names}: {error.message}"
        raise UserError(message, error.location, error.hint) from error


class _Binder(Substitution):
    def nested(self, node: Node, inner: Graph) -> Graph:
        """Bind the symbols of a nested graph that follow from the sizes."""
        outside = nested_bindings(node, inner)
        numbers = {name: substitute(dim, self.dims) for name, dim in outside.items()}
        inner_sizes = {name: size for name, size in numbers.items() if isinstance(size, int)}
        return _Binder(inner_sizes).graph(inner) if inner_sizes else inner

    def type_of(self, value: Value) -> Type:
        """As the base class; negative extents are an error."""
        type_ = super().type_of(value)
        if any(isinstance(dim, int) and dim < 0 for dim in dims_of(type_)):
            raise UserError(f"%{value.name} would be {type_}")
        return type_
