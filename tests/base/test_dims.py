"""Symbolic dimensions: they compute what integers compute, stay canonical and read back."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from graft.base.dim_questions import provably_different, provably_equal
from graft.base.dims import (
    LARGEST_SIZE,
    UNKNOWN,
    AnyDim,
    Dim,
    IndexExpr,
    Unknown,
    broadcast_dim,
    ceildiv,
    dim_max,
    dim_min,
    evaluate_dim,
    parse_dim,
    product,
    substitute,
    symbol,
    symbols_of,
)
from graft.base.errors import EvaluationError, ParseError, TypeRuleError

n, m, h = symbol("n"), symbol("m"), symbol("h")


class BroadcastError(Exception):
    """The integers do not broadcast."""


def broadcast_integers(left: int, right: int) -> int:
    if 1 in (left, right) or left == right:
        return right if left == 1 else left
    raise BroadcastError


def ceildiv_integers(left: int, right: int) -> int:
    quotient, remainder = divmod(left, right)
    return quotient + (remainder != 0)


# Each operation on dimensions beside what it means for integers.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (operator.floordiv, operator.floordiv),
    "%": (operator.mod, operator.mod),
    "negative": (operator.neg, operator.neg),
    "min": (dim_min, min),
    "max": (dim_max, max),
    "broadcast": (broadcast_dim, broadcast_integers),
    "ceildiv": (ceildiv, ceildiv_integers),
}


class Tree(NamedTuple):
    """An operation of the table above on trees, symbols (strings) and integers."""

    operation: str
    operands: tuple[Any, ...]


def compute(tree: Any, bindings: dict[str, Any], column: int) -> Any:
    """The tree's value with the table's first (dimensions) or second (integers) functions."""
    if isinstance(tree, Tree):
        operands = [compute(operand, bindings, column) for operand in tree.operands]
        return OPERATIONS[tree.operation][column](*operands)
    return bindings[tree] if isinstance(tree, str) else tree


def on_dims(tree: Any) -> AnyDim:
    """The tree's value as a dimension; rejects what has no meaning for any binding."""
    try:
        dim: AnyDim = compute(tree, {name: symbol(name) for name in NAMES}, 0)
    except (ZeroDivisionError, TypeRuleError):
        assume(False)
    return dim


def on_integers(tree: Any, bindings: dict[str, int]) -> int:
    """The tree's value under the bindings; rejects those for which it has none."""
    try:
        value: int = compute(tree, bindings, 1)
    except (ZeroDivisionError, BroadcastError):
        assume(False)
    return value


NAMES = ("a", "b", "c.d", "batch size", 'é\n"\\')
LEAVES = st.sampled_from(NAMES) | st.integers(-13, 13)
BINARY = ["+", "-", "*", "//", "%", "min", "max", "broadcast", "ceildiv"]
TREES = st.recursive(
    LEAVES,
    lambda trees: (
        st.builds(Tree, st.sampled_from(BINARY), st.tuples(trees, trees))
        | st.builds(Tree, st.sampled_from(["//", "%"]), st.tuples(trees, st.integers(1, 12)))
        | st.builds(Tree, st.sampled_from(["+", "-"]), st.tuples(trees, trees))
        | st.builds(Tree, st.just("negative"), st.tuples(trees))
    ),
    max_leaves=10,
)
BINDINGS = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})
SPARSE_BINDINGS = st.fixed_dictionaries({name: st.sampled_from([0, 1, 1, 7]) for name in NAMES})


@given(TREES, BINDINGS | SPARSE_BINDINGS)
def test_dimensions_compute_what_integers_compute(tree: Any, bindings: dict[str, int]) -> None:
    expected = on_integers(tree, bindings)
    dim = on_dims(tree)
    assume(dim is not UNKNOWN)
    assert evaluate_dim(dim, bindings) == expected
    assert isinstance(dim, IndexExpr) == bool(symbols_of(dim))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("polynomial", [n, -n, 3 * n - 7, 6 * n + 4, n * m - 5, 4 * n * n + 2 * m])
@pytest.mark.parametrize("other", [2, 3, -4, 6, n, m + 1, 2 * n, n * m, n - 4])
def test_every_operator_on_a_grid(operation: str, polynomial: IndexExpr, other: Dim) -> None:
    symbolic, integral = OPERATIONS[operation]
    arity = 1 if operation == "negative" else 2
    for n_value, m_value, swap in itertools.product(range(8), range(8), (False, True)):
        bindings = {"n": n_value, "m": m_value}
        operands = [polynomial, other][:arity]
        if swap:
            operands.reverse()
        try:
            expected = integral(*(evaluate_dim(operand, bindings) for operand in operands))
        except (ZeroDivisionError, BroadcastError):
            continue
        assert evaluate_dim(symbolic(*operands), bindings) == expected


