"""Constant propagation while a graph is built or changed: constants, and small integer tensors.

Shapes, indices and sizes are followed from node to node with each operator's own NumPy meaning,
symbolically where a dim is symbolic: arrays of dims are NumPy object arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, IndexExpr, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.ir.attrs import symbols_in_attrs
from graft.ir.evaluate import run_op
from graft.ir.graph import Node, Value
from graft.ir.literal import Literal
from graft.ir.nested import has_graphs
from graft.ir.types import TensorType, Type

# Values with more elements are not followed.
KNOWN_LIMIT = 1024

_FAILURES = (GraftError, ArithmeticError, TypeError, ValueError, IndexError)


class Knowledge:
    """Values whose content is known."""

    def __init__(self) -> None:
        self._known: dict[Value, Array] = {}
        self._literals: dict[Value, Literal] = {}

    def known(self, value: Value | None) -> Array | None:
        """The value of a small tensor where it is known: integers, or an object array of dims."""
        return None if value is None else self._known.get(value)

    def concrete(self, value: Value | None) -> Array | None:
        """The value of a small tensor where it is known and has no symbols in it."""
        array = self.known(value)
        return None if array is None or symbols_of_array(array) else array

    def literal(self, value: Value | None) -> Literal | None:
        """The constant that a value is, whatever its size; None where it is not one."""
        return None if value is None else self._literals.get(value)

    def learn(self, value: Value, array: Array) -> None:
        """Record the content of a value, such as a captured one."""
        if array.size <= KNOWN_LIMIT:
            self._known[value] = array

    def move(self, old: Value, new: Value) -> None:
        """Record that `new` has replaced `old`."""
        if old in self._known:
            self._known[new] = self._known.pop(old)
        if old in self._literals:
            self._literals[new] = self._literals.pop(old)

    def follow(self, node: Node) -> None:
        """Record a node's results where they are small and known."""
        if node.op.name == "constant":
            self._literals[node.output] = node.attrs.value
        if not self._worth_following(node):
            return
        sizes = [v.type.size if isinstance(v.type, TensorType) else UNKNOWN for v in node.outputs]
        if any(not isinstance(size, int) or size > KNOWN_LIMIT for size in sizes):
            return
        results = known_results(node, [self.known(value) for value in node.inputs])
        self._known.update(zip(node.outputs, results, strict=False))

    def _worth_following(self, node: Node) -> bool:
        """A quick test that rules out the many nodes whose operands are data."""
        known = self._known
        if node.op.symbolic is None:
            return all(value is None or value in known for value in node.inputs)
        of_types = node.op.name == "shape_of" or not node.inputs
        return of_types or any(value in known for value in node.inputs)


def known_results(node: Node, known: Sequence[Array | None]) -> list[Array]:
    """What the node gives on known operands, symbolically where need be; empty if unsure."""
    op, attrs = node.op, node.attrs
    if not op.pure:
        return []
    results: Any = None
    try:
        if _may_evaluate(node, known):
            with np.errstate(all="ignore"):
                results = run_op(op, attrs, known)
        elif op.symbolic is not None:
            absent = op.absent(len(known))
            types = [v.type if v else None for v in node.inputs]
            results = op.symbolic(attrs, [*known, *absent], [*types, *absent])
        listed = results if isinstance(results, tuple) else (results,)
        if any(not isinstance(result, (np.ndarray, np.generic)) for result in listed):
            return []
        pairs = zip(listed, node.outputs, strict=False)
        return [_settled(np.asarray(result), value.type) for result, value in pairs]
    except _FAILURES:
        return []


def _may_evaluate(node: Node, known: Sequence[Array | None]) -> bool:
    """Whether the plain meaning applies: all operands concrete, no symbols, no nested graphs."""
    for value, array in zip(node.inputs, known, strict=True):
        if value is not None and (array is None or symbols_of_array(array)):
            return False
    return not symbols_in_attrs(node.attrs) and not has_graphs(node)


def _settled(array: Array, type_: Type) -> Array:
    """An array of dims without a symbol in it, as plain integers; strings stay what they are."""
    strings = isinstance(type_, TensorType) and type_.dtype is DType.STRING
    if array.dtype != object or strings or symbols_of_array(array):
        return array
    return array.astype(np.int64)


def symbols_of_array(array: Array) -> set[str]:
    """The symbols in an array of dims."""
    if array.dtype != object:
        return set()
    return {n for item in array.flat if isinstance(item, IndexExpr) for n in symbols_of(item)}
