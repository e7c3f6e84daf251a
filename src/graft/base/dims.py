"""Index expressions, and the dims of shapes: integer polynomials over symbols in canonical form.

Extents enter (`int`, `symbol("n")`, text) and extents leave, simplified: whatever turns out to be
constant is a plain `int`, so shapes that are fully known never meet an `IndexExpr`, and two extents
that are equal for a reason seen here compare equal with `==`.

An `IndexExpr` is a sum of terms, each an integer times a product of atoms; an atom is a symbol or a
call of floordiv, mod, min, max or broadcast that could not be simplified. Two conventions make the
simplifications sound: a symbol stands for an integer >= 0, and what has no meaning for some
binding (a division by zero, a broadcast of 3 with 4) may simplify to anything for that binding;
so `n*m//n` is `m`. Ordering is undecidable and therefore refused; `dim_min`, `dim_max` and
`dim_questions` serve instead.

The indices of loops are polynomials of the same kind over symbols with other ranges, so division
and extremes (`floor_divide`, `modulo`, `extreme`) take what is known of symbols as an operand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, TypeAlias

import numpy as np

from graft.base.bounds import NATURAL, Intervals
from graft.base.dim_text import parse_arithmetic
from graft.base.errors import EvaluationError, ParseError, TypeRuleError
from graft.base.polynomials import (
    OPAQUE,
    SYMBOL,
    Atom,
    Polynomial,
    Terms,
    call_atom,
    constant_value,
    divide,
    only_floordiv,
    opposite_extremes,
    order,
    plus,
    sole_atom,
    split_by,
    sum_text,
    symbol_atom,
    symbol_text,
    terms_of,
    times,
)

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
) -> Callable[[IndexExpr, Operand], AnyDim]:
    """An operator of `IndexExpr`; NotImplemented hands arrays to NumPy and UNKNOWN to itself."""

    def method(self: IndexExpr, other: Operand) -> AnyDim:
        if isinstance(other, (int, np.integer)):
            other = int(other)
        if swapped:
            return compute(other, self) if isinstance(other, (int, IndexExpr)) else NotImplemented
        return compute(self, other) if isinstance(other, (int, IndexExpr)) else NotImplemented

    return method


def _add(left: Dim, right: Dim) -> AnyDim:
    return _sum(plus(dict(terms_of(left)), dict(terms_of(right))))


def _subtract(left: Dim, right: Dim) -> AnyDim:
    return _sum(plus(dict(terms_of(left)), dict(terms_of(right)), -1))


def _sum(polynomial: Polynomial) -> AnyDim:
    """The sum, with max(a, b) + min(a, b) written as a + b.

    Such pairs are the extents of the two parts of a rolled tensor: max(n - k, 0) and min(n, k)."""
    for most, least, count in opposite_extremes(polynomial):
        (first, second), (third, fourth) = most.arguments, least.arguments
        gap = first - second
        if isinstance(gap, Unknown) or gap not in (third - fourth, fourth - third):
            continue
        total: AnyDim = first + (fourth if gap == third - fourth else third)
        return _sum(plus(polynomial, {(most,): 1, (least,): 1}, -count)) + count * total
    return _limited(polynomial)


def _multiply(left: Dim, right: Dim) -> AnyDim:
    return _limited(times(dict(terms_of(left)), dict(terms_of(right))))


def _floor_divide(left: Dim, right: Dim) -> AnyDim:
    return _limited(floor_divide(dict(terms_of(left)), dict(terms_of(right)), NATURAL))


def _modulo(left: Dim, right: Dim) -> AnyDim:
    return _limited(modulo(dict(terms_of(left)), dict(terms_of(right)), NATURAL))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IndexExpr:
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

    def __neg__(self) -> IndexExpr:
        return IndexExpr(tuple([(monomial, -coefficient) for monomial, coefficient in self.terms]))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IndexExpr):
            return self is other or (self._hash == other._hash and self.terms == other.terms)
        return False if isinstance(other, (int, Unknown)) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"the dimension '{self}' has no truth value; use provably_different")

    def __int__(self) -> int:
        raise TypeError(f"the dimension '{self}' is not a number; bind it with evaluate_dim")

    def __reduce__(self) -> tuple[Callable[[str], Dim], tuple[str]]:
        return parse_dim, (str(self),)  # atoms are objects of one process

    def __str__(self) -> str:
        return sum_text(self.terms)

    __repr__ = __str__


Dim: TypeAlias = int | IndexExpr
AnyDim: TypeAlias = int | IndexExpr | Unknown
Operand: TypeAlias = int | IndexExpr | Unknown | np.integer[Any]
_OPERANDS: Final = (int, IndexExpr, Unknown, np.integer)


def index_expr(polynomial: Polynomial) -> Dim:
    """The polynomial as a dim, of any size."""
    if len(polynomial) > 1:
        monomials = sorted(polynomial, key=order)
        return IndexExpr(tuple([(monomial, polynomial[monomial]) for monomial in monomials]))
    constant = constant_value(polynomial)
    return IndexExpr(tuple(polynomial.items())) if constant is None else constant


def _limited(polynomial: Polynomial) -> AnyDim:
    """The polynomial as a dim of a shape, which is not too large."""
    dim = index_expr(polynomial)
    return UNKNOWN if isinstance(dim, IndexExpr) and dim.size > LARGEST_SIZE else dim


def floor_divide(dividend: Polynomial, divisor: Polynomial, intervals: Intervals) -> Polynomial:
    """The quotient, rounded down."""
    quotient, rest, divisor, _ = divide(dividend, divisor)
    if _is_within(rest, divisor, intervals):
        return quotient
    count = constant_value(divisor)
    digits = None if count is None else _digits(rest, count, intervals)
    inner = None if count is None else only_floordiv(rest)
    if digits is not None:
        high, _, divisor = digits[1:]
        return plus(quotient, floor_divide(high, divisor, intervals))
    if inner is None or count is None:
        return plus(quotient, _call("floordiv", rest, divisor, intervals))
    # (a//b + r)//c == (a + b*r)//(b*c) for integers b, c > 0
    numerator, step = inner.arguments
    whole = plus(dict(terms_of(numerator)), plus(rest, {(inner,): 1}, -1), step)
    return plus(quotient, floor_divide(whole, {(): step * count}, intervals))


def modulo(dividend: Polynomial, divisor: Polynomial, intervals: Intervals) -> Polynomial:
    """The remainder, which has the divisor's sign."""
    _, rest, divisor, scale = divide(dividend, divisor, for_remainder=True)
    if _is_within(rest, divisor, intervals):
        return times(scale, rest)
    count = constant_value(divisor)
    digits = None if count is None else _digits(rest, count, intervals)
    if digits is None:
        return times(scale, _call("mod", rest, divisor, intervals))
    step, high, low, divisor = digits
    return times(scale, plus(low, modulo(high, divisor, intervals), step))


