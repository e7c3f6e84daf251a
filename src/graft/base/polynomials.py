"""Integer polynomials over atoms: the normal form beneath dims of shapes and indices of loops.

An index expression is a sum of terms, each an integer times a product of atoms. An atom is a
symbol, a call of floordiv, mod, min, max or broadcast, or something opaque that only the client can
read (a load of a kernel). Polynomials enter and leave as dictionaries from monomials to
coefficients, in which terms cancel wherever they can; division takes out what the divisor divides.
What is known of the atoms' values is no business of this module: see `bounds`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from operator import attrgetter
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from graft.base.names import quoted

SYMBOL, OPAQUE = "symbol", "opaque"  # kinds of atoms; any other kind is the function it calls
# Texts of atoms that are longer are digests: they only sort atoms.
LONGEST_TEXT: Final = 4096
_INFIX: Final = {"floordiv": "//", "mod": "%"}
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class Atom:
    """A factor of a term. Hash-consed: atoms are equal if and only if they are the same object."""

    __slots__ = ("__weakref__", "arguments", "form", "key", "kind", "name", "size", "symbols")

    kind: str  # SYMBOL, OPAQUE, or the function's name
    name: str  # of the symbol or of the function
    # Operands of a call, as dims; of an opaque atom, values of which it is surely one, if any.
    arguments: tuple[Any, ...]
    key: tuple[bool, str]  # sorts atoms, symbols before calls, and is alike in every process
    size: int  # how many atoms are within it, itself included
    symbols: frozenset[str]
    form: Any  # of opaque atoms, the thing itself; of others, what the loop IR keeps for them

    @property
    def text(self) -> str:
        """The atom as the parser of dims reads it."""
        return self.key[1]

    @property
    def is_call(self) -> bool:
        """Whether this is a call or opaque."""
        return self.kind is not SYMBOL

    def __repr__(self) -> str:
        return self.text


Monomial: TypeAlias = tuple[Atom, ...]  # sorted; a power is a repetition; () is the constant's
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
Polynomial: TypeAlias = dict[Monomial, int]

_ATOMS: Final[WeakValueDictionary[Hashable, Atom]] = WeakValueDictionary()
_LOCK: Final = Lock()
_key = attrgetter("key")


def symbol_atom(name: str) -> Atom:
    """The symbol of that name."""
    atom = _ATOMS.get(name)
    if atom is not None:
        return atom
    return _intern(name, SYMBOL, (), symbol_text(name), frozenset((name,)))


def call_atom(function: str, arguments: tuple[Any, ...]) -> Atom:
    """A call of a function on dims, as it is: nothing is simplified."""
    atom = _ATOMS.get((function, arguments))
    if atom is not None:
        return atom
    text = call_text(function, [terms_of(argument) for argument in arguments])
    return _intern((function, arguments), function, arguments, text, frozenset())


def opaque_atom(
    form: tuple[str, Any], symbols: frozenset[str], alternatives: tuple[Any, ...] = ()
) -> Atom:
    """An expression that only the client interprets, as (sort key, expression).

    Its value is one of the alternatives, where there are any."""
    atom = _ATOMS.get((OPAQUE, form))
    if atom is None:
        atom = _intern((OPAQUE, form), OPAQUE, alternatives, form[0], symbols)
        atom.form = form
    return atom


def _intern(
    identity: Hashable, kind: str, arguments: tuple[Any, ...], text: str, symbols: frozenset[str]
) -> Atom:
    if len(text) > LONGEST_TEXT:
        text = "#" + hashlib.sha256(text.encode()).hexdigest()
    atom = Atom()
    atom.kind, atom.arguments, atom.form = kind, arguments, None
    atom.name = identity if isinstance(identity, str) else kind
    atom.key = kind is not SYMBOL, text
    inner = [one for argument in arguments for one in atoms_of(terms_of(argument))]
    numbers = sum(isinstance(argument, int) for argument in arguments)
    atom.size = 1 + numbers + sum(one.size for one in inner)
    atom.symbols = symbols.union(*(one.symbols for one in inner))
    with _LOCK:  # another thread may have been quicker
        return _ATOMS.setdefault(identity, atom)


def terms_of(dim: Any) -> Terms:
    """The terms of an integer or an index expression."""
    if isinstance(dim, int):
        return (((), dim),) if dim else ()
    terms: Terms = dim.terms
    return terms


def atoms_of(terms: Iterable[tuple[Monomial, int]]) -> list[Atom]:
    """All atoms of the terms, as often as they occur."""
    return [atom for monomial, _ in terms for atom in monomial]


def symbol_text(name: str) -> str:
    """A symbol's spelling: bare where the grammar of dims allows it, quoted otherwise."""
    return name if _BARE_NAME.fullmatch(name) else quoted(name, ascii_only=False)


