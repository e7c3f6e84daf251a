"""Simplification: what goes in and what comes out is equal, and small where it should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.base.bounds import Range
from graft.base.dtypes import DType
from graft.loop.build import Term, compare, maximum, minimum, select, variable
from graft.loop.evaluate_expr import compile_expr
from graft.loop.ir import CompareKind, Const, Expr, Function, Var
from graft.loop.parse import from_text
from graft.loop.print import expression_text, to_text
from graft.loop.ranges import NATURAL, Context, interval
from graft.loop.simplify import simplify, simplify_stmt

RANGES = {"i": (0, 5), "j": (-3, 7), "k": (2, 2)}
CONTEXT = Context({name: Range(low, high) for name, (low, high) in RANGES.items()})
names = st.sampled_from(sorted(RANGES)).map(variable)
leaves = st.one_of(names, st.integers(-9, 9).map(lambda value: Term(Const(value))))


def simplified(function: Function) -> Function:
    """The function with a simplified body; scalar parameters are at least 0."""
    context = Context()
    for parameter in function.parameters:
        if isinstance(parameter, Var):
            context = context.variable(parameter.name, *NATURAL)
    return replace(function, body=simplify_stmt(function.body, context))


def larger(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    positive = st.integers(1, 9)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a // b, inner, positive),
        st.builds(lambda a, b: a % b, inner, positive),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
        st.builds(
            lambda kind, a, b, c, d: select(compare(kind, a, b), c, d),
            st.sampled_from(CompareKind),
            inner,
            inner,
            inner,
            inner,
        ),
    )


indices = st.recursive(leaves, larger, max_leaves=10).map(lambda term: term.expr)
values = st.fixed_dictionaries({name: st.integers(*bounds) for name, bounds in RANGES.items()})


@given(indices, values)
def test_index_arithmetic_keeps_its_value(expr: Expr, point: dict[str, int]) -> None:
    simple = simplify(expr, CONTEXT)
    assert compile_expr(simple)(point) == compile_expr(expr)(point)


@given(indices, values)
def test_intervals_hold_what_they_bound(expr: Expr, point: dict[str, int]) -> None:
    moving = {"j": CONTEXT.range_of("j")}
    low, high = interval(simplify(expr, CONTEXT), moving, CONTEXT)
    value = compile_expr(expr)(point)
    assert low is None or compile_expr(low)(point) <= value
    assert high is None or value <= compile_expr(high)(point)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(i * 6 + 5) // 6", "i"),
        ("(i * 16 + 3) % 16", "3"),
        ("(i * 16 + j) // 16", "i + j // 16"),
        ("(i * 16 + u) // 16", "i"),
        ("(i * 16 + u) % 16", "u"),
        ("(i * 4 + 2) // 8", "i // 2"),
        ("(i * 4 + 3) % 8", "i % 2 * 4 + 3"),
        ("i // 3 // 5", "i // 15"),
        ("n - n // 6 * 6", "n % 6"),
        ("n // 6 * 6 + n % 6", "n"),
        ("min(n, o * 8 + 8) - o * 8", "min(n - o * 8, 8)"),
        ("min(o * 6 + 6, n)", "o * 6 + 6"),
        ("max(n - o * 6, 6)", "n - o * 6"),
        ("min(u, 15) + max(u, -1)", "u * 2"),
        ("(i + j) * (i - j) - i * i", "j * j * -1"),
        ("select(u < 16, i, j)", "i"),
        ("i + j - i", "j"),
    ],
)
def test_ranges_decide(before: str, after: str) -> None:
    text = f"""kernel f(y: int64[1], n: int64, i: int64, j: int64) {{
      for o in 0 +: n // 6 {{ for u in 0 +: 16 {{ y[0] = {before} + 0 * o * u }} }}
    }}"""
    shown = to_text(simplified(from_text(text)))
    assert f"y[0] = {after}\n" in shown


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ramp(0, 1, 8) + broadcast(i * 8, 8)", "ramp(i * 8, 1, 8)"),
        ("broadcast(i, 8) * 3:int64x8", "broadcast(i * 3, 8)"),
        ("ramp(i * 8, 1, 8) // 16:int64x8", "broadcast(i // 2, 8)"),
        ("ramp(i * 8, 1, 8) % 8:int64x8", "ramp(0, 1, 8)"),
        ("ramp(i, 16, 4) % 16:int64x4", "broadcast(i % 16, 4)"),
        ("ramp(i, 16, 4) // 16:int64x4", "ramp(i // 16, 1, 4)"),
        ("ramp(i, 2, 4) - ramp(0, 2, 4)", "broadcast(i, 4)"),
        ("5:int64x4 - ramp(1, 1, 4)", "ramp(4, -1, 4)"),
        ("min(broadcast(3, 4), broadcast(5, 4))", "3:int64x4"),
    ],
)
def test_lanes(before: str, after: str) -> None:
    lanes = "8" if "8" in before.split(",")[-1] or ", 8)" in before else "4"
    text = f"kernel f(y: int64[{lanes}], i: int64) {{ y[ramp(0, 1, {lanes})] = {before} }}"
    assert f" = {after}\n" in to_text(simplified(from_text(text)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x[0] * 1.0", "x[0]"),
        ("x[0] + 0.0", "x[0] + 0.0"),  # -0.0 + 0.0 is 0.0
        ("x[0] - 0.0", "x[0]"),
        ("x[0] * 0.0", "x[0] * 0.0"),  # of infinity it is NaN
        ("max(x[0], -inf)", "x[0]"),
        ("x[0] - x[0]", "x[0] - x[0]"),
        ("select(x[0] < 1.0, 2.0, 2.0)", "2.0"),
        ("select(x[0] < 1.0, 0.0, -0.0)", "select(x[0] < 1.0, 0.0, -0.0)"),
        ("1.0 / 3.0", repr(float(np.float32(1) / np.float32(3)))),
        ("float32(7)", "7.0"),
    ],
)
def test_floats_change_only_where_it_is_exact(before: str, after: str) -> None:
    text = f"kernel f(x: float32[1], y: float32[1]) {{ y[0] = {before} }}"
    assert f" = {after}\n" in to_text(simplified(from_text(text)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for i in 0 +: 0 { y[0] = 1 }", "{ }"),
        ("for i in 3 +: 1 { y[0] = i }", "y[0] = 3"),
        ("parallel for i in 0 +: 1 { y[0] = i }", "parallel for i in 0 +: 1 { y[0] = i }"),
        ("for i in 0 +: n { if i < n { y[0] = i } }", "for i in 0 +: n { y[0] = i }"),
        ("for i in 0 +: n { if i >= n { y[0] = i } }", "{ }"),
        ("if n > 3 { if n > 2 { y[0] = 1 } else { y[0] = 2 } }", "if n > 3 { y[0] = 1 }"),
        ("if n > 3 { } else { if n < 4 { y[0] = 1 } }", "if n > 3 { } else { y[0] = 1 }"),
        ("allocate a: int64[3] in heap { y[0] = 1 }", "y[0] = 1"),
        ("let a: int64 = n { y[0] = a }", "y[0] = n"),
        ("y[0] = y[0]", "{ }"),
        # What was read may have been written since.
        (
            "if y[0] < 3 { y[0] = 5 if y[0] < 3 { y[0] = 7 } }",
            "if y[0] < 3 { y[0] = 5 if y[0] < 3 { y[0] = 7 } }",
        ),
        (
            "let a: int64 = y[0] { y[0] = 5 if a == y[0] { y[0] = 7 } }",
            "let a: int64 = y[0] { y[0] = 5 if a == y[0] { y[0] = 7 } }",
        ),
        (
            "for i in 0 +: y[0] { y[0] = 0 if i < y[0] { y[0] = 7 } }",
            "for i in 0 +: y[0] { y[0] = 0 if i < y[0] { y[0] = 7 } }",
        ),
        ("{ y[0] = 1 { y[0] = 2 } }", "y[0] = 1 y[0] = 2"),
    ],
)
def test_statements(before: str, after: str) -> None:
    def function(body: str) -> str:
        inner = "" if body == "{ }" else body
        return f"kernel f(y: int64[1], n: int64) {{ {inner} }}"

    expected = to_text(from_text(function(after)))
    assert to_text(simplified(from_text(function(before)))) == expected


def test_a_product_of_unknown_sign_is_not_decided() -> None:
    expr = minimum(variable("i") * variable("j"), 0).expr
    assert expression_text(simplify(expr, CONTEXT)) == "min(i * j, 0)"


def test_nothing_is_left_of_a_division_by_zero() -> None:
    rest = compare(CompareKind.NOT_EQUAL, variable("i") % 0, 0)
    assert simplify(rest.expr) != Const(True, DType.BOOL)
