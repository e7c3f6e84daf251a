"""The pattern language: combinators and formulas.

A pattern is a value that describes graph values. Build it from `wildcard()`, `is_op("nn.relu")(x)`,
`is_constant()`, `a | b` and constraints, or write the formula itself with operators:

    formula(lambda x: x * 0.5 * (1 + op.erf(x / 2**0.5)))

The same wildcard used twice has to match the same value. Commutative operators match both ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graft.base.dtypes import DType
from graft.ir.types import Type

Number = int | float


def _operator(name: str, swapped: bool = False) -> Callable[[Pattern, Pattern | Number], Pattern]:
    """Python's operator for one of the graph's."""
    if swapped:
        return lambda self, other: apply(name, other, self)
    return lambda self, other: apply(name, self, other)


class Pattern:
    """Base of all patterns; arithmetic on patterns builds patterns."""

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """This pattern, or `wrap` of it where that matches."""
        return Either((wrap(self), self))

    def has_attr(self, attrs: Mapping[str, Any] | None = None, **more: Any) -> Pattern:
        """Only where the node's attributes have these values."""
        expected = {**(attrs or {}), **more}
        return Constrained(self, AttrsAre(tuple(expected.items())))

    def has_dtype(self, *dtypes: DType | str) -> Pattern:
        """Only values of one of these dtypes."""
        return Constrained(self, DTypeIn(tuple(DType(d) for d in dtypes)))

    def has_shape(self, *shape: int | None) -> Pattern:
        """Only values of this shape; None stands for any extent."""
        return Constrained(self, ShapeIs(shape))

    def has_type(self, type_: Type) -> Pattern:
        """Only values of exactly this type."""
        return Constrained(self, TypeIs(type_))

    def dominates(self, parent: Pattern, path: Pattern | None = None) -> Pattern:
        """This pattern, where a value that matches `parent` reaches it by way of nodes that all
        match `path`, by however many; nodes beside the way are no part of the match."""
        return Dominated(self, parent, path or Wildcard())

    def where(self, test: Callable[[Any], bool], reason: str) -> Pattern:
        """Only values for which the test holds; `reason` says what it wants."""
        return Constrained(self, Passes(test, reason))

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", swapped=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", swapped=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", swapped=True)
    __pow__ = _operator("power")

    def __neg__(self) -> Pattern:
        return apply("negative", self)


@dataclass(frozen=True, eq=False)
class Wildcard(Pattern):
    """Any value."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class ConstantIs(Pattern):
    """A constant; with `number`, one all of whose elements are (about) that number."""

    number: Number | None = None


@dataclass(frozen=True, eq=False)
class OpIs(Pattern):
    """The result of an operator. `args` None leaves the operands open."""

    names: tuple[str, ...]
    args: tuple[Pattern, ...] | None = None
    attrs: tuple[tuple[str, Any], ...] = ()
    every: Pattern | None = None

    def each(self, operand: Pattern, **attrs: Any) -> OpIs:
        """The operator on any number of operands that all match; wildcards of `operand` stand for
        something else in each of them."""
        return OpIs(self.names, None, tuple(attrs.items()), operand)

    def __call__(self, *args: Pattern | Number, **attrs: Any) -> OpIs:
        """The operator on operands that match `args`; a tuple pattern stands for its fields."""
        fields = [
            inner
            for arg in args
            for inner in (arg.fields if isinstance(arg, TupleOf) else (as_pattern(arg),))
        ]
        return OpIs(self.names, tuple(fields), tuple(attrs.items()))


@dataclass(frozen=True, eq=False)
class TupleOf(Pattern):
    """Several values, as operands of a variadic operator."""

    fields: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class ResultOf(Pattern):
    """Result number `index` of a node with several results."""

    node: OpIs
    index: int


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """Whichever alternative matches first."""

    alternatives: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class Dominated(Pattern):
    """`child`, to which all ways from `parent` lead through nodes that match `path`."""

    child: Pattern
    parent: Pattern
    path: Pattern


@dataclass(frozen=True, slots=True)
class AttrsAre:
    """Constraint on the attributes of the node that defines the value."""

    wanted: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DTypeIn:
    """Constraint on the dtype."""

    dtypes: tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class ShapeIs:
    """Constraint on the shape; None is any extent."""

    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TypeIs:
    """Constraint on the whole type."""

    type: Type


@dataclass(frozen=True, slots=True)
class Passes:
    """A predicate on the value that the pattern's author supplies."""

    test: Callable[[Any], bool]
    reason: str


