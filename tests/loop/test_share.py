"""Expressions are graphs: what walks over them takes as long as they are large in memory."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dtypes import DType
from graft.loop.index import polynomial
from graft.loop.interpret import interpret
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Broadcast,
    Buffer,
    Call,
    Compare,
    CompareKind,
    Const,
    Expr,
    Function,
    Let,
    Load,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.parse import from_text
from graft.loop.print import to_text
from graft.loop.share import name_shared
from graft.loop.simplify import simplify, simplify_stmt
from graft.loop.traverse import is_long, map_expr, walk_expr, walk_stmt
from graft.loop.verify import verify

X = Buffer("x", DType.FLOAT32, (Const(6),))
Y = Buffer("y", DType.FLOAT32, (Const(8),))
DEPTH = 4000


def doubled(expr: Expr, times: int) -> Expr:
    """An expression with 2^times paths through it."""
    for _ in range(times):
        expr = Binary(BinaryKind.ADD, expr, expr)
    return expr


def alternating(expr: Expr, times: int) -> Expr:
    for number in range(times):
        expr = Call(("sin", "cos")[number % 2], (expr,), expr.dtype)
    return expr


def function(value: Expr, condition: Expr | None = None) -> Function:
    return Function("kernel", (X, Y), Store(Y, (Ramp(Const(0), 1, 8),), value, condition))


def run(kernel: Function) -> np.ndarray:
    result = np.full(8, 7, np.float32)
    interpret(verify(kernel), {"x": np.arange(1, 7, dtype=np.float32), "y": result})
    return result


def test_equal_expressions_are_compared_object_by_object() -> None:
    x = Load(X, (Const(0),))
    assert doubled(x, 200) == doubled(Load(X, (Const(0),)), 200)
    assert hash(doubled(x, 200)) == hash(doubled(x, 200))
    assert doubled(x, 200) != doubled(Load(X, (Const(1),)), 200)
    assert alternating(x, DEPTH) == alternating(x, DEPTH)
    assert alternating(x, DEPTH) != alternating(x, DEPTH + 1)


def test_zeros_of_different_sign_differ() -> None:
    plus, minus = Const(0.0, DType.FLOAT32), Const(-0.0, DType.FLOAT32)
    assert plus != minus
    chosen = Select(Compare(CompareKind.LESS, Var("i"), Const(3)), plus, minus)
    assert simplify(chosen) == chosen


def test_walks_and_changes_take_each_object_once() -> None:
    expr = doubled(Load(X, (Const(0),)), 200)
    assert len(list(walk_expr(expr))) == 202
    changes = []
    changed = map_expr(lambda node: changes.append(node) or node, expr)
    assert changed is expr
    assert len(changes) == 202
    assert simplify(alternating(Load(X, (Const(0),)), DEPTH)).dtype is DType.FLOAT32
    assert is_long(doubled(Const(0), 100))
    assert not is_long(doubled(Const(0), 5))


def test_products_of_data_are_not_multiplied_out() -> None:
    counts = Buffer("n", DType.INT64, (Const(6),))
    expr: Expr = Load(counts, (Const(0),))
    for _ in range(40):
        more = Binary(BinaryKind.ADD, expr, Const(1))
        expr = Binary(BinaryKind.MULTIPLY, more, more)
    expr = simplify(expr)
    assert len(polynomial(expr)) <= 64
    assert len(list(walk_expr(expr))) < 1000


def test_small_expressions_have_no_names() -> None:
    small = function(doubled(Broadcast(Const(1.0, DType.FLOAT32), 8), 5))
    assert name_shared(small) is small


def lets(stmt: Stmt) -> int:
    return sum(isinstance(one, Let) for one in walk_stmt(stmt))


@pytest.mark.parametrize("times", [12, 100])
def test_shared_parts_have_names(times: int) -> None:
    x = Broadcast(Load(X, (Const(1),)), 8)
    kernel = name_shared(function(doubled(x, times)))
    assert 0 < lets(kernel.body) <= times
    np.testing.assert_array_equal(run(kernel), np.full(8, 2.0 ** (times + 1), np.float32))
    text = to_text(kernel)
    assert len(text) < 100 * times
    assert from_text(text) == kernel


def test_deep_expressions_are_cut() -> None:
    kernel = name_shared(function(alternating(Broadcast(Load(X, (Const(1),)), 8), DEPTH)))
    assert lets(kernel.body) >= DEPTH // 128
    assert len(to_text(kernel)) < 20 * DEPTH


LANES = Ramp(Const(0), 1, 8)
INSIDE = Compare(CompareKind.LESS, LANES, Const(6, DType.INT64, 8))
NOTHING = Const(0.0, DType.FLOAT32, 8)


@pytest.mark.parametrize("flipped", [False, True])
def test_what_masks_leave_out_is_not_read(flipped: bool) -> None:
    """Elements 6 and 7 are none of x's: reading them is an error."""
    value = doubled(Load(X, (LANES,)), 12)
    condition = Compare(CompareKind.GREATER_EQUAL, LANES, INSIDE.right) if flipped else INSIDE
    sides = (NOTHING, value) if flipped else (value, NOTHING)
    kernel = name_shared(function(doubled(Select(condition, *sides), 1)))
    assert lets(kernel.body) > 0
    expected = np.append(np.arange(1, 7) * 2.0**13, [0, 0]).astype(np.float32)
    np.testing.assert_array_equal(run(kernel), expected)
    assert simplify_stmt(kernel.body) == kernel.body


def test_stores_guard_what_they_read() -> None:
    kernel = name_shared(function(doubled(Load(X, (LANES,)), 12), INSIDE))
    assert lets(kernel.body) > 0
    expected = np.append(np.arange(1, 7) * 2.0**12, [7, 7]).astype(np.float32)
    np.testing.assert_array_equal(run(kernel), expected)


def test_a_condition_on_a_whole_store_stays_around_it() -> None:
    n = Var("n")
    one = Compare(CompareKind.LESS, n, Const(6))
    value = doubled(Load(X, (n,)), 12)
    kernel = Function("kernel", (X, Y, n), Store(Y, (Const(0),), value, one))
    named = verify(name_shared(kernel))
    for index, expected in ((2, 3 * 2.0**12), (6, 7.0)):
        result = np.full(8, 7, np.float32)
        arguments = {"x": np.arange(1, 7, dtype=np.float32), "y": result, "n": index}
        interpret(named, arguments)
        assert result[0] == expected
