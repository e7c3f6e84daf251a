"""The algebra under assumptions: what it simplifies, bounds and proves holds for every integer."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from graft.base.assumptions import Assumptions
from graft.base.bounds import UNBOUNDED, Range
from graft.base.dims import Dim, extreme, floor_divide, index_expr, modulo, symbol, symbols_of
from graft.base.polynomials import Polynomial, call_atom, opaque_atom, plus, terms_of, times
from graft.loop.evaluate_expr import compile_expr
from graft.loop.index import index_of

i, j, k = symbol("i"), symbol("j"), symbol("k")
# j may be negative, the range of k depends on i, and of u nothing is known.
NAMES = ("i", "j", "k", "u")
KNOWN = Assumptions({"i": Range(0, 5), "j": Range(-3, 7), "k": Range(i, i + 4)})
POINTS = st.fixed_dictionaries(
    {
        "i": st.integers(0, 5),
        "j": st.integers(-3, 7),
        "k": st.integers(0, 4),  # added to i
        "u": st.integers(-9, 9),
    }
).map(lambda point: {**point, "k": point["i"] + point["k"]})


class Tree(NamedTuple):
    """An operation on trees, symbols (strings) and integers."""

    operation: str
    operands: tuple[Any, ...]


INTEGERS: dict[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}
LEAVES = st.sampled_from(NAMES) | st.integers(-13, 13)
TREES = st.recursive(
    LEAVES,
    lambda trees: (
        st.builds(Tree, st.sampled_from(sorted(INTEGERS)), st.tuples(trees, trees))
        | st.builds(Tree, st.sampled_from(["//", "%"]), st.tuples(trees, st.integers(1, 12)))
        | st.builds(Tree, st.sampled_from(["+", "-"]), st.tuples(trees, trees))
    ),
    max_leaves=10,
)


def terms(tree: Any, known: Assumptions = KNOWN) -> Polynomial:
    """The tree's normal form; rejects a division by zero."""
    if not isinstance(tree, Tree):
        return dict(terms_of(symbol(tree) if isinstance(tree, str) else tree))
    left, right = (terms(operand, known) for operand in tree.operands)
    match tree.operation:
        case "+" | "-" as sign:
            return plus(left, right, 1 if sign == "+" else -1)
        case "*":
            return times(left, right)
        case "//" | "%":
            assume(right)
            return (floor_divide if tree.operation == "//" else modulo)(left, right, known)
        case function:
            dims = index_expr(left), index_expr(right)
            return dict(terms_of(extreme(function, dims, known)))


def number(tree: Any, point: dict[str, int]) -> int:
    """The tree's value; rejects points for which it has none."""
    if not isinstance(tree, Tree):
        return point[tree] if isinstance(tree, str) else int(tree)
    operands = [number(operand, point) for operand in tree.operands]
    assume(tree.operation not in ("//", "%") or operands[1])
    return INTEGERS[tree.operation](*operands)


def value(dim: Dim, point: dict[str, int]) -> int:
    """The dim's value; unlike those of shapes, its symbols may be negative."""
    return int(compile_expr(index_of(dim))(point))


@given(TREES, POINTS)
@example(Tree("//", (Tree("-", (7, "j")), 4)), {"i": 0, "j": -3, "k": 0, "u": 0})
def test_the_normal_form_has_the_same_value(tree: Any, point: dict[str, int]) -> None:
    expected = number(tree, point)
    assert value(index_expr(terms(tree)), point) == expected


@given(TREES, POINTS)
def test_bounds_hold_every_value(tree: Any, point: dict[str, int]) -> None:
    expected = number(tree, point)
    low, high = KNOWN.bounds(terms(tree))
    assert low <= expected <= high


@given(TREES, POINTS)
def test_intervals_hold_every_value(tree: Any, point: dict[str, int]) -> None:
    expected = number(tree, point)
    moving = {name: KNOWN.ranges[name] for name in ("j", "k")}
    low, high = KNOWN.interval(terms(tree), moving)
    assert low is None or value(low, point) <= expected
    assert high is None or expected <= value(high, point)
    assert not any(symbols_of(end) & moving.keys() for end in (low, high) if end is not None)


