"""Printing and parsing: what one writes the other reads back; mistakes are pointed at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.base.dtypes import DType
from graft.base.errors import ParseError
from graft.loop.ir import (
    Allocate,
    AtomicAdd,
    Barrier,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
    While,
)
from graft.loop.parse import from_text
from graft.loop.print import to_text

X = Buffer("x", DType.FLOAT32, (Var("n"), Const(3)), alignment=16)
LOCAL = Buffer("local", DType.INT32, (), Scope.REGISTER)
N = Var("n")
SCALE = Var("scale", DType.FLOAT64)

leaves = st.one_of(
    st.integers(-(2**62), 2**62).map(Const),
    st.floats().map(lambda v: Const(math.nan if math.isnan(v) else v, DType.FLOAT32)),
    st.floats(allow_nan=False, width=16).map(lambda v: Const(v, DType.FLOAT16, 4)),
    st.booleans().map(lambda v: Const(v, DType.BOOL)),
    st.sampled_from([N, SCALE]),
)


def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(BinaryKind), inner, inner),
        st.builds(Compare, st.sampled_from(CompareKind), inner, inner),
        st.builds(Select, inner, inner, inner),
        st.builds(Cast, st.sampled_from([DType.INT8, DType.FLOAT8E4M3FN]), inner),
        st.builds(lambda a, b: Call("pow", (a, b), a.dtype), inner, inner),
        st.builds(lambda a: Call("isnan", (a,), DType.BOOL), inner),
        st.builds(Ramp, inner, st.integers(-3, 3), st.integers(2, 9)),
        st.builds(Broadcast, inner, st.integers(2, 9)),
        st.builds(lambda a, b: Load(X, (a, b)), inner, inner),
    )


exprs = st.recursive(leaves, larger, max_leaves=12)


def in_function(body: Stmt) -> Function:
    return Function("f", (X, N, SCALE), body, ('a "note"', "é"))


@given(exprs)
def test_expressions_come_back(expr: Expr) -> None:
    function = in_function(Store(X, (N, Const(0)), expr))
    assert from_text(to_text(function)) == function


STORE = Store(X, (N, Const(1)), Const(0.5, DType.FLOAT32))
STATEMENTS: list[Stmt] = [
    Block(()),
    Block((STORE,)),
    Block((STORE, Block((STORE, STORE)), Block(()))),
    *[For(Var("i"), N, Const(4), STORE, kind) for kind in LoopKind],
    For(Var("i", DType.INT32), Const(0, DType.INT32), N, Block(())),
    If(Const(True, DType.BOOL), STORE),
    Block((STORE, If(Const(True, DType.BOOL), STORE, Block((STORE, Barrier()))))),
    While(Compare(CompareKind.LESS, N, Const(-3)), STORE),
    Let(Var("v", DType.FLOAT32, 8), Const(1.0, DType.FLOAT32, 8), STORE),
    Allocate(LOCAL, Store(LOCAL, (), Const(1, DType.INT32), Const(False, DType.BOOL))),
    AtomicAdd(X, (N, Const(0)), Const(math.inf, DType.FLOAT32)),
    Prefetch(X, (Const(0), Const(2))),
    Prefetch(X, (Const(0), Const(2)), level=2),
]


@pytest.mark.parametrize("stmt", STATEMENTS, ids=lambda stmt: type(stmt).__name__)
def test_statements_come_back(stmt: Stmt) -> None:
    function = in_function(stmt)
    text = to_text(function)
    assert from_text(text) == function
    assert to_text(from_text(text)) == text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x[0] = ", "line 2, column 1: expected an expression, found '}'"),
        ("x[0] = y", "line 2, column 1: 'y' is not in scope"),
        ("y[0] = 1.0", "no buffer 'y' is in scope"),
        ("x[0] = min(1)", "expected 2 arguments, found 1"),
        ("for in in 0 +: 3 { }", "'in' is a reserved word"),
        ("for i in 0 { }", "expected '+:', found '{'"),
        ("x[0] = $", "unexpected character"),
        ("x[0] = exp()", "'exp' needs its dtype"),
        ("allocate a: float32[1] in argument { }", "expected 'heap', 'shared' or 'register'"),
        ("x[0] = " + "(" * 300, "nested too deeply"),
        ("{" * 300, "nested too deeply"),
    ],
)
def test_mistakes_are_pointed_at(body: str, message: str) -> None:
    with pytest.raises(ParseError) as failure:
        from_text(f"kernel f(x: float32[4]) {{ {body}\n}}")
    assert message in failure.value.message


def test_text_after_the_end_is_refused() -> None:
    with pytest.raises(ParseError, match="expected the end, found 'kernel'"):
        from_text("kernel f() { }\nkernel g() { }")
