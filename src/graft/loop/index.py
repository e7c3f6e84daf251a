"""The loop IR's index arithmetic as index expressions of `base`, and back.

A scalar index expression of the loop IR becomes a polynomial over atoms, in which all reasoning
happens (`base.polynomials`); a polynomial becomes an expression again, always the same one for
equal polynomials. What is no index arithmetic (a load, a cast) is an opaque atom. Dims of shapes
are such polynomials already: their symbols are scalars of the kernel under the same names.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, reduce
from operator import itemgetter

from graft.base.dims import AnyDim, Dim, IndexExpr, Unknown, index_expr, normalized
from graft.base.polynomials import (
    SYMBOL,
    Atom,
    Polynomial,
    call_atom,
    opaque_atom,
    plus,
    symbol_atom,
    terms_of,
    times,
)
from graft.loop.errors import LoopError
from graft.loop.ir import (
    INDEX,
    Binary,
    BinaryKind,
    Broadcast,
    Compare,
    CompareKind,
    Const,
    Expr,
    Ramp,
    Select,
    Var,
)
from graft.loop.print import expression_text
from graft.loop.traverse import children, is_long, operands_first, variables

ZERO, ONE = Const(0), Const(1)
Symbolic = IndexExpr | Unknown
# What indices never have; products of sums of data, multiplied out, grow exponentially.
_MOST_TERMS, _MOST_FACTORS, _LARGEST = 64, 16, 1 << 62
FUNCTIONS = {  # the algebra's names of operations
    BinaryKind.FLOOR_DIVIDE: "floordiv",
    BinaryKind.FLOOR_MODULO: "mod",
    BinaryKind.MINIMUM: "min",
    BinaryKind.MAXIMUM: "max",
}
_KINDS = {function: kind for kind, function in FUNCTIONS.items()}
_ARITHMETIC = (BinaryKind.ADD, BinaryKind.SUBTRACT, BinaryKind.MULTIPLY)


class UnknownExtentError(LoopError):
    """An extent that no expression over the kernel's scalars gives."""


def is_index(expr: Expr) -> bool:
    """Whether the expression is a scalar of the index dtype."""
    return expr.dtype is INDEX and expr.lanes == 1


def polynomial(expr: Expr) -> Polynomial:
    """The normal form of an index expression; of a vector, that of any of its lanes."""
    return dict(_polynomial(expr))


def _polynomial(expr: Expr) -> Polynomial:
    """The normal form, cached on the expression: callers must not change it."""
    normal: Polynomial | None = getattr(expr, "_normal", None)
    if normal is not None:
        return normal
    for node in operands_first(expr, _operands):
        normal = _normal_form(node)
        if normal is None:  # its atom is kept alive elsewhere: the table of atoms refers to it
            normal = {(_opaque(node),): 1}
        else:
            object.__setattr__(node, "_normal", normal)
    assert normal is not None
    return normal


def _operands(expr: Expr) -> tuple[Expr, ...]:
    """The operands whose normal forms an expression's own is made of, if it has none yet."""
    if hasattr(expr, "_normal"):
        return ()
    match expr:
        case Binary(kind, left, right) if kind in _ARITHMETIC or kind in FUNCTIONS:
            return left, right
        case Select(yes=yes, no=no):
            return yes, no
        case Broadcast(value) | Ramp(base=value) if value.lanes == 1:
            return (value,)
        case _:
            return ()


def _normal_form(expr: Expr) -> Polynomial | None:
    """The normal form of an expression whose operands have theirs; None of what is opaque."""
    match expr:
        case Const(value=int(value)):
            return {(): value} if value else {}
        case Var(name, dtype) if dtype is INDEX:
            return {(symbol_atom(name),): 1}
        case Binary(kind, left, right) if kind in _ARITHMETIC:
            terms = _combined(kind, _polynomial(left), _polynomial(right))
            return terms if _is_small(terms) else None
        case Binary(kind, left, right) if kind in FUNCTIONS:
            return {(call_atom(FUNCTIONS[kind], _arguments(left, right)),): 1}
        case Select(Compare(CompareKind.EQUAL, test, Const(value=1)), yes, no) if test == no:
            return {(call_atom("broadcast", _arguments(yes, no)),): 1}
        case Broadcast(value) if value.lanes == 1:
            return _polynomial(value)
        case Ramp(base, stride, lanes):
            lane = opaque_atom((f"lane {lanes}", None), frozenset(), (0, lanes - 1))
            return plus(_polynomial(base), {(lane,): stride} if stride else {})
        case _:
            return None


def _arguments(*exprs: Expr) -> tuple[Dim, ...]:
    return tuple([index_expr(_polynomial(expr)) for expr in exprs])


def _combined(kind: BinaryKind, left: Polynomial, right: Polynomial) -> Polynomial:
    match kind:
        case BinaryKind.ADD:
            return plus(left, right)
        case BinaryKind.SUBTRACT:
            return plus(left, right, -1)
        case _ if len(left) * len(right) > _MOST_TERMS:
            return {(): _LARGEST}  # not small, as the product would be
        case _:
            return times(left, right)


