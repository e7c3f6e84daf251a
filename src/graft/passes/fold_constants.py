"""Computes at compile time what does not depend on the inputs, and sharpens types on the way.

Every node is inferred anew: operands that have become constant turn into attributes, extents that
have become known replace symbols, and shape arithmetic disappears. A result that would be much
larger than what it is made of (a filled or broadcast tensor) stays a computation, unless it takes
more than moving elements or computing them one by one (a resized table of positions). What is made
of such a computation alone and is small again (a sum over it) is folded, and the computation too.
Dequantised constants stay, too: products with them may use the integers. What transposes
them, as the weights of a MatMul are, transposes these integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.errors import GraftError
from graft.ir.attrs import symbols_in_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import run_op
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.literal import Literal
from graft.ir.nested import change_node, has_graphs
from graft.ir.op import Kind, bytes_of
from graft.ir.types import TensorType, Type
from graft.ops.movement import transpose_order


@dataclass(frozen=True, slots=True)
class FoldOptions:
    """Limits on what folding may allocate."""

    always_bytes: int = 1 << 20  # results up to this size are always folded
    growth: int = 2  # larger ones only where they are at most so many times their operands
    costly_bytes: int = (
        1 << 26
    )  # or up to this size, where they take longer to compute than to read
    kept: frozenset[str] = frozenset({"qnn.dequantize"})  # operators that stay computations


def fold_constants(graph: Graph, options: FoldOptions | None = None) -> Graph:
    """Fold in one sweep from inputs to outputs."""
    return _Folder(graph, options or FoldOptions()).run()


class _Folder:
    def __init__(self, graph: Graph, options: FoldOptions) -> None:
        self.graph = graph
        self.options = options
        self.same: dict[Value, Value] = {}
        self.changed = False
        self.original = set(graph.nodes)
        # Nodes on constants that stay computations for their size, with the bytes they start from.
        self.deferred: dict[Value, tuple[Node, int]] = {}
        self.dequantized: dict[Value, Node] = {}  # constants, by what stands for them
        self.builder = Builder.beside(graph, "f")

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.builder.location = node.location
            self.visit(node)
        if not self.changed:
            return self.graph
        outputs = [self.same.get(value, value) for value in self.graph.outputs]
        return self.builder.build(*outputs, names=self.graph.output_names)

    def visit(self, node: Node) -> None:
        if node.op.name == "constant":
            self.builder.append(node)
            return
        results = self.folded(node)
        for old, new in zip(node.outputs, results, strict=True):
            if old is not new:
                self.same[old] = new
                self.changed = True

    def folded(self, node: Node) -> tuple[Value, ...]:
        """Add the node, or constants in its place; gives the values that stand for its results."""
        inputs = node.on(self.same).inputs
        if has_graphs(node):
            node = change_node(node, lambda nested: fold_constants(nested, self.options))
        transposed = self.transposed(node, inputs)
        if transposed is not None:
            return (transposed,)
        results = self.evaluated(node, inputs)
        if results is not None:
            return self.constants(node, results)
        refined = self.refined(node, inputs)
        self.changed |= refined is not node or node not in self.original
        self.builder.append(refined)
        self.defer(refined)
        if refined.op.name == "qnn.dequantize":
            self.dequantized[refined.output] = refined
        foldable = len(refined.outputs) == 1 and node.op.name not in self.options.kept
        content = self.builder.knowledge.concrete(refined.output) if foldable else None
        if content is None:
            return refined.outputs
        self.builder.take_last()
        return self.constants(refined, [content.astype(refined.output.dtype.numpy, copy=False)])

    def constants(self, node: Node, arrays: Sequence[Any]) -> tuple[Value, ...]:
        return tuple(
            self.constant(value, array) for value, array in zip(node.outputs, arrays, strict=True)
        )

    def constant(self, value: Value, array: Any) -> Value:
        literal = Literal(np.asarray(array))
        result = Value(value.name, literal.type)
        self.builder.append(
            make_node("constant", (), (result,), self.builder.location, value=literal)
        )
        return result

    def transposed(self, node: Node, inputs: Sequence[Value | None]) -> Value | None:
        """A transpose of dequantised constants: the same constants transposed, dequantised."""
        if node.op.name != "transpose" or inputs[0] not in self.dequantized:
            return None
        inner = self.dequantized[inputs[0]]
        codes = self.builder.knowledge.literal(inner.args[0])
        if codes is None or inner.attrs.block_size:
            return None
        order, axis = transpose_order(node.attrs, codes.array.ndim), inner.attrs.axis
        if inner.args[1].tensor.rank != 0:  # a scale for each index of an axis
            axis = order.index(axis % len(order))
        moved = self.builder.constant(codes.array.transpose(order))
        attrs, inputs = replace(inner.attrs, axis=axis), (moved, *inner.inputs[1:])
        result = replace(inner, inputs=inputs, outputs=node.outputs, attrs=attrs)
        self.builder.append(result)
        self.dequantized[result.output] = result
        self.changed = True
        return result.output

    def refined(self, node: Node, inputs: tuple[Value | None, ...]) -> Node:
        """The node on its new operands, with the sharpest types known."""
        operands, attrs, types = self.builder.infer(node.op, inputs, node.attrs)
        outputs = tuple(
            self.sharpened(value, type_) for value, type_ in zip(node.outputs, types, strict=True)
        )
        if operands == node.inputs and attrs == node.attrs and outputs == node.outputs:
            return node
        return replace(node, inputs=operands, attrs=attrs, outputs=outputs)

    def sharpened(self, value: Value, inferred: Type) -> Value:
        type_ = self.builder.named(_sharper(value.type, inferred))
        return value if type_ == value.type else Value(value.name, type_)

    def evaluated(self, node: Node, inputs: Sequence[Value | None]) -> list[Any] | None:
        """The node's results where all operands are constant and the results are not too large."""
        sources = self.source_bytes(node, inputs)
        if sources is None or not self.affordable(node, sources):
            return None
        try:
            with np.errstate(all="ignore"):
                operands = self.arrays(inputs, {})
                results = run_op(node.op, node.attrs, operands)
        except (GraftError, ArithmeticError, TypeError, ValueError, IndexError, MemoryError):
            return None  # it fails when it runs, with a message that names the node
        arrays = [result for result in results if isinstance(result, (np.ndarray, np.generic))]
        return arrays if len(arrays) == len(node.outputs) else None

    def source_bytes(self, node: Node, inputs: Sequence[Value | None]) -> int | None:
        """The bytes of the constants that a node computes its results from; None if it does not
        compute them from constants alone."""
        if node.op.name in self.options.kept or not node.op.pure or has_graphs(node):
            return None
        if symbols_in_attrs(node.attrs):
            return None
        total = 0
        for value in inputs:
            literal = self.builder.knowledge.literal(value)
            if literal is not None:
                total += literal.nbytes
            elif value in self.deferred:
                total += self.deferred[value][1]
            elif value is not None:
                return None
        return total

    def defer(self, node: Node) -> None:
        """Remember a node that is not folded for the size of its result."""
        sources = self.source_bytes(node, node.inputs)
        if (
            sources is None
            or len(node.outputs) != 1
            or not isinstance(node.output.type, TensorType)
        ):
            return
        size = bytes_of(node.output.type)
        if isinstance(size, int) and size <= self.options.costly_bytes:
            self.deferred[node.output] = node, sources

    def arrays(self, values: Sequence[Value | None], known: dict[Value, Any]) -> list[Any]:
        """Contents of constants and of deferred nodes, which are computed here."""
        results: list[Any] = []
        for value in values:
            literal = self.builder.knowledge.literal(value)
            if value is None or literal is not None:
                results.append(None if literal is None else literal.array)
                continue
            if value not in known:
                node = self.deferred[value][0]
                (known[value],) = run_op(node.op, node.attrs, self.arrays(node.inputs, known))
            results.append(known[value])
        return results

    def affordable(self, node: Node, operand_bytes: int) -> bool:
        total: AnyDim = 0
        for value in node.outputs:
            if not isinstance(value.type, TensorType):
                return False
            total = total + bytes_of(value.type)
        limit = max(self.options.always_bytes, self.options.growth * operand_bytes)
        if _is_costly(node):
            limit = max(limit, self.options.costly_bytes)
        if isinstance(total, int):
            return total <= limit
        # The size depends on the constants' content.
        return operand_bytes <= self.options.always_bytes


def _is_costly(node: Node) -> bool:
    """Whether results take longer to compute than to read."""
    if node.op.kind in (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INJECTIVE):
        return False
    types = [None if value is None else value.type for value in node.inputs]
    work = node.op.work(node.attrs, types, [value.type for value in node.outputs])
    return work.macs != 0 or work.flops != 0


def _sharper(old: Type, inferred: Type) -> Type:
    """Of two true types of a value, per dim the one that says more."""
    if not isinstance(old, TensorType) or not isinstance(inferred, TensorType):
        return old if _has_unknown(inferred) else inferred
    if inferred.shape is None:
        return old
    if old.shape is None or len(old.shape) != len(inferred.shape):
        return inferred
    dims = (
        a if isinstance(a, int) or b is UNKNOWN else b
        for a, b in zip(old.shape, inferred.shape, strict=True)
    )
    return TensorType(inferred.dtype, tuple(dims))


def _has_unknown(type_: Type) -> bool:
    return "?" in str(type_) or "*" in str(type_)