Constraint = AttrsAre | DTypeIn | ShapeIs | TypeIs | Passes


@dataclass(frozen=True, eq=False)
class Constrained(Pattern):
    """A pattern with a condition on top."""

    inner: Pattern
    constraint: Constraint


def wildcard(name: str = "") -> Pattern:
    """Any value; used twice, the same value."""
    return Wildcard(name)


def is_op(*names: str) -> OpIs:
    """The result of one of these operators; call it with patterns for the operands."""
    return OpIs(names)


def is_constant(number: Number | None = None) -> Pattern:
    """Any constant, or one whose elements all are that number."""
    return ConstantIs(number)


def is_tuple(fields: Sequence[Pattern]) -> TupleOf:
    """Several operands in a row, as `concatenate` takes them."""
    return TupleOf(tuple(fields))


def is_tuple_get_item(node: Pattern, index: int) -> Pattern:
    """One result of an operator with several."""
    if not isinstance(node, OpIs):
        raise TypeError("is_tuple_get_item wants an is_op pattern")
    return ResultOf(node, index)


def operators_in(pattern: Pattern) -> set[str]:
    """The names of all operators that a pattern speaks of."""
    inner = (one for one in _walk(pattern, with_paths=True) if isinstance(one, OpIs))
    return {name for one in inner for name in one.names}


def leaves(pattern: Pattern) -> tuple[Pattern, ...]:
    """What a match reads from outside, in the order in which it is written, each once: wildcards,
    constants of any value, and operators whose operands are left open."""
    return tuple(
        one
        for one in _walk(pattern)
        if isinstance(one, Wildcard)
        or (isinstance(one, ConstantIs) and one.number is None)
        or (isinstance(one, OpIs) and one.args is None)
    )


def fixed_attrs(pattern: Pattern) -> frozenset[str]:
    """The names of attributes that a pattern says the value of."""
    attrs: list[tuple[str, Any]] = []
    for one in _walk(pattern):
        if isinstance(one, OpIs):
            attrs += one.attrs
        elif isinstance(one, Constrained) and isinstance(one.constraint, AttrsAre):
            attrs += one.constraint.wanted
    return frozenset(name for name, _ in attrs)


def _walk(pattern: Pattern, with_paths: bool = False) -> Iterator[Pattern]:
    """The pattern and all within it, each once, in the order in which it is written; `with_paths`
    also what variadic operands and nodes on the way to a dominator have to match."""
    visited: set[Pattern] = set()
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        if one in visited:
            continue
        visited.add(one)
        yield one
        match one:
            case OpIs():
                inner = list(one.args or ())
                inner += [one.every] if with_paths and one.every is not None else []
            case ResultOf():
                inner = [one.node]
            case Either():
                inner = list(one.alternatives)
            case Constrained():
                inner = [one.inner]
            case Dominated():
                inner = [one.child, one.parent, *([one.path] if with_paths else [])]
            case _:
                inner = []
        waiting += reversed(inner)


def as_pattern(operand: Pattern | Number) -> Pattern:
    """A number stands for a constant of that value."""
    return operand if isinstance(operand, Pattern) else ConstantIs(operand)


def apply(name: str, *args: Pattern | Number, **attrs: Any) -> OpIs:
    """The pattern of an operator on operands that match patterns."""
    return OpIs((name,))(*args, **attrs)


@dataclass(frozen=True)
class OpNamespace:
    """Writes operators in formulas: `op.erf(x)`, `op.nn.softmax(x, axis=-1)`."""

    prefix: str = ""

    def __getattr__(self, name: str) -> OpNamespace:
        if name.startswith("__"):
            raise AttributeError(name)
        return OpNamespace(f"{self.prefix}.{name}" if self.prefix else name)

    def __call__(self, *args: Pattern | Number, **attrs: Any) -> OpIs:
        return apply(self.prefix, *args, **attrs)


op = OpNamespace()


@dataclass(frozen=True)
class Formula:
    """A pattern with named wildcards: the parameters of the function that wrote it."""

    pattern: Pattern
    names: tuple[str, ...] = ()
    wildcards: Mapping[str, Pattern] = field(default_factory=dict)


def formula(function: Callable[..., Pattern]) -> Formula:
    """Trace a Python function over operators into a pattern; its parameters are wildcards."""
    names = tuple(inspect.signature(function).parameters)
    wildcards = {name: Wildcard(name) for name in names}
    return Formula(function(**wildcards), names, wildcards)
