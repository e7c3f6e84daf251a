"""Index arithmetic in normal form: integer polynomials over atoms.

Scalar index expressions enter and become a mapping from monomials to coefficients; the mapping
becomes an expression again, always the same one for equal polynomials. An atom is whatever is not
a sum, difference or product: a variable, `x // 4`, `min(a, b)`, a load. Because both directions
are canonical, terms cancel wherever they can.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

from graft.loop.ir import INDEX, Binary, BinaryKind, Const, Expr
from graft.loop.print import expression_text
from graft.loop.traverse import children, is_long, operands_first

Monomial = tuple[Expr, ...]  # sorted; () is the constant's
Polynomial = dict[Monomial, int]

ZERO, ONE = Const(0), Const(1)
# What indices never have; products of sums of data, multiplied out, grow exponentially.
_MOST_TERMS, _MOST_FACTORS, _LARGEST = 64, 16, 1 << 62


@lru_cache(maxsize=1 << 16)
def atom_key(atom: Expr) -> str:
    """What atoms are sorted by: their text, or a digest where that is long."""
    if not is_long(atom):
        return expression_text(atom)
    digests: dict[int, str] = {}
    for node in operands_first(atom):
        below = [digests[id(child)] for child in children(node)]
        own = expression_text(node) if not below else f"{type(node).__name__} {node.dtype}"
        detail = getattr(node, "kind", "") or getattr(node, "name", "")
        text = " ".join((own, detail, str(node.lanes), *below))
        digests[id(node)] = hashlib.sha256(text.encode()).hexdigest()
    return digests[id(atom)]


def is_index(expr: Expr) -> bool:
    """Whether the expression is a scalar of the index dtype."""
    return expr.dtype is INDEX and expr.lanes == 1


def polynomial(expr: Expr) -> Polynomial:
    """The normal form of a scalar index expression."""
    return dict(_polynomial(expr)) if isinstance(expr, Binary) else _leaf(expr)


def _leaf(expr: Expr) -> Polynomial:
    if isinstance(expr, Const):
        return {(): int(expr.value)} if expr.value else {}
    return {(expr,): 1}


@lru_cache(maxsize=1 << 16)
def _polynomial(expr: Binary) -> Polynomial:
    """Remembered: what is not small is gone through again at each of the nodes above it."""
    match expr:
        case Binary(BinaryKind.ADD, left, right):
            terms = plus(polynomial(left), polynomial(right))
        case Binary(BinaryKind.SUBTRACT, left, right):
            terms = plus(polynomial(left), polynomial(right), -1)
        case Binary(BinaryKind.MULTIPLY, left, right):
            terms = _product(polynomial(left), polynomial(right))
        case _:
            return {(expr,): 1}
    return terms if _is_small(terms) else {(expr,): 1}


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product, or anything that is not small where it would not be."""
    if len(left) * len(right) > _MOST_TERMS:
        return {(): _LARGEST}
    return times(left, right)


def _is_small(terms: Polynomial) -> bool:
    """Whether terms are as few and as small as those of indices; int64 data need not be."""
    return len(terms) <= _MOST_TERMS and all(
        len(monomial) <= _MOST_FACTORS and abs(count) < _LARGEST
        for monomial, count in terms.items()
    )


def plus(left: Polynomial, right: Polynomial, factor: int = 1) -> Polynomial:
    """`left + factor * right`."""
    total = dict(left)
    for monomial, coefficient in right.items():
        total[monomial] = total.get(monomial, 0) + factor * coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product, multiplied out."""
    total: Polynomial = {}
    for one, count in left.items():
        for other, coefficient in right.items():
            monomial = tuple(sorted(one + other, key=atom_key)) if one and other else one + other
            total[monomial] = total.get(monomial, 0) + count * coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def constant_value(terms: Polynomial) -> int | None:
    """The polynomial's value, if it is a constant."""
    if not terms:
        return 0
    return terms.get(()) if len(terms) == 1 else None


def expression(terms: Polynomial) -> Expr:
    """The expression for a polynomial: positive terms first, the constant last."""
    ordered = sorted(_recombined(terms).items(), key=_term_order)
    total: Expr | None = None
    for monomial, coefficient in ordered:
        if total is None:
            total = _term(monomial, coefficient)
        elif coefficient < 0:
            total = Binary(BinaryKind.SUBTRACT, total, _term(monomial, -coefficient))
        else:
            total = Binary(BinaryKind.ADD, total, _term(monomial, coefficient))
    return ZERO if total is None else total


def _recombined(terms: Polynomial) -> Polynomial:
    """With `x//c*c + x%c` as `x` and `x - x//c*c` as `x%c`, wherever they occur."""
    for (atom, *others), count in ((m, n) for m, n in terms.items() if m):
        match atom:
            case Binary(BinaryKind.FLOOR_DIVIDE, value, Const(value=int(divisor)) as size):
                if others or divisor <= 0 or count % divisor:
                    continue
                share = count // divisor
                whole = polynomial(value)
                rest = Binary(BinaryKind.FLOOR_MODULO, value, size)
                if terms.get((rest,)) == share:
                    left = plus(plus(terms, {(atom,): count, (rest,): share}, -1), whole, share)
                    return _recombined(left)
                present = [m for m in whole if m]
                if present and all(terms.get(m) == -share * whole[m] for m in present):
                    left = plus(plus(terms, {(atom,): count}, -1), whole, share)
                    return _recombined(plus(left, {(rest,): -share}))
            case _:
                continue
    return terms


def _term_order(item: tuple[Monomial, int]) -> tuple[bool, bool, list[str]]:
    monomial, coefficient = item
    return coefficient < 0, not monomial, [atom_key(atom) for atom in monomial]


def _term(monomial: Monomial, coefficient: int) -> Expr:
    if not monomial:
        return Const(coefficient)
    product = monomial[0]
    for atom in monomial[1:]:
        product = Binary(BinaryKind.MULTIPLY, product, atom)
    if coefficient == 1:
        return product
    return Binary(BinaryKind.MULTIPLY, product, Const(coefficient))


def quotient_and_rest(terms: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """`terms == divisor * quotient + rest`, taking out what goes in whole; for one-term divisors.

    A positive constant divisor leaves a constant of the rest between 0 and itself.
    """
    if len(divisor) != 1:
        return {}, terms
    ((factor, count),) = divisor.items()
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in terms.items():
        partner = _without(monomial, factor)
        whole, left = divmod(coefficient, count) if partner is not None else (0, coefficient)
        # A coefficient that goes in only partly stays whole, but for the constant: smaller terms
        # are easier to bound than they are to put together again.
        if monomial and left:
            whole, left = 0, coefficient
        if partner is not None and whole:
            quotient[partner] = whole
        if left:
            rest[monomial] = left
    return quotient, rest


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def content(terms: Polynomial, *others: int) -> int:
    """What divides every coefficient but the constant's, and the other numbers."""
    return math.gcd(*(c for monomial, c in terms.items() if monomial), *others)


def add(left: Expr, right: Expr, factor: int = 1) -> Expr:
    """`left + factor * right` in normal form."""
    return expression(plus(polynomial(left), polynomial(right), factor))


def multiply(left: Expr, right: Expr) -> Expr:
    """The product in normal form."""
    return expression(times(polynomial(left), polynomial(right)))
