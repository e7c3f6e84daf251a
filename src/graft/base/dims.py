"""Symbolic dimensions: integer polynomials over non-negative symbols, kept in canonical form.

Extents enter (`int`, `symbol("n")`, text) and extents leave, simplified: whatever turns out to be
constant is a plain `int`, so shapes that are fully known never meet an `Expr`, and two extents
that are equal for a reason seen here compare equal with `==`.

An `Expr` is a sum of terms, each an integer times a product of atoms; an atom is a symbol or a call
of floordiv, mod, min, max or broadcast that could not be simplified. Two conventions make the
simplifications sound: a symbol stands for an integer >= 0, and what has no meaning for some
binding (a division by zero, a broadcast of 3 with 4) may simplify to anything for that binding;
so `n*m//n` is `m`. Ordering is undecidable and therefore refused; `dim_min`, `dim_max` and
`dim_questions` serve instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, TypeAlias

import numpy as np

from graft.base.dim_polynomials import (
    Atom,
    Bounds,
    Polynomial,
    Terms,
    accumulate,
    bounds_of,
    bounds_of_call,
    divide,
    only_floordiv,
    opposite_extremes,
    order,
    sole_atom,
)
from graft.base.dim_text import call_text, parse_arithmetic, sum_text, symbol_text
from graft.base.errors import EvaluationError, ParseError, TypeRuleError

# An expression with more atoms than this, those within its calls included, becomes UNKNOWN: no
# shape arithmetic of a sensible model comes near, and nothing below may take exponential time.
LARGEST_SIZE: Final = 200


class _Absorbing:
    """Arithmetic that yields the operand itself, whatever the other one is."""

    def _absorb(self, other: Operand) -> Self:
        return self if isinstance(other, _OPERANDS) else NotImplemented

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _absorb

    def __neg__(self) -> Self:
        return self


class Unknown(_Absorbing, Enum):
    """The type of `UNKNOWN`, an extent known only from data; arithmetic with it yields itself."""

    UNKNOWN = "?"

    def __bool__(self) -> bool:
        raise TypeError("an unknown extent has no truth value; test `is UNKNOWN`")

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__


UNKNOWN: Final = Unknown.UNKNOWN


def _method(
    compute: Callable[[Dim, Dim], AnyDim], swapped: bool = False
) -> Callable[[Expr, Operand], AnyDim]:
    """An operator of `Expr`; NotImplemented hands arrays to NumPy and UNKNOWN to itself."""

    def method(self: Expr, other: Operand) -> AnyDim:
        if isinstance(other, (int, np.integer)):
            other = int(other)
        if swapped:
            return compute(other, self) if isinstance(other, (int, Expr)) else NotImplemented
        return compute(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    return method


def _add(left: Dim, right: Dim) -> AnyDim:
    return _sum(accumulate(dict(_terms(left)), 1, dict(_terms(right))))


def _subtract(left: Dim, right: Dim) -> AnyDim:
    return _sum(accumulate(dict(_terms(left)), -1, dict(_terms(right))))


def _sum(polynomial: Polynomial) -> AnyDim:
    """The sum, without pairs of a max and a min that are simply a sum.

    What is rolled is cut in two, and its parts are max(n - k, 0) and min(n, k) elements long."""
    for most, least, count in opposite_extremes(polynomial):
        (first, second), (third, fourth) = most.arguments, least.arguments
        gap = first - second
        if isinstance(gap, Unknown) or gap not in (third - fourth, fourth - third):
            continue
        total: AnyDim = first + (fourth if gap == third - fourth else third)
        return _sum(accumulate(polynomial, -count, {(most,): 1, (least,): 1})) + count * total
    return _build(polynomial)


def _multiply(left: Dim, right: Dim) -> AnyDim:
    total: Polynomial = {}
    right_terms = dict(_terms(right))
    for monomial, coefficient in _terms(left):
        accumulate(total, coefficient, right_terms, monomial)
    return _build(total)


def _floor_divide(left: Dim, right: Dim) -> AnyDim:
    division = divide(dict(_terms(left)), dict(_terms(right)))
    quotient, rest, divisor = map(_build, division[:3])
    if _is_within(rest, divisor):
        return quotient
    inner = only_floordiv(rest.terms) if isinstance(rest, Expr) else None
    if inner is None or not isinstance(divisor, int):
        return quotient + _call("floordiv", rest, divisor)
    # (a//b + r)//c == (a + b*r)//(b*c) for integers b, c > 0
    arguments: tuple[Dim, ...] = inner.arguments
    numerator, step = arguments
    return quotient + (numerator + step * (rest - _build({(inner,): 1}))) // (step * divisor)


def _modulo(left: Dim, right: Dim) -> AnyDim:
    division = divide(dict(_terms(left)), dict(_terms(right)))
    _, rest, divisor, scale = map(_build, division[:4])
    inner = rest if _is_within(rest, divisor) else _call("mod", rest, divisor)
    return scale * (division.step * inner + division.remainder)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr:
    """A symbolic extent: its terms, highest degree first; never constant. See the module."""

    terms: Terms
    size: int = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        size = 0
        for monomial, _ in self.terms:
            for atom in monomial:
                size += atom.size
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_hash", hash(self.terms))

    __add__, __radd__ = _method(_add), _method(_add, swapped=True)
    __sub__, __rsub__ = _method(_subtract), _method(_subtract, swapped=True)
    __mul__, __rmul__ = _method(_multiply), _method(_multiply, swapped=True)
    __floordiv__, __rfloordiv__ = _method(_floor_divide), _method(_floor_divide, swapped=True)
    __mod__, __rmod__ = _method(_modulo), _method(_modulo, swapped=True)

    def __neg__(self) -> Expr:
        return Expr(tuple([(monomial, -coefficient) for monomial, coefficient in self.terms]))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expr):
            return self is other or (self._hash == other._hash and self.terms == other.terms)
        return False if isinstance(other, (int, Unknown)) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"the dimension '{self}' has no truth value; use provably_different")

    def __int__(self) -> int:
        raise TypeError(f"the dimension '{self}' is not a number; bind it with evaluate_dim")

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        return parse_dim, (str(self),)  # the cached hash means nothing in another process

    def __str__(self) -> str:
        return sum_text(self.terms)

    __repr__ = __str__


Dim: TypeAlias = int | Expr
AnyDim: TypeAlias = int | Expr | Unknown
Operand: TypeAlias = int | Expr | Unknown | np.integer[Any]
_OPERANDS: Final = (int, Expr, Unknown, np.integer)


def _terms(dim: Dim) -> Terms:
    return dim.terms if isinstance(dim, Expr) else (((), dim),)


def _build(polynomial: Polynomial) -> AnyDim:
    """The dimension that is this sum."""
    monomials = [monomial for monomial, coefficient in polynomial.items() if coefficient]
    if not monomials:
        return 0
    if len(monomials) > 1:
        monomials.sort(key=order)
    elif not monomials[0]:
        return polynomial[()]
    expr = Expr(tuple([(monomial, polynomial[monomial]) for monomial in monomials]))
    return expr if expr.size <= LARGEST_SIZE else UNKNOWN


def _call(function: str, *arguments: AnyDim) -> AnyDim:
    """A call that nothing simplifies any further, as a dimension."""
    known = tuple(argument for argument in arguments if not isinstance(argument, Unknown))
    if len(known) < len(arguments):
        return UNKNOWN
    low, high = bounds_of_call(function, list(map(_bounds, known)))
    if low is not None and low == high:
        return low
    text = call_text(function, tuple(map(_terms, known)))
    size = 1 + sum(argument.size if isinstance(argument, Expr) else 1 for argument in known)
    return _build({(Atom(True, text, function, known, size, (low, high)),): 1})


def _is_within(rest: AnyDim, divisor: AnyDim) -> bool:
    """Whether 0 <= rest < divisor for sure, so that // gives 0 and % the rest itself."""
    return rest == 0 or (at_least(rest, 0) and at_least(divisor - rest, 1))