@given(TREES)
def test_text_reads_back(tree: Any) -> None:
    dim = on_dims(tree)
    assume(dim is not UNKNOWN)
    assert parse_dim(str(dim)) == dim
    assert hash(parse_dim(str(dim))) == hash(dim)


@given(TREES, st.lists(TREES, min_size=2, max_size=2), BINDINGS)
@example(Tree("//", ("a", "b")), [Tree("*", ("a", "c.d")), "a"], dict.fromkeys(NAMES, 3))
def test_substitution_commutes_with_evaluation(
    tree: Any, replacements: list[Any], bindings: dict[str, int]
) -> None:
    values = [on_integers(replacement, bindings) for replacement in replacements]
    dims = [on_dims(replacement) for replacement in replacements]
    replaced = [dim_max(dim, 0) for dim in dims]  # a symbol is never negative
    final = bindings | {"a": max(values[0], 0), "b": max(values[1], 0)}
    expected = on_integers(tree, final)
    dim = on_dims(tree)
    assume(UNKNOWN not in (dim, *replaced))
    result = substitute(dim, {"a": replaced[0], "b": replaced[1]})
    assume(result is not UNKNOWN)
    assert evaluate_dim(result, bindings) == expected


@given(st.lists(TREES, min_size=1, max_size=5), st.randoms())
def test_reordered_sums_and_products_are_equal(trees: list[Any], random: Any) -> None:
    dims = [on_dims(tree) for tree in trees]
    shuffled = dims.copy()
    random.shuffle(shuffled)
    for operation in (operator.add, operator.mul, dim_min, dim_max):
        results = [dims[0], shuffled[0]]
        for one, other in zip(dims[1:], shuffled[1:], strict=True):
            results = [operation(results[0], one), operation(results[1], other)]
        assume(UNKNOWN not in results)
        assert results[0] == results[1]
        assert hash(results[0]) == hash(results[1])
        assert str(results[0]) == str(results[1])


