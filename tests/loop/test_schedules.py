"""Schedules change how, never what: any legal one gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.loop.blur import SIZES, blur, run
from tests.loop.schedules import dense_schedules, kept_schedules, schedules

from graft.base.dtypes import DType
from graft.base.errors import ParseError
from graft.loop.build import Operand, variable
from graft.loop.errors import ScheduleError
from graft.loop.interpret import interpret
from graft.loop.lower import lower
from graft.loop.parse import from_text
from graft.loop.print import to_text
from graft.loop.schedule import Pack, Reorder, Schedule, Split, directive_text, parse_schedule
from graft.loop.tensor import Tensor, compute, max_, placeholder, reduce_axis, sum_

sizes = st.sampled_from(SIZES)


@settings(max_examples=examples(800))
@given(st.data(), sizes, sizes, st.booleans(), st.sampled_from([1, 2, 3]))
def test_every_legal_schedule_computes_the_same(
    data: st.DataObject, rows: int, columns: int, symbolic: bool, threads: int
) -> None:
    tensors = blur(rows, columns, symbolic)
    schedule = data.draw(schedules(tensors))
    assert parse_schedule(str(schedule)) == schedule
    try:
        function = lower("blur", tensors, schedule)
    except ScheduleError:
        assume(False)
        return
    assert from_text(to_text(function)) == function
    result, expected = run(function, rows, columns, threads)
    np.testing.assert_array_equal(result, expected)


@settings(max_examples=examples(600))
@given(st.data(), sizes, sizes, sizes, st.booleans())
def test_copies_in_other_layouts_compute_the_same(
    data: st.DataObject, rows: int, columns: int, depth: int, symbolic: bool
) -> None:
    tensors = dense(rows, columns, variable("depth") if symbolic else depth)
    schedule = data.draw(dense_schedules(tensors))
    assert parse_schedule(str(schedule)) == schedule
    try:
        function = lower("dense", tensors, schedule)
    except ScheduleError:
        assume(False)
        return
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-9, 9, shape) for shape in ((rows, depth), (depth, columns)))
    out = np.full((rows, columns), -99)
    scalars = {"depth": depth} if symbolic else {}
    interpret(function, {"a": a, "b": b, "out": out, **scalars}, threads=2)
    np.testing.assert_array_equal(out, (a @ b) * 2 + 1)


@settings(max_examples=examples(600))
@given(st.data(), sizes, sizes, st.booleans(), st.sampled_from([1, 2]))
def test_stages_that_are_kept_compute_the_same(
    data: st.DataObject, rows: int, columns: int, symbolic: bool, threads: int
) -> None:
    tensors = normalized(rows, variable("columns") if symbolic else columns)
    schedule = data.draw(kept_schedules(tensors))
    assert parse_schedule(str(schedule)) == schedule
    try:
        function = lower("rows", tensors, schedule)
    except ScheduleError:
        assume(False)
        return
    x = np.random.default_rng(0).integers(-9, 9, (rows, columns))
    out = np.full((rows, columns), -99)
    scalars = {"columns": columns} if symbolic else {}
    interpret(function, {"x": x, "out": out, **scalars}, threads=threads)
    less = x - x.max(axis=1, keepdims=True, initial=-99)
    sums = less.sum(axis=1, keepdims=True), (less * less).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(out, less * 7 + sums[0] - sums[1])


def normalized(rows: int, columns: Operand) -> list[Tensor]:
    x = placeholder("x", [rows, columns], DType.INT64)
    k, p, q = (reduce_axis(name, columns) for name in "kpq")
    peak = compute("peak", [rows], lambda i: max_(x[i, k], [k], -99))
    less = compute("less", [rows, columns], lambda i, j: x[i, j] - peak[i])
    total = compute("total", [rows], lambda i: sum_(less[i, p], [p]))
    square = compute("square", [rows], lambda i: sum_(less[i, q] * less[i, q], [q]))
    out = compute("out", [rows, columns], lambda i, j: less[i, j] * 7 + total[i] - square[i])
    return [x, out]


def dense(rows: int, columns: int, depth: Operand) -> list[Tensor]:
    a = placeholder("a", [rows, depth], DType.INT64)
    b = placeholder("b", [depth, columns], DType.INT64)
    k = reduce_axis("k", depth)
    product = compute("product", [rows, columns], lambda i, j: sum_(a[i, k] * b[k, j], [k]))
    out = compute("out", [rows, columns], lambda i, j: product[i, j] * 2 + 1)
    return [a, b, out]


@pytest.mark.parametrize("tail", ["guard", "remainder", "shift_inwards"])
@pytest.mark.parametrize("columns", [4, 5, 7, 8, 13])
def test_tails(tail: str, columns: int) -> None:
    text = f"""
        out: split(j, jo, ji, 4, {tail}) vectorize(ji) parallel(i)
        total: compute_at(out, jo) reorder(a, b, i, j) store_in(register) unroll(j)
        pad: compute_at(out, i)
    """
    function = lower("blur", blur(3, columns, False), parse_schedule(text))
    for threads in (1, 2):
        result, expected = run(function, 3, columns, threads)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("columns", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("tail", ["guard", "remainder"])
def test_one_function_serves_all_sizes(tail: str, columns: int) -> None:
    text = f"""
        out: split(j, jo, ji, 4, {tail}) vectorize(ji)
        total: compute_at(out, jo) reorder(a, b, i, j) store_in(register) vectorize(j)
        pad: compute_at(out, i) split(j, jo, ji, 4, {tail}) vectorize(ji)
    """
    function = lower("blur", blur(0, 0, True), parse_schedule(text))
    for rows in (0, 1, 4):
        result, expected = run(function, rows, columns)
        np.testing.assert_array_equal(result, expected)


def test_threads_meet_between_stages_that_share_memory() -> None:
    x, w, out = blur(7, 5, False)
    total = next(tensor for tensor in out.sources if tensor.name == "total")
    schedule = parse_schedule("total: parallel(i)\nout: parallel(j)\n")
    function = lower("blur", [x, w, total, out], schedule)
    assert to_text(function).count("barrier") == 1


def test_schedules_are_values() -> None:
    text = (
        "c: split(i, io, ii, 6, remainder) reorder(io, j, ii)\n"
        "d: pack(b, bp, (0 16), (1 0 2)) compute_at(c, io) inline()\n"
    )
    schedule = parse_schedule(text)
    assert str(schedule) == text
    assert schedule == parse_schedule(str(schedule))
    assert hash(schedule) == hash(parse_schedule(text))
    assert schedule.directives("c")[1] == Reorder(("io", "j", "ii"))
    assert schedule.directives("missing") == ()
    assert directive_text(Pack("b", "p", (), ())) == "pack(b, p, (), ())"
    assert Schedule.of({"c": [Split("i", "o", "u", 2)]}) != schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "c: split(i, io)",
            "line 1: split(i, io): expected 5 values: loop, outer, inner, factor, tail",
        ),
        ("c: split(i, io, ii, six, guard)", "'six' is no number"),
        (
            "c: split(i, io, ii, 6, perhaps)",
            "'perhaps' is none of guard, remainder, branch, shift_inwards",
        ),
        ("c: pack(b, p, 3, (0))", "'3' is no number or list of numbers"),
        ("\nc: turn(i)", "line 2: cannot read 'turn(i)'"),
        ("c: inline()\nc: inline()", "line 2: expected a new stage, found 'c'"),
        ("inline()", "expected a new stage, found 'inline()'"),
    ],
)
def test_schedule_text_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ParseError) as failure:
        parse_schedule(text)
    assert message in failure.value.message