def at_least(dim: AnyDim, limit: int) -> bool:
    """True only if the extent is no smaller than the limit for every binding."""
    low = _bounds(dim)[0]
    return low is not None and low >= limit


def _bounds(dim: AnyDim) -> Bounds:
    return (None, None) if isinstance(dim, Unknown) else bounds_of(_terms(dim))


def symbol(name: str) -> Expr:
    """The extent called `name`, some integer >= 0."""
    return Expr((((Atom(False, symbol_text(name), name, (), 1, (0, None)),), 1),))


def dim_min(first: Operand, *others: Operand) -> AnyDim:
    """The smallest of the extents."""
    return _extreme("min", (first, *others), min, lambda one, other: at_least(one - other, 0))


def dim_max(first: Operand, *others: Operand) -> AnyDim:
    """The largest of the extents."""
    return _extreme("max", (first, *others), max, lambda one, other: at_least(other - one, 0))


def _extreme(
    function: str,
    operands: tuple[Operand, ...],
    of_integers: Callable[[list[int]], int],
    is_idle: Callable[[AnyDim, AnyDim], bool],
) -> AnyDim:
    """min or max; `is_idle` tells that its first argument never decides beside its second."""
    integers = [one for one in operands if isinstance(one, int)]
    if len(integers) == len(operands):
        return of_integers(integers)
    dims = _flattened(function, operands)
    if dims is None:
        return UNKNOWN
    integers = [dim for dim in dims if isinstance(dim, int)]
    if len(integers) > 1:
        dims = [*dims[: -len(integers)], of_integers(integers)]
    kept = [one for one in dims if not any(is_idle(one, other) for other in dims if one != other)]
    return kept[0] if len(kept) == 1 else _call(function, *kept)