def sum_text(terms: Terms) -> str:
    """A sum as it is read back: `2*n + (h + 1)//2 - 1`."""
    text = ""
    for monomial, coefficient in terms:
        negative = coefficient < 0
        sign = (" - " if negative else " + ") if text else ("-" if negative else "")
        text += sign + _term_text(monomial, abs(coefficient), sign == "-")
    return text or "0"


def _term_text(monomial: Monomial, magnitude: int, negated: bool) -> str:
    if not monomial:
        return str(magnitude)
    if len(monomial) == 1 and magnitude == 1 and not negated:
        return monomial[0].text
    factors = [f"({atom.text})" if atom.kind in _INFIX else atom.text for atom in monomial]
    return "*".join([str(magnitude), *factors] if magnitude != 1 else factors)


def call_text(function: str, arguments: Sequence[Terms]) -> str:
    """A call as it is read back: `min(n, 100)`, or with an operator between the arguments."""
    if function not in _INFIX:
        return f"{function}({', '.join(map(sum_text, arguments))})"
    return _INFIX[function].join(
        sum_text(terms) if _is_simple(terms) else f"({sum_text(terms)})" for terms in arguments
    )


def _is_simple(terms: Terms) -> bool:
    if not terms:
        return True
    ((monomial, coefficient), *others) = terms
    if others or len(monomial) > 1:
        return False
    return coefficient == 1 and monomial[0].kind not in _INFIX if monomial else coefficient >= 0


def order(monomial: Monomial) -> tuple[int, list[tuple[bool, str]]]:
    """Sorts the highest degree first, then by atoms: an order that multiplication respects."""
    return -len(monomial), list(map(_key, monomial))


def sole_atom(terms: Terms) -> Atom | None:
    """The atom that the sum consists of, if it is just one."""
    if len(terms) != 1:
        return None
    ((monomial, coefficient),) = terms
    return monomial[0] if len(monomial) == 1 and coefficient == 1 else None


def only_floordiv(terms: Polynomial) -> Atom | None:
    """The one term of the sum that is a floor division by an integer, if just one is."""
    calls = [
        monomial[0]
        for monomial, coefficient in terms.items()
        if coefficient == 1
        and len(monomial) == 1
        and monomial[0].kind == "floordiv"
        and isinstance(monomial[0].arguments[1], int)
        and monomial[0].arguments[1] > 0
    ]
    return calls[0] if len(calls) == 1 else None


def opposite_extremes(total: Polynomial) -> list[tuple[Atom, Atom, int]]:
    """Every max with every min that the sum adds to it, and how often it adds both."""
    pairs = []
    calls = [one for one in total if len(one) == 1 and len(one[0].arguments) == 2]
    for most in [call for call in calls if call[0].kind == "max"]:
        for least in [call for call in calls if call[0].kind == "min"]:
            if total[most] * total[least] > 0:
                count = min(total[most], total[least], key=abs)
                pairs.append((most[0], least[0], count))
    return pairs


def constant_value(terms: Polynomial) -> int | None:
    """The polynomial's value, if it is a constant."""
    if not terms:
        return 0
    return terms.get(()) if len(terms) == 1 else None


def plus(left: Polynomial, right: Polynomial, factor: int = 1) -> Polynomial:
    """`left + factor * right`."""
    return _without_zeros(_accumulate(dict(left), factor, right))


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product, multiplied out."""
    total: Polynomial = {}
    for monomial, coefficient in left.items():
        _accumulate(total, coefficient, right, monomial)
    return _without_zeros(total)


def _accumulate(
    total: Polynomial, coefficient: int, terms: Polynomial, factor: Monomial = ()
) -> Polynomial:
    """Add `coefficient * factor * terms` to `total`, which it changes and returns."""
    for monomial, count in terms.items():
        if factor:
            monomial = tuple(sorted(factor + monomial, key=_key)) if monomial else factor
        total[monomial] = total.get(monomial, 0) + coefficient * count
    return total


def _without_zeros(terms: Polynomial) -> Polynomial:
    if all(terms.values()):
        return terms
    return {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}


class Division(NamedTuple):
    """a//b == quotient + rest//divisor and a%b == scale*(rest % divisor)."""

    quotient: Polynomial
    rest: Polynomial
    divisor: Polynomial
    scale: Polynomial