@given(TREES, TREES, BINDINGS)
def test_what_is_provable_is_true(left: Any, right: Any, bindings: dict[str, int]) -> None:
    values = on_integers(left, bindings), on_integers(right, bindings)
    dims = on_dims(left), on_dims(right)
    if provably_equal(*dims):
        assert values[0] == values[1]
    if provably_different(*dims):
        assert values[0] != values[1]


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (4 * n // 2, "2*n"),
        ((2 * n + 3) // 1, "2*n + 3"),
        (n * m // n, "m"),
        ((n * m + m) // m, "n + 1"),
        (6 * n * m // (4 * n), "m + m//2"),
        ((5 * n + 3) // 5, "n"),
        ((5 * n - 3) // 5, "n - 1"),
        ((2 * n + 7) // 2, "n + 3"),
        ((h - 3) // 2, "(h + 1)//2 - 2"),
        ((4 * n + 3) // 6, "(2*n + 1)//3"),
        ((4 * n + 3) % 6, "2*((2*n + 1)%3) + 1"),
        (n // -2, "(-n)//2"),
        ((m - n) // 2, "(m - n)//2"),
        ((m - 5 * n) // 2, "-2*n + (m - n)//2"),
        (n // 2 // 3, "n//6"),
        ((n // 2 + 5) // 3, "(n + 4)//6 + 1"),
        (((h - 1) // 2) // 2 + 1, "(h + 3)//4"),
        (4 * n * (h + 1) // (h + 1), "4*n"),
        ((n * n - 1) // (n - 1), "n + 1"),
        (n // (n + 1), "0"),
        (n % (n + 1), "n"),
        ((n % 4) // 4, "0"),
        ((n % 4) % 4, "n%4"),
        (6 * n % 3, "0"),
        ((6 * n + 7) % 3, "1"),
        ((n + m * h) % m, "n%m"),
        (0 // n, "0"),
        (7 // n, "7//n"),
        (-(n // 2), "-(n//2)"),
        (n * (h // 2), "n*(h//2)"),
        ((h % 2) * (h % 2), "(h%2)*(h%2)"),
        (5 - n, "-n + 5"),
        (n * n * m - 2 * n * m + n - 1, "m*n*n - 2*m*n + n - 1"),
        (2 * n + (h - 3) // 2 + 1, "2*n + (h + 1)//2 - 1"),
        (dim_max(n, 0), "n"),
        (dim_max(n * m + 2, 2, -5), "m*n + 2"),
        (dim_max(n - 1, 0), "max(n - 1, 0)"),
        (dim_min(n, 0), "0"),
        (dim_min(n + 1, n, n), "n"),
        (dim_min(n, 100, 200), "min(n, 100)"),
        (dim_min(dim_min(n, 100), dim_min(m, 7)), "min(m, n, 7)"),
        (dim_min(n % 8, 7), "n%8"),
        (dim_max(n - 2, 0) + dim_min(n, 2), "n"),
        (5 * dim_max(n - 2, 0) + 3 * dim_min(n, 2), "3*n + 2*max(n - 2, 0)"),
        (h - dim_max(2 - n, 0) - dim_min(n, 2), "h - 2"),
        (dim_max(m, n) + dim_min(n, m) + dim_min(h, 1), "m + n + min(h, 1)"),
        (dim_max(n, 2) - dim_min(n, 2), "max(n, 2) - min(n, 2)"),
        (dim_max(n, 2) + dim_min(n, 3), "max(n, 2) + min(n, 3)"),
        (broadcast_dim((n + 1) // 2, dim_max((n + 1) // 2 - 1, 0) + 1), "(n + 1)//2"),
        (broadcast_dim(dim_max(n, 1), n, m), "broadcast(m, n)"),
        (broadcast_dim(dim_max(n, 2), n), "broadcast(max(n, 2), n)"),
        (broadcast_dim(n, 1), "n"),
        (broadcast_dim(1, 1), "1"),
        (broadcast_dim(n, 5), "5"),
        (broadcast_dim(0, n), "0"),
        (broadcast_dim(n, n), "n"),
        (broadcast_dim(broadcast_dim(n, m), broadcast_dim(h, n)), "broadcast(h, m, n)"),
        (ceildiv(n, 2), "(n + 1)//2"),
        (ceildiv(n * m, n), "m"),
        (ceildiv(7, 2), "4"),
        (ceildiv(-7, 2), "-3"),
        (product([2, n, 3, m, n]), "6*m*n*n"),
        (product([]), "1"),
        (product([n, 0]), "0"),
        (symbol("sequence length") + symbol("x.1"), '"sequence length" + x.1'),
        (symbol('a"\\\n'), '"a\\"\\\\\\n"'),
        (symbol("") * 2, '2*""'),
        (symbol("min") + symbol("2n") + symbol("größe"), '"2n" + "größe" + min'),
    ],
)
def test_simplified_form(dim: AnyDim, text: str) -> None:
    assert str(dim) == text
    assert parse_dim(text) == dim


def test_whatever_is_constant_is_a_plain_integer() -> None:
    for dim in (n - n, 0 * n, n // n, (n + 1) - n, 4 * n % 4, substitute(n + 1, {"n": 2})):
        assert type(dim) is int
    for dim in (dim_min(np.int64(3), 5), product([np.int32(2), np.uint8(200)]), ceildiv(True, 1)):
        assert type(dim) is int


def test_equality_and_hash_follow_the_canonical_form() -> None:
    assert (n + m) * (n - m) == n * n - m * m
    assert len({n + m, m + n, 2 * n + m - n}) == 1
    assert n != m
    assert n != 3
    assert n != "n"
    assert symbol("floordiv") + 1 != n


def test_reads_what_people_write() -> None:
    assert parse_dim(" 2*n+( h-3 )//2\t+ 1") == 2 * n + (h - 3) // 2 + 1
    assert parse_dim("-n//2") == (-n) // 2
    assert parse_dim("--7 % -4") == -1
    assert parse_dim("n - m - h") == n - m - h
    assert parse_dim("7//2*n % 5") == (3 * n) % 5
    assert parse_dim('"n"') == n
    assert parse_dim("max(min(n, 4), m, 0)") == dim_max(dim_min(n, 4), m)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a number, a symbol or '(', found the end at column 1"),
        ("2*", "expected a number, a symbol or '(', found the end at column 3"),
        ("n m", "expected an operator, found 'm' at column 3"),
        ("(n", "expected ')', found the end at column 3"),
        ("min(n,)", "expected a number, a symbol or '(', found ')' at column 7"),
        ("n + ?", "unexpected character '?' at column 5"),
        ('n + "open', "unexpected character '\"' at column 5"),
        ("n < 3", "unexpected character '<' at column 3"),
        ("sqrt(n)", "no function 'sqrt'"),
        ('"\\x"', "Invalid \\escape"),
        ("n//(m - m)", "divides by zero"),
        ("(" * 3000 + "n" + ")" * 3000, "nested too deeply"),
        ("*".join(["n"] * (LARGEST_SIZE + 1)), "too large"),
    ],
)
def test_text_that_is_no_dimension(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_dim(text)
    assert message in str(caught.value)


def test_substitution() -> None:
    expr = (n + 3) // 2 * m + dim_min(n, h)
    assert symbols_of(expr) == {"n", "m", "h"}
    assert substitute(expr, {"n": 2 * h - 3}) == h * m + dim_min(2 * h - 3, h)
    assert substitute(expr, {"n": m, "m": n}) == (m + 3) // 2 * n + dim_min(m, h)
    assert substitute(expr, {"absent": 3}) == expr
    assert substitute(expr, {"n": np.int64(5), "m": 2, "h": 1}) == 9
    assert substitute(expr, {"n": UNKNOWN}) is UNKNOWN
    assert substitute(7, {"n": 1}) == 7
    assert symbols_of(7) == symbols_of(UNKNOWN) == frozenset()


@pytest.mark.parametrize(
    ("dim", "bindings", "message"),
    [
        (n * m + h, {"m": 3}, "the dimension 'm*n + h' has no value: h, n not bound"),
        (symbol("a b"), {}, 'the dimension \'"a b"\' has no value: "a b" not bound'),
        (n, {"n": -1}, "the dimension 'n' cannot be -1"),
        (m // n, {"n": 0, "m": 1}, "the dimension 'm//n' has no value here: "),
        (broadcast_dim(n, m), {"n": 4, "m": 3}, "extents 3 and 4 do not broadcast"),
        (UNKNOWN, {}, "the dimension '?' is known only from data"),
    ],
)
def test_evaluation_says_what_is_missing(
    dim: AnyDim, bindings: dict[str, int], message: str
) -> None:
    with pytest.raises(EvaluationError) as caught:
        evaluate_dim(dim, bindings)
    assert message in str(caught.value)


def test_integers_that_do_not_broadcast() -> None:
    with pytest.raises(TypeRuleError, match="extents 0 and 3 do not broadcast"):
        broadcast_dim(3, 0)
    with pytest.raises(TypeRuleError, match="extents 3 and 4 do not broadcast"):
        broadcast_dim(broadcast_dim(n, 3), 4)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda dim: dim < 3,
        lambda dim: dim >= n,
        lambda dim: dim <= 3,
        lambda dim: np.int64(3) < dim,
        lambda dim: bool(dim),
        lambda dim: int(dim),
        lambda dim: range(dim),
        lambda dim: dim + 1.5,
        lambda dim: "a" + dim,
        lambda dim: dim / 2,
        lambda dim: dim_min(dim, 1.5),  # type: ignore[arg-type]
        lambda dim: np.array([dim], np.int64),
    ],
)
@pytest.mark.parametrize("dim", [n + 1, UNKNOWN], ids=str)
def test_misuse_is_a_type_error(misuse: Callable[[Any], Any], dim: AnyDim) -> None:
    with pytest.raises(TypeError):
        misuse(dim)


def test_misuse_messages_name_the_remedy() -> None:
    with pytest.raises(TypeError, match="'n - 1' has no truth value; use provably_different"):
        bool(n - 1)
    with pytest.raises(TypeError, match="'n - 1' is not a number; bind it with evaluate_dim"):
        np.array([n - 1]).astype(int)
    with pytest.raises(ZeroDivisionError):
        n // 0
    with pytest.raises(ZeroDivisionError):
        5 % (n - n)


def test_expressions_do_not_change() -> None:
    expr: Any = n * m - 1
    with pytest.raises(AttributeError):
        expr.terms = ()
    assert not hasattr(expr, "__dict__")
    assert copy.deepcopy(expr) == expr
    rebuild, arguments = expr.__reduce__()  # what carries it into another process
    assert rebuild(*arguments) == expr


def test_provable_facts() -> None:
    assert provably_equal(n + m, m + n)
    assert not provably_equal(n, m)
    assert provably_different(n, n + 1)
    assert provably_different(n + 1, 0)
    assert provably_different(0, n * m + n // 2 + 1)
    assert provably_different(n % 4, 4)
    assert provably_different(-dim_max(n, 3), 0)
    assert not provably_different(n, 0)
    assert not provably_different(n, m)
    assert not provably_different(n - m, 0)
    assert provably_different(3, 4)
    assert not provably_different(3, 3)


def test_numpy_object_arrays_hold_dimensions() -> None:
    dims = np.array([n, 3, m * 2])
    assert dims.dtype == object
    integers = np.array([1, 2, 3])
    assert (dims + integers).tolist() == [n + 1, 5, 2 * m + 3]
    assert (integers - dims).tolist() == [1 - n, -1, 3 - 2 * m]
    assert np.multiply(dims, integers).tolist() == [n, 6, 6 * m]
    assert np.floor_divide(dims, 2).tolist() == [n // 2, 1, m]
    assert np.remainder(dims, np.int32(2)).tolist() == [n % 2, 1, 0]
    assert np.negative(dims).tolist() == [-n, -3, -2 * m]
    assert (n * integers).tolist() == [n, 2 * n, 3 * n]
    assert (integers // n).tolist() == [1 // n, 2 // n, 3 // n]
    assert np.concatenate([dims, integers[:1]]).tolist() == [n, 3, 2 * m, 1]
    assert np.prod(dims) == 6 * n * m
    assert np.sum(dims) == n + 2 * m + 3
    assert type(np.prod(np.array([], object))) is int
    assert (dims == n).tolist() == [True, False, False]
    assert (dims[None, :2] + np.array([[n], [0]], object)).tolist() == [[2 * n, n + 3], [n, 3]]


@pytest.mark.parametrize("integer", [np.int64(3), np.uint8(3), np.int32(3)])
def test_numpy_integers_are_integers(integer: Any) -> None:
    assert n + integer == integer + n == n + 3
    assert integer - n == 3 - n
    assert integer * n == n * integer == 3 * n
    assert n // integer == n // 3
    assert integer // n == 3 // n
    assert n % integer == n % 3
    assert n != integer
    assert broadcast_dim(n, integer) == 3
    results = [n + integer - n, (n * integer) // n, broadcast_dim(n, integer)]
    assert all(type(result) is int for result in results)


def test_unknown_absorbs() -> None:
    assert (UNKNOWN + 3) // 2 is UNKNOWN
    operations = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
    for operation in [*operations, dim_min, dim_max, ceildiv]:
        for other in (0, 3, n, UNKNOWN, np.int64(4)):
            assert operation(UNKNOWN, other) is UNKNOWN
            assert operation(other, UNKNOWN) is UNKNOWN
    assert -UNKNOWN is UNKNOWN
    assert product([2, UNKNOWN, n]) is UNKNOWN
    assert (np.array([1, n], object) * UNKNOWN).tolist() == [UNKNOWN, UNKNOWN]
    assert (UNKNOWN + np.array([1, 2])).tolist() == [UNKNOWN, UNKNOWN]


def test_unknown_equals_only_itself() -> None:
    others: list[object] = [3, "?", n]
    assert UNKNOWN not in others
    assert [UNKNOWN] == [UNKNOWN]
    assert n != UNKNOWN
    assert copy.deepcopy(UNKNOWN) is UNKNOWN
    assert str(UNKNOWN) == repr(UNKNOWN) == "?"
    for other in (UNKNOWN, n, 0):
        assert not provably_equal(UNKNOWN, other)
        assert not provably_equal(other, UNKNOWN)
        assert not provably_different(UNKNOWN, other)
        assert not provably_different(other, UNKNOWN)


def test_broadcasting_with_an_unknown_extent() -> None:
    assert broadcast_dim(UNKNOWN, 5) == 5
    assert broadcast_dim(UNKNOWN, 1) is UNKNOWN
    assert broadcast_dim(n, UNKNOWN) is UNKNOWN


def test_large_expressions_become_unknown() -> None:
    many = [symbol(f"s{index}") for index in range(LARGEST_SIZE + 1)]
    assert isinstance(sum(many[:-1]), IndexExpr)
    assert isinstance(sum(many), Unknown)
    assert sum(many[:40]) * sum(many[:40]) is UNKNOWN
    grown: AnyDim = n
    for _ in range(30):  # would double each time
        grown = grown // 7 + grown // 11
    assert grown is UNKNOWN


def test_deep_expressions_are_read_back_and_evaluated() -> None:
    deep: AnyDim = n
    deepest, depth = deep, 0
    while deep is not UNKNOWN:
        deepest, depth = deep, depth + 1
        deep = -(5 - deep) % (m + 2)
    assert depth > 20
    assert parse_dim(str(deepest)) == deepest
    assert 0 <= evaluate_dim(deepest, {"n": 4, "m": 9}) < 11
    assert symbols_of(deepest) == {"n", "m"}


def test_long_division_gives_up_in_time() -> None:
    power = product([n] * 150)
    several = product([n + m + h + 1] * 3)
    assert str(power // several) == f"({power})//({several})"