def _digits(
    terms: Polynomial, divisor: int, intervals: Intervals
) -> tuple[int, Polynomial, Polynomial, Polynomial] | None:
    """A step that divides the divisor, terms == step*high + low with 0 <= low < step, and the
    divisor of high: terms//divisor is high//(divisor//step), and terms%divisor is
    high%(divisor//step)*step + low. Indices of tiles and of reshaped tensors are like that."""
    counts = [count for monomial, count in terms.items() if monomial]
    steps = {math.gcd(divisor, count) for count in counts}
    for step in (math.gcd(divisor, *counts), *sorted(steps, reverse=True)):
        high, low = split_by(terms, step)
        if step > 1 and _is_within(low, {(): step}, intervals):
            return step, high, low, {(): divisor // step}
    return None


def _is_within(rest: Polynomial, divisor: Polynomial, intervals: Intervals) -> bool:
    """Whether 0 <= rest < divisor for sure, so that // gives 0 and % the rest itself."""
    if not rest:
        return True
    return intervals.proves(rest) and intervals.proves(plus(plus(divisor, rest, -1), {(): 1}, -1))


def _call(function: str, left: Polynomial, right: Polynomial, intervals: Intervals) -> Polynomial:
    """The call as an atom, or its value where its bounds coincide."""
    atom = call_atom(function, (index_expr(left), index_expr(right)))
    low, high = intervals.atom_bounds(atom)
    return dict(terms_of(int(low))) if low == high else {(atom,): 1}


def at_least(dim: AnyDim, limit: AnyDim) -> bool:
    """True only if the extent is no smaller than the limit for every binding."""
    rest = dim - limit
    return not isinstance(rest, Unknown) and NATURAL.proves(dict(terms_of(rest)))


def symbol(name: str) -> IndexExpr:
    """The extent called `name`, some integer >= 0."""
    return IndexExpr((((symbol_atom(name),), 1),))


def dim_min(first: Operand, *others: Operand) -> AnyDim:
    """The smallest of the extents."""
    return _extreme("min", (first, *others), min)


def dim_max(first: Operand, *others: Operand) -> AnyDim:
    """The largest of the extents."""
    return _extreme("max", (first, *others), max)


def _extreme(
    function: str, operands: tuple[Operand, ...], of_integers: Callable[[list[int]], int]
) -> AnyDim:
    integers = [operand for operand in operands if isinstance(operand, int)]
    if len(integers) == len(operands):
        return of_integers(integers)
    dims = _flattened(function, operands)
    return UNKNOWN if dims is None else _limited(dict(terms_of(extreme(function, dims, NATURAL))))


def extreme(function: str, dims: Sequence[Dim], intervals: Intervals) -> Dim:
    """The min or max of the dims, without those that surely never decide it.

    Of dims that are surely equal an integer stays, or else the first."""
    rest = list(dict.fromkeys(dims))
    candidates = list(reversed(rest))
    candidates.sort(key=lambda dim: isinstance(dim, int))
    for candidate in candidates:
        for other in rest:
            low, high = (other, candidate) if function == "min" else (candidate, other)
            if other is not candidate and intervals.proves(
                plus(dict(terms_of(high)), dict(terms_of(low)), -1)
            ):
                rest.remove(candidate)
                break
    return rest[0] if len(rest) == 1 else index_expr({(call_atom(function, tuple(rest)),): 1})


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
    rest = [dim for dim in dims if dim != 1 and not _is_cut(dim, dims)] or [1]
    rest = [one for one in rest if not any(_is_floored(one, other) for other in rest)]
    if len(rest) == 1:
        return rest[0]
    return _limited({(call_atom("broadcast", tuple(rest)),): 1})


def _is_cut(dim: Dim, others: Sequence[Dim]) -> bool:
    """Whether a dim is min(other, limits) with limits above 1: where it is smaller than `other`,
    the two do not broadcast, so `other` alone determines the result."""
    atom = sole_atom(terms_of(dim))
    if atom is None or atom.kind != "min":
        return False
    limits = [argument for argument in atom.arguments if argument not in others]
    return len(limits) < len(atom.arguments) and all(isinstance(n, int) and n > 1 for n in limits)


def uncut(dims: Sequence[AnyDim], pairs: Iterable[tuple[AnyDim, AnyDim]]) -> tuple[AnyDim, ...]:
    """The dims without `min` calls that have no effect if each pair of extents broadcasts: beside
    `n`, `min(n, 8)` can only be `n`.

    So a mask of 8 positions bounds the other axes of a result, too."""
    whole: dict[Atom, Dim] = {}
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            if not isinstance(one, IndexExpr) or isinstance(other, Unknown):
                continue
            atom = sole_atom(one.terms)
            if atom is not None and _is_cut(one, [other]):
                whole[atom] = other
    return tuple([_without_cuts(dim, whole) for dim in dims] if whole else dims)


def _without_cuts(dim: AnyDim, whole: Mapping[Atom, Dim]) -> AnyDim:
    def change(atom: Atom) -> AnyDim:
        if atom in whole or atom.kind in (SYMBOL, OPAQUE):
            return whole.get(atom, index_expr({(atom,): 1}))
        return _OPERATIONS[atom.kind](*[_without_cuts(one, whole) for one in atom.arguments])

    return map_atoms(change, dim)


def _is_floored(dim: Dim, other: Dim) -> bool:
    """Whether the extent is the other one or 1, as exporters count windows: (n - 1)/2 + 1."""
    if dim == other or not at_least(other, 0):
        return False
    return dim in (dim_max(other, 1), dim_max(other - 1, 0) + 1)


def _flattened(function: str, operands: Iterable[Operand]) -> list[Dim] | None:
    """Each operand once, calls of `function` opened, integers last; None if one is UNKNOWN."""
    distinct: dict[Dim, None] = {}
    for dim in [_plain(operand) for operand in operands]:
        if isinstance(dim, Unknown):
            return None
        atom = sole_atom(terms_of(dim))
        if atom is not None and atom.kind == function:
            distinct.update(dict.fromkeys(atom.arguments))
        else:
            distinct[dim] = None
    return sorted(distinct, key=lambda dim: (isinstance(dim, int), str(dim)))


def _plain(operand: Operand) -> AnyDim:
    if isinstance(operand, (int, np.integer)):
        return int(operand)
    if not isinstance(operand, _OPERANDS):
        raise TypeError(f"{operand!r} is not a dimension")
    return operand


def ceildiv(dividend: Operand, divisor: Operand) -> AnyDim:
    """The quotient rounded up."""
    dividend, divisor = _plain(dividend), _plain(divisor)
    if isinstance(dividend, IndexExpr) and isinstance(divisor, int) and divisor > 0:
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
    atom = sole_atom(dim.terms) if isinstance(dim, IndexExpr) else None
    return None if atom is None or atom.kind is not SYMBOL else atom.name


def symbols_of(dim: AnyDim) -> frozenset[str]:
    """The names of the symbols that the extent depends on."""
    if not isinstance(dim, IndexExpr):
        return frozenset()
    return frozenset().union(*(atom.symbols for monomial, _ in dim.terms for atom in monomial))


_FUNCTIONS: Final[dict[str, Callable[..., AnyDim]]] = {
    "min": dim_min,
    "max": dim_max,
    "broadcast": broadcast_dim,
}
_OPERATIONS: Final[dict[str, Callable[..., AnyDim]]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    OPAQUE: lambda *_: UNKNOWN,
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


def normalized(dim: AnyDim) -> AnyDim:
    """The dim with all its calls simplified; UNKNOWN where it is made of more than symbols."""
    return _substituted(dim, {})


def _substituted(dim: AnyDim, mapping: Mapping[str, Operand]) -> AnyDim:
    return map_atoms(lambda atom: _atom_value(atom, mapping), dim)


def map_atoms(change: Callable[[Atom], AnyDim], dim: AnyDim) -> AnyDim:
    """The dim with its atoms replaced."""
    if not isinstance(dim, IndexExpr):
        return dim
    total: AnyDim = 0
    for monomial, coefficient in dim.terms:
        term: AnyDim = coefficient
        for atom in monomial:
            term = term * change(atom)
        total = total + term
    return total


def _atom_value(atom: Atom, mapping: Mapping[str, Operand]) -> AnyDim:
    if atom.kind is SYMBOL:
        return _plain(mapping[atom.name]) if atom.name in mapping else symbol(atom.name)
    return _OPERATIONS[atom.kind](*[_substituted(argument, mapping) for argument in atom.arguments])


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