@given(TREES, TREES, POINTS)
def test_what_is_proved_is_true(tree: Any, fact: Any, point: dict[str, int]) -> None:
    expected = number(tree, point)
    if KNOWN.proves(terms(tree)):
        assert expected >= 0
    if number(fact, point) >= 0:
        known = KNOWN.with_fact(terms(fact))
        assert value(index_expr(terms(tree, known)), point) == expected
        assert expected >= 0 or not known.proves(terms(tree, known))


@pytest.mark.parametrize("divisor", [-5, -2, -1, 1, 2, 3, 8])
@pytest.mark.parametrize("factor", [-9, -3, -1, 1, 2, 7, 16])
@pytest.mark.parametrize("offset", [-7, 0, 1, 4])
def test_division_rounds_down(divisor: int, factor: int, offset: int) -> None:
    dividend = plus({}, dict(terms_of(factor * symbol("u") + offset)))
    quotient = index_expr(floor_divide(dividend, {(): divisor}, KNOWN))
    rest = index_expr(modulo(dividend, {(): divisor}, KNOWN))
    for u in range(-20, 20):
        point = {"i": 0, "j": 0, "k": 0, "u": u}
        expected = divmod(factor * u + offset, divisor)
        assert (value(quotient, point), value(rest, point)) == expected


@pytest.mark.parametrize(
    ("dim", "is_proved"),
    [
        (5 - i, True),
        (4 - i, False),
        (k - i, True),  # by the symbolic range
        (i + 4 - k, True),
        (7 * i - 7 * ((i + 1) // 2) + 7, True),  # by multiplying with the divisor
        (symbol("u"), False),
        (j * j, False),  # of a square nothing is known
        ((j + 3) * i, True),
    ],
)
def test_proofs(dim: Dim, is_proved: bool) -> None:
    assert KNOWN.proves(dict(terms_of(dim))) == is_proved


def test_facts_prove_what_ranges_do_not() -> None:
    u = symbol("u")
    positive = KNOWN.with_fact(dict(terms_of(u - i)))
    assert not KNOWN.proves(dict(terms_of(u)))
    assert positive.proves(dict(terms_of(u)))
    assert positive is KNOWN.with_fact(dict(terms_of(u - i)))


def test_ranges_simplify() -> None:
    inner = {(): 16}
    assert floor_divide(dict(terms_of(16 * j + i)), inner, KNOWN) == dict(terms_of(j))
    assert modulo(dict(terms_of(16 * j + i)), inner, KNOWN) == dict(terms_of(i))
    assert extreme("min", (i, 7), KNOWN) == i
    assert extreme("max", (k, i), KNOWN) == k


def test_what_is_opaque_is_one_of_its_alternatives() -> None:
    atom = opaque_atom(("x", object()), frozenset({"i"}), (i, 9))
    assert KNOWN.atom_bounds(atom) == (0, 9)
    assert KNOWN.proves(plus({(atom,): 1}, dict(terms_of(i)), -1))  # not by bounds alone
    assert not KNOWN.proves(plus({(atom,): 1}, dict(terms_of(i + 1)), -1))
    unknown = opaque_atom(("y", object()), frozenset())
    assert KNOWN.atom_bounds(unknown) == UNBOUNDED
    assert not KNOWN.proves({(unknown,): 1})


def test_atoms_are_one_object_while_they_are_used() -> None:
    atom = call_atom("floordiv", (i + 1, 2))
    assert call_atom("floordiv", (1 + i, 2)) is atom
    assert ((i + 1) // 2).terms == (((atom,), 1),)
    text = atom.text
    del atom
    gc.collect()
    assert call_atom("floordiv", (i + 1, 2)).text == text == "(i + 1)//2"


def test_long_texts_are_digests() -> None:
    atom = call_atom("min", (i, j))
    for _ in range(20):  # the text doubles each time
        dim = index_expr({(atom,): 1})
        atom = call_atom("max", (dim, index_expr({(call_atom("min", (dim, j)),): 1})))
    assert len(atom.text) < 100
    assert atom.symbols == {"i", "j"}