def divide(dividend: Polynomial, divisor: Polynomial, for_remainder: bool = False) -> Division:
    """Cancel what both have in common, then take out of the dividend what the divisor divides.

    A coefficient that is larger than the divisor is taken out partly; what is left of it keeps its
    sign, so that the rest has its extremes where the dividend has them, and bounds stay tight. For
    a remainder what is taken out doesn't matter, and what is left is never negative.

    Sound wherever the divisor is not zero.
    """
    if not any(divisor.values()):
        raise ZeroDivisionError("a dimension is divided by zero")
    factor, content = _shared_factor(dividend, divisor)
    rest, divisor = _reduced(dividend, factor, content), _reduced(divisor, factor, content)
    scale = {factor: content}
    if len(divisor) > 1:
        exact = _exact_quotient(rest, divisor)
        quotient, rest = ({}, rest) if exact is None else (exact, {})
    else:
        quotient, rest = _split(rest, divisor, for_remainder)
    return Division(quotient, rest, divisor, scale)


def _shared_factor(dividend: Polynomial, divisor: Polynomial) -> tuple[Monomial, int]:
    """What cancels: common atoms and integer, signed so that the divisor's lead is positive."""
    content = math.gcd(*dividend.values(), *divisor.values())
    lead = divisor[min(divisor, key=order)] if len(divisor) > 1 else next(iter(divisor.values()))
    factor = () if () in divisor else reduce(_common, [*dividend, *divisor])
    return factor, content if lead > 0 else -content


def _common(left: Monomial, right: Monomial) -> Monomial:
    rest, shared = list(right), []
    for atom in left:
        if atom in rest:
            rest.remove(atom)
            shared.append(atom)
    return tuple(shared)


def _reduced(polynomial: Polynomial, factor: Monomial, content: int) -> Polynomial:
    if not factor and content == 1:
        return polynomial
    return {
        _without(monomial, factor) or (): coefficient // content
        for monomial, coefficient in polynomial.items()
    }


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by `factor`, where that is exact."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _split(
    dividend: Polynomial, divisor: Polynomial, for_remainder: bool
) -> tuple[Polynomial, Polynomial]:
    """Quotient and rest by a single term, taking out of each coefficient what goes in whole."""
    ((factor, count),) = divisor.items()
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in dividend.items():
        partner = _without(monomial, factor) if factor else monomial
        whole, remainder = divmod(coefficient, count) if partner is not None else (0, coefficient)
        if coefficient < 0 and remainder and monomial and not for_remainder and partner is not None:
            whole, remainder = whole + 1, remainder - count
        if partner is not None and whole:
            quotient[partner] = whole
        if remainder:
            rest[monomial] = remainder
    return quotient, rest


def split_by(terms: Polynomial, step: int) -> tuple[Polynomial, Polynomial]:
    """`terms == step*high + low`, where low has the terms that the step does not divide."""
    high: Polynomial = {}
    low: Polynomial = {}
    for monomial, coefficient in terms.items():
        whole, remainder = divmod(coefficient, step)
        if remainder and monomial:
            whole, remainder = 0, coefficient
        if whole:
            high[monomial] = whole
        if remainder:
            low[monomial] = remainder
    return high, low


def _exact_quotient(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """Long division by several terms; None unless it comes out even."""
    lead = min(divisor, key=order)
    quotient: Polynomial = {}
    rest = dict(dividend)
    # Division that does not come out even can go on for as many steps as there are monomials.
    patience = 2 * len(dividend)
    while rest and len(quotient) < patience:
        top = min(rest, key=order)
        partner = _without(top, lead)
        count, remainder = divmod(rest[top], divisor[lead])
        if partner is None or remainder:
            return None
        quotient[partner] = count
        rest = _without_zeros(_accumulate(rest, -count, divisor, partner))
    return None if rest else quotient