def broadcast_dim(*operands: Operand) -> AnyDim:
    """The extent that NumPy gives to operands with these extents along one axis.

    An integer other than 1 decides the matter, even beside UNKNOWN.
    """
    integers = {int(one) for one in operands if isinstance(one, (int, np.integer))} - {1}
    if len(integers) > 1:
        extents = " and ".join(map(str, sorted(integers)))
        raise TypeRuleError(f"extents {extents} do not broadcast")
    if integers:
        return integers.pop()
    dims = _flattened("broadcast", operands)
    if dims is None:
        return UNKNOWN
    kept = [dim for dim in dims if dim != 1 and not _is_cut(dim, dims)] or [1]
    kept = [one for one in kept if not any(_is_floored(one, other) for other in kept)]
    return kept[0] if len(kept) == 1 else _call("broadcast", *kept)


def _is_cut(dim: Dim, others: Sequence[Dim]) -> bool:
    """Whether a dim is another one, cut to so many, but not to 1: where it is shorter, the two do
    not broadcast, so the other one says it all."""
    atom = sole_atom(_terms(dim))
    if atom is None or not atom.is_call or atom.name != "min":
        return False
    limits = [one for one in atom.arguments if one not in others]
    return len(limits) < len(atom.arguments) and all(isinstance(n, int) and n > 1 for n in limits)


def _is_floored(dim: Dim, other: Dim) -> bool:
    """Whether the extent is the other one or 1, as exporters count windows: (n - 1)/2 + 1."""
    if dim == other or not at_least(other, 0):
        return False
    return dim in (dim_max(other, 1), dim_max(other - 1, 0) + 1)


def _flattened(function: str, operands: Iterable[Operand]) -> list[Dim] | None:
    """Each operand once, calls of `function` opened, integers last; None if one is UNKNOWN."""
    found: dict[Dim, None] = {}
    for dim in [_plain(operand) for operand in operands]:
        if isinstance(dim, Unknown):
            return None
        atom = sole_atom(_terms(dim))
        if atom is not None and atom.is_call and atom.name == function:
            found.update(dict.fromkeys(atom.arguments))
        else:
            found[dim] = None
    return sorted(found, key=lambda dim: (isinstance(dim, int), str(dim)))


def _plain(operand: Operand) -> AnyDim:
    if isinstance(operand, (int, np.integer)):
        return int(operand)
    if not isinstance(operand, _OPERANDS):
        raise TypeError(f"{operand!r} is not a dimension")
    return operand


