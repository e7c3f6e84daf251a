"""Random graphs that a pattern may match: patterns and random draws in, a graph out.

A pattern is built from its leaves up: wildcards become inputs or constants of the types that the
operator reading them requires, and alternatives are drawn. The graph need not match, as a pattern
may contain any condition; the caller then draws again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError, InternalError
from graft.byoc.kit import (  # noqa: F401  they register recipes
    recipes_movement,
    recipes_quantized,
    recipes_sampling,
    recipes_window,
)
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import call_of
from graft.byoc.kit.shrink import rebuilt
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.op import Op
from graft.ir.types import TensorType
from graft.ops import get_op
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.rewrite.pattern import (
    AttrsAre,
    ConstantIs,
    Constrained,
    Dominated,
    DTypeIn,
    Either,
    OpIs,
    Pattern,
    ResultOf,
    ShapeIs,
    TypeIs,
    Wildcard,
)


class UnbuildableError(Exception):
    """A drawn graph that type rules refuse."""


def synthesize(patterns: Sequence[Pattern], draw: Draw) -> Graph:
    """A graph of one pattern, or of several, each of which may read the result of the one before
    it."""
    maker = _Maker(draw)
    results: list[Value] = []
    try:
        for pattern in patterns:
            fed = results[-1] if results and draw.chance(0.9) else None
            results.append(maker.start(pattern, fed))
        kept = [value for value in results[:-1] if maker.unread(value) or draw.chance(0.2)]
        outputs = dict.fromkeys((*kept, results[-1]))
        return eliminate_dead_code(maker.builder.build(*outputs))
    except (GraftError, IndexError, ValueError, ArithmeticError) as error:
        raise UnbuildableError(str(error)) from error


def with_symbols(graph: Graph, draw: Draw) -> Graph:
    """The graph with one axis made symbolic; inputs of the same extent there change together."""
    ranked = [value for value in graph.inputs if value.shape]
    if not ranked:
        raise UnbuildableError("there is no axis")
    chosen = draw.among(ranked)
    axis = 0 if draw.chance(0.7) else draw.between(0, len(chosen.shape or ()) - 1)
    extents = {value: (value.shape or ())[axis : axis + 1] for value in graph.inputs}
    alike = [value for value, extent in extents.items() if extent == extents[chosen]]
    opened = next(rebuilt(graph, {(value, axis): symbol("n") for value in alike}), None)
    if opened is None:
        raise UnbuildableError("a type rule refuses a symbolic axis")
    return opened


class _Maker:
    def __init__(self, draw: Draw) -> None:
        self.draw, self.builder = draw, Builder("example")
        self._values: dict[Pattern, Value] = {}
        self._fed: list[Value] = []  # values for the next open leaves, in this order
        self._read: set[Value] = set()
        # Scale, zero point and axis of what was quantised.
        self._parameters: dict[Value | None, tuple[list[Value | None], int]] = {}
        self._count = 0

    def start(self, pattern: Pattern, fed: Value | None) -> Value:
        """The value of a pattern; `fed` is the value of its first open leaf."""
        self._values, self._fed = {}, [] if fed is None else [fed]
        return self.inner(pattern)

    def unread(self, value: Value) -> bool:
        return value not in self._read

    def inner(self, pattern: Pattern, attrs: Mapping[str, Any] | None = None) -> Value:
        """The value of a pattern that contains an operator."""
        if pattern in self._values:
            return self._values[pattern]
        value = self._inner(pattern, attrs or {})
        self._values[pattern] = value
        return value

    def _inner(self, pattern: Pattern, attrs: Mapping[str, Any]) -> Value:
        if isinstance(pattern, OpIs):
            return self.call(pattern, attrs)[0]
        if isinstance(pattern, ResultOf):
            return self.call(pattern.node, attrs)[pattern.index]
        if isinstance(pattern, Either):
            return self.inner(self.draw.among(pattern.alternatives), attrs)
        if isinstance(pattern, Dominated):
            return self.dominated(pattern)
        if isinstance(pattern, Constrained):
            constraint = pattern.constraint
            more = dict(constraint.wanted) if isinstance(constraint, AttrsAre) else {}
            return self.inner(pattern.inner, {**attrs, **more})
        raise InternalError(f"{type(pattern).__name__} is no operator's result")

    def dominated(self, pattern: Dominated) -> Value:
        """The parent, one or two chains of path nodes from it, and the child on their ends."""
        value = self.inner(pattern.parent)
        fed_value, ends = self._values, []
        for _ in range(self.draw.between(1, 2)):
            end = value
            for _ in range(self.draw.between(0, 2) if _has_operator(pattern.path) else 0):
                self._fed, self._values = [end], {}
                end = self.inner(pattern.path)
            ends.append(end)
        self._fed, self._values = self.draw.shuffled(ends), fed_value
        child = self.inner(pattern.child)
        self._fed = []
        return child

    def call(self, pattern: OpIs, attrs: Mapping[str, Any]) -> tuple[Value, ...]:
        op = get_op(self.draw.among(pattern.names))
        args = self._args(pattern, op)
        fixed = [self._fixed(arg) for arg in args]
        drawn = call_of(self.draw, op, [None if v is None else v.tensor for v in fixed])
        bound = pattern.args is not None or pattern.every is not None
        if bound and len(args) != len(drawn.operands):
            raise UnbuildableError(f"{op.name} is not called with {len(args)} operands")
        operands: list[Value | None] = []
        for position, type_ in enumerate(drawn.operands):
            value = fixed[position] if position < len(fixed) else None
            arg = args[position] if position < len(args) else None
            if value is None and type_ is not None:
                if arg is not None and _is_dequantized_leaf(arg):
                    value = self._dequantized(arg, type_, position)
                else:
                    value = self._leaf(arg, type_, position, drawn.contents.get(position))
            operands.append(value)
        self._read.update(value for value in operands if value is not None)
        attributes = {**drawn.attrs, **attrs, **dict(pattern.attrs)}
        if op.name == "qnn.dequantize" and operands[0] in self._parameters:
            # as in real models, integers between two units mean the same to both
            operands[1:], attributes["axis"] = self._parameters[operands[0]]
        results = self.builder.call(op, *operands, **attributes)
        if op.name == "qnn.quantize":
            self._parameters[results[0]] = operands[1:], attributes.get("axis", 1)
        return results

    def _args(self, pattern: OpIs, op: Op) -> tuple[Pattern, ...]:
        if pattern.every is not None:
            return (pattern.every,) * self.draw.between(1, 4)
        if pattern.args is not None:
            return pattern.args
        # Any operands will do, so the first ones are what there is.
        most = 4 if any(operand.variadic for operand in op.operands) else len(op.operands)
        return tuple(Wildcard() for _ in self._fed[:most])

    def _fixed(self, arg: Pattern) -> Value | None:
        """The operand, if it is known before its reader's call is drawn."""
        if _has_operator(arg):
            is_open = not self._fed and arg not in self._values and _is_dequantized_leaf(arg)
            return None if is_open else self.inner(arg)
        fed_value = self._values.get(arg)
        if fed_value is None and self._fed and isinstance(arg, Wildcard):
            fed_value = self._values[arg] = self._fed.pop(0)
        if fed_value is not None or not isinstance(arg, Constrained):
            return fed_value
        constraint = arg.constraint
        if isinstance(constraint, TypeIs) and isinstance(constraint.type, TensorType):
            return self._leaf(arg, constraint.type, 0, None)
        if isinstance(constraint, ShapeIs) and constraint.shape:  # a scalar's reader knows more
            shape = tuple(self.draw.extent() if d is None else d for d in constraint.shape)
            return self._leaf(arg, TensorType(self.draw.dtype(), shape), 0, None)
        return None

    def _dequantized(self, arg: Pattern, type_: TensorType, position: int) -> Value:
        """A dequantised leaf of the shape that its reader requires: weights that fit the data."""
        pattern = self.draw.among([one for one in _alternatives(arg) if isinstance(one, OpIs)])
        codes = TensorType(self.draw.among((DType.INT8, DType.UINT8)), type_.shape)
        self._leaf((pattern.args or ())[0], codes, position, None)
        self._values[arg] = self.inner(pattern)
        return self._values[arg]

    def _leaf(
        self, arg: Pattern | None, type_: TensorType, position: int, contents: Array | None
    ) -> Value:
        if arg is not None and arg in self._values:
            return self._values[arg]
        plain = arg
        while isinstance(plain, Constrained):
            if isinstance(plain.constraint, DTypeIn):
                type_ = TensorType(self.draw.among(plain.constraint.dtypes), type_.shape)
                contents = None if contents is None else contents.astype(type_.dtype.numpy)
            if isinstance(plain.constraint, ShapeIs) and not plain.constraint.shape:
                type_ = TensorType(type_.dtype, ())
                contents = (
                    contents.reshape(-1)[0] if contents is not None and contents.size else None
                )
            plain = plain.inner
        constant = isinstance(plain, ConstantIs)
        # The first operand is seldom a constant, and never the only one that could be an input.
        share = 0.6 if position else 0.15 if self._count and not self.draw.plain else 0.0
        if constant or contents is not None or self.draw.chance(share):
            value = self._constant(plain, type_, contents)
        else:
            self._count += 1
            value = self.builder.input(f"x{self._count}", type_)
        if arg is not None:
            self._values[arg] = value
        return value

    def _constant(
        self, pattern: Pattern | None, type_: TensorType, contents: Array | None
    ) -> Value:
        shape = tuple(int(str(dim)) for dim in type_.shape or ())
        if isinstance(pattern, ConstantIs) and pattern.number is not None:
            contents = np.full(shape if self.draw.chance(0.2) else (), pattern.number)
            contents = contents.astype(type_.dtype.numpy)
        elif contents is None:
            contents = self.draw.array(type_.dtype, shape)
        return self.builder.constant(contents)


def _alternatives(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.alternatives if isinstance(pattern, Either) else (pattern,)


def _is_dequantized_leaf(pattern: Pattern) -> bool:
    """Whether a pattern is a dequantisation of a leaf, whose shape its reader may choose."""
    return all(
        isinstance(alternative, OpIs)
        and alternative.names == ("qnn.dequantize",)
        and bool(alternative.args)
        and not _has_operator((alternative.args or ())[0])
        for alternative in _alternatives(pattern)
    )


def _has_operator(pattern: Pattern) -> bool:
    if isinstance(pattern, Either):
        return all(_has_operator(alternative) for alternative in pattern.alternatives)
    if isinstance(pattern, Constrained):
        return _has_operator(pattern.inner)
    return isinstance(pattern, OpIs | ResultOf | Dominated)
