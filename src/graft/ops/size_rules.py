"""Size functions: the type rule of an operator as a function of data.

Where shapes, axes or bounds are operands, a type rule gives the sizes of results once the numbers
are known. Compilers call such a rule between segments of native code. In a file it is the text of a
graph with one node, which `rule_from` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from graft.base.dtypes import Array, dtype_of
from graft.ir.attrs import Attrs, coerce_operand, symbols_in_attrs
from graft.ir.evaluate import function_of
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Op
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.types import TensorType
from graft.ops.creation import ArangeAttrs, arange_count

SIZES = "sizes"

Rule = Callable[[Sequence[Any], Mapping[str, int]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class SizesOp(Op):
    """An operator whose results have the sizes of those of `measured`, and no payload."""

    measured: Op | None = None


def sizes_op(op: Op) -> SizesOp:
    """The size function of an operator."""
    meaning = _counted if op.name == "arange" else _shapes_of(op)
    return SizesOp(SIZES, op.operands, op.infer, meaning, op.attrs, measured=op)


def rule_text(node: Node) -> str:
    """A size function's node as the text of a graph."""
    assert isinstance(node.op, SizesOp)
    op = node.op.measured
    assert op is not None
    inputs = dict.fromkeys(node.args)
    known = {value: Value(f"a{number}", value.type) for number, value in enumerate(inputs)}
    operands = tuple(None if value is None else known[value] for value in node.inputs)
    types = tuple(None if value is None else value.type for value in operands)
    results = op.result_types(node.attrs, (*types, *op.absent(len(types))))
    outputs = tuple(Value(f"r{number}", type_) for number, type_ in enumerate(results))
    named = Node(op, operands, node.attrs, outputs)
    return to_text(Graph(SIZES, tuple(known.values()), (named,), outputs)).text


def rule_from(text: str) -> Rule:
    """The rule that a text describes."""
    (node,) = from_text(text).nodes
    return rule_of(replace(node, op=sizes_op(node.op)))


def rule_of(node: Node) -> Rule:
    """The rule of a size function's node, which caches its last answer: most runs have the sizes of
    the run before, and a type rule takes longer than small kernels."""
    assert isinstance(node.op, SizesOp)
    op = node.op.measured
    assert op is not None
    rule = function_of(node)
    numbers = [position for position, _ in op.alternatives]
    if op.name == "arange":  # all operands are numbers
        numbers = [*range(len(node.inputs))]
    names = sorted(symbols_in_attrs(node.attrs))
    last: tuple[Any, Sequence[Any]] = (None, ())

    def remembered(operands: Sequence[Any], symbols: Mapping[str, int]) -> Sequence[Any]:
        nonlocal last
        shapes = [None if one is None else (one.shape, one.dtype) for one in operands]
        given = [operands[position] for position in numbers if position < len(operands)]
        data = [None if one is None else one.tobytes() for one in given]
        key = (shapes, data, [symbols[name] for name in names])
        cached, answer = last
        if cached != key:
            answer = rule(operands, symbols)
            last = key, answer
        return answer

    return remembered


def _shapes_of(op: Op) -> Callable[..., Any]:
    """The shapes that a type rule gives once the numbers among the operands are known."""

    def shapes(attrs: Attrs, *operands: Array | None) -> tuple[Array, ...]:
        left = list(operands)
        for position, name in op.alternatives:
            given = left[position] if position < len(left) else None
            if given is not None:
                attrs = replace(attrs, **{name: coerce_operand(op.attrs, name, given)})
                left[position] = None
        types = (
            None if one is None else TensorType(dtype_of(one.dtype), one.shape) for one in left
        )
        results = op.result_types(attrs, tuple(types))
        extents = [type_.shape for type_ in results if isinstance(type_, TensorType)]
        return tuple(np.broadcast_to(np.False_, cast("Any", shape)) for shape in extents)

    return shapes


def _counted(attrs: ArangeAttrs, *operands: Array | None) -> Array:
    """The type rule of ranges knows integers only."""
    return np.broadcast_to(np.False_, (arange_count(attrs, *operands),))