def ceildiv(dividend: Operand, divisor: Operand) -> AnyDim:
    """The quotient rounded up."""
    dividend, divisor = _plain(dividend), _plain(divisor)
    if isinstance(dividend, Expr) and isinstance(divisor, int) and divisor > 0:
        return (dividend + (divisor - 1)) // divisor  # (n + 1)//2 reads better than n - n//2
    return -(-dividend // divisor)


def product(dims: Iterable[Operand]) -> AnyDim:
    """The number of elements in a shape; 1 for the empty one."""
    total: AnyDim = 1
    for dim in dims:
        total = total * _plain(dim)
    return total


def bare_symbol(dim: AnyDim) -> str | None:
    """The symbol's name when the dim is a symbol and nothing else."""
    atom = sole_atom(dim.terms) if isinstance(dim, Expr) else None
    return None if atom is None or atom.is_call else atom.name


def symbols_of(dim: AnyDim) -> frozenset[str]:
    """The names of the symbols that the extent depends on."""
    names: set[str] = set()
    for monomial, _ in dim.terms if isinstance(dim, Expr) else ():
        for atom in monomial:
            names.update(*map(symbols_of, atom.arguments))
            if not atom.is_call:
                names.add(atom.name)
    return frozenset(names)


_FUNCTIONS: Final[dict[str, Callable[..., AnyDim]]] = {
    "min": dim_min,
    "max": dim_max,
    "broadcast": broadcast_dim,
}
_OPERATIONS: Final[dict[str, Callable[..., AnyDim]]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    **_FUNCTIONS,
}


def substitute(dim: AnyDim, mapping: Mapping[str, Operand]) -> AnyDim:
    """The extent with symbols replaced by what `mapping` gives for them, others kept."""
    for name, value in mapping.items():
        if isinstance(value, (int, np.integer)) and value < 0:
            raise EvaluationError(f"the dimension '{symbol_text(name)}' cannot be {value}")
    try:
        return _substituted(dim, mapping)
    except (ZeroDivisionError, TypeRuleError) as error:
        raise EvaluationError(f"the dimension '{dim}' has no value here: {error}") from error


def _substituted(dim: AnyDim, mapping: Mapping[str, Operand]) -> AnyDim:
    if not isinstance(dim, Expr):
        return dim
    total: AnyDim = 0
    for monomial, coefficient in dim.terms:
        term: AnyDim = coefficient
        for atom in monomial:
            term = term * _atom_value(atom, mapping)
        total = total + term
    return total


def _atom_value(atom: Atom, mapping: Mapping[str, Operand]) -> AnyDim:
    if not atom.is_call:
        return _plain(mapping[atom.name]) if atom.name in mapping else symbol(atom.name)
    return _OPERATIONS[atom.name](*[_substituted(one, mapping) for one in atom.arguments])


def evaluate_call(function: str, arguments: Sequence[int], dim: AnyDim) -> int:
    """A call on numbers; `dim` is what it is part of, for the error where it has no value."""
    try:
        value = _OPERATIONS[function](*arguments)
    except (ZeroDivisionError, TypeRuleError) as error:
        raise EvaluationError(f"the dimension '{dim}' has no value here: {error}") from error
    assert isinstance(value, int)
    return value


def evaluate_dim(dim: AnyDim, mapping: Mapping[str, int]) -> int:
    """The extent's value under the bindings of `mapping`."""
    unbound = sorted(symbols_of(dim) - mapping.keys())
    if unbound:
        names = ", ".join(map(symbol_text, unbound))
        raise EvaluationError(f"the dimension '{dim}' has no value: {names} not bound")
    value = substitute(dim, mapping)
    if not isinstance(value, int):
        raise EvaluationError(f"the dimension '{dim}' is known only from data")
    return value


def parse_dim(text: str) -> Dim:
    """The extent that `str` wrote as `text`; the grammar is in `dim_text`."""
    dim: AnyDim = parse_arithmetic(text, symbol, _FUNCTIONS)
    if isinstance(dim, Unknown):
        raise ParseError(f"a dimension of {len(text)} characters is too large")
    return dim