def _is_small(terms: Polynomial) -> bool:
    """Whether terms are as few and as small as those of indices; int64 data need not be."""
    return len(terms) <= _MOST_TERMS and all(
        len(monomial) <= _MOST_FACTORS and abs(count) < _LARGEST
        for monomial, count in terms.items()
    )


@lru_cache(maxsize=1 << 14)
def _opaque(expr: Expr) -> Atom:
    alternatives = _arguments(expr.yes, expr.no) if isinstance(expr, Select) else ()
    return opaque_atom((_sort_key(expr), expr), variables(expr), alternatives)


def _sort_key(expr: Expr) -> str:
    """What terms are sorted by: the text of their atoms, or a digest where that is long."""
    if not is_long(expr):
        return expression_text(expr)
    digests: dict[int, str] = {}
    for node in operands_first(expr):
        below = [digests[id(child)] for child in children(node)]
        own = expression_text(node) if not below else f"{type(node).__name__} {node.dtype}"
        detail = getattr(node, "kind", "") or getattr(node, "name", "")
        text = " ".join((own, detail, str(node.lanes), *below))
        digests[id(node)] = hashlib.sha256(text.encode()).hexdigest()
    return digests[id(expr)]


def expression(terms: Polynomial) -> Expr:
    """The expression for a polynomial: positive terms first, the constant last."""
    terms = _recombine(terms)
    ordered = [
        (coefficient < 0, not monomial, sorted(map(_form, monomial), key=_first), abs(coefficient))
        for monomial, coefficient in terms.items()
    ]
    if len(ordered) > 1:
        ordered.sort(key=_term_order)
    total: Expr | None = None
    for is_negative, _, factors, magnitude in ordered:
        if total is None:
            total = _term(factors, -magnitude if is_negative else magnitude)
        else:
            kind = BinaryKind.SUBTRACT if is_negative else BinaryKind.ADD
            total = Binary(kind, total, _term(factors, magnitude))
    return ZERO if total is None else total


_Form = tuple[str, Expr]  # the key that sorts an atom, and the atom
_first = itemgetter(0)


def _term_order(term: tuple[bool, bool, list[_Form], int]) -> tuple[bool, bool, list[str]]:
    is_negative, is_constant, factors, _ = term
    return is_negative, is_constant, [key for key, _ in factors]


def _term(factors: list[_Form], coefficient: int) -> Expr:
    if not factors:
        return Const(coefficient)
    product = reduce(
        lambda left, right: Binary(BinaryKind.MULTIPLY, left, right), [expr for _, expr in factors]
    )
    if coefficient == 1:
        return product
    return Binary(BinaryKind.MULTIPLY, product, Const(coefficient))


def _form(atom: Atom) -> _Form:
    """The atom as an expression, cached on the atom."""
    if atom.form is None:
        expr = _written(atom)
        atom.form = _sort_key(expr), expr
    form: _Form = atom.form
    return form


def _written(atom: Atom) -> Expr:
    if atom.kind is SYMBOL:
        return Var(atom.name)
    arguments = [index_of(argument) for argument in atom.arguments]
    if atom.kind == "broadcast":
        return reduce(_broadcast, arguments)
    kind = _KINDS[atom.kind]
    return reduce(lambda left, right: Binary(kind, left, right), arguments)


def _broadcast(left: Expr, right: Expr) -> Expr:
    return Select(Compare(CompareKind.EQUAL, right, ONE), left, right)


def _recombine(terms: Polynomial) -> Polynomial:
    """With `x//c*c + x%c` as `x` and `x - x//c*c` as `x%c`, wherever they occur."""
    for monomial, count in terms.items():
        if len(monomial) != 1 or monomial[0].kind != "floordiv":
            continue
        value, divisor = monomial[0].arguments
        if not isinstance(divisor, int) or divisor <= 0 or count % divisor:
            continue
        share = count // divisor
        whole = dict(terms_of(value))
        rest = (call_atom("mod", (value, divisor)),)
        if terms.get(rest) == share:
            left = plus(plus(terms, {monomial: count, rest: share}, -1), whole, share)
            return _recombine(left)
        present = [one for one in whole if one]
        if present and all(terms.get(one) == -share * whole[one] for one in present):
            left = plus(plus(terms, {monomial: count}, -1), whole, share)
            return _recombine(plus(left, {rest: -share}))
    return terms


def add(left: Expr, right: Expr, factor: int = 1) -> Expr:
    """`left + factor * right` in normal form."""
    return expression(plus(_polynomial(left), _polynomial(right), factor))


def multiply(left: Expr, right: Expr) -> Expr:
    """The product in normal form."""
    return expression(times(_polynomial(left), _polynomial(right)))


def index_of(dim: AnyDim) -> Expr:
    """The dim as an index expression of the loop IR."""
    if isinstance(dim, Unknown):
        raise UnknownExtentError("an extent is known only from data")
    return Const(dim) if isinstance(dim, int) else expression(dict(dim.terms))


def dim_of(expr: Expr) -> AnyDim:
    """The index expression as a dim; UNKNOWN if it is not one."""
    return normalized(index_expr(_polynomial(expr)))
