"""Type rules as functions of data: an operator in, what tells the sizes of its results out.

Where shapes, axes or bounds are operands, a type rule knows the sizes of results once the numbers
are there. Compilers put such a rule between pieces of native code. In a file it is the text of a
graph with one node, and whoever loads the file asks for it here.
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
    """An operator whose results have the sizes of another one's, and hold nothing."""

    told_by: Op | None = None


def sizes_op(op: Op) -> SizesOp:
    """What tells the sizes of an operator's results."""
    meaning = _counted if op.name == "arange" else _told_by(op)
    return SizesOp(SIZES, op.operands, op.infer, meaning, op.attrs, told_by=op)


def rule_text(node: Node) -> str:
    """A node that tells sizes, as the text of a graph."""
    assert isinstance(node.op, SizesOp)
    op = node.op.told_by
    assert op is not None
    inputs = dict.fromkeys(node.args)
    known = {value: Value(f"a{number}", value.type) for number, value in enumerate(inputs)}
    operands = tuple(None if value is None else known[value] for value in node.inputs)
    types = tuple(None if value is None else value.type for value in operands)
    results = op.result_types(node.attrs, (*types, *op.absent(len(types))))
    outputs = tuple(Value(f"r{number}", type_) for number, type_ in enumerate(results))
    told = Node(op, operands, node.attrs, outputs)
    return to_text(Graph(SIZES, tuple(known.values()), (told,), outputs)).text


def rule_from(text: str) -> Rule:
    """The rule that a text describes."""
    (node,) = from_text(text).nodes
    return rule_of(replace(node, op=sizes_op(node.op)))


def rule_of(node: Node) -> Rule:
    """The rule of a node that tells sizes. It remembers the last answer: most runs ask for what
    the run before asked for, and a type rule takes longer than small kernels."""
    assert isinstance(node.op, SizesOp)
    op = node.op.told_by
    assert op is not None
    rule = function_of(node)
    numbers = [position for position, _ in op.alternatives]
    if op.name == "arange":  # all operands are numbers
        numbers = [*range(len(node.inputs))]
    symbols_asked = sorted(symbols_in_attrs(node.attrs))
    last: tuple[Any, Sequence[Any]] = (None, ())

    def remembered(operands: Sequence[Any], symbols: Mapping[str, int]) -> Sequence[Any]:
        nonlocal last
        shapes = [None if one is None else (one.shape, one.dtype) for one in operands]
        given = [operands[position] for position in numbers if position < len(operands)]
        data = [None if one is None else one.tobytes() for one in given]
        question = (shapes, data, [symbols[name] for name in symbols_asked])
        asked, answer = last
        if asked != question:
            answer = rule(operands, symbols)
            last = question, answer
        return answer

    return remembered


def _told_by(op: Op) -> Callable[..., Any]:
    """What a type rule says of results once the numbers among the operands are known."""

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
        told = [type_.shape for type_ in results if isinstance(type_, TensorType)]
        return tuple(np.broadcast_to(np.False_, cast("Any", shape)) for shape in told)

    return shapes


def _counted(attrs: ArangeAttrs, *operands: Array | None) -> Array:
    """The type rule of ranges knows integers only."""
    return np.broadcast_to(np.False_, (arange_count(attrs, *operands),))
