"""What a schedule may not do, and what it is told: the message names the stage and the loop."""

from __future__ import annotations

import pytest

from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.loop.build import cast, maximum, variable
from graft.loop.errors import LoopError, ScheduleError
from graft.loop.lower import lower
from graft.loop.schedule import parse_schedule
from graft.loop.tensor import Tensor, compute, max_, placeholder, reduce_axis, sum_


def dense() -> list[Tensor]:
    """A matrix product (k to be reduced over) and a ReLU behind it."""
    n = variable("n")
    a, b = placeholder("a", [n, 8]), placeholder("b", [8, 16])
    k = reduce_axis("k", 8)
    product = compute("product", [n, 16], lambda i, j: sum_(a[i, k] * b[k, j], [k]))
    out = compute("out", [n, 16], lambda i, j: maximum(product[i, j], 0.0))
    return [a, b, out]


MISTAKES = [
    (
        "product: vectorize(k)",
        "schedule of product: cannot vectorise loop 'k': it carries a reduction",
    ),
    (
        "product: parallel(k)",
        "schedule of product: cannot parallelise loop 'k': it carries a reduction",
    ),
    (
        "out: vectorize(i)",
        "schedule of out: cannot vectorise loop 'i': its extent has no constant bound",
    ),
    ("out: unroll(i)", "schedule of out: cannot unroll loop 'i': its extent has no constant bound"),
    ("out: unroll(q)", "schedule of out: there is no loop 'q'"),
    ("nothing: unroll(i)", "schedule of nothing: there is no such stage"),
    ("out: split(i, j, jj, 4, guard)", "schedule of out: there is a loop 'j' already"),
    ("out: split(i, io, ii, 0, guard)", "schedule of out: cannot split loop 'i' by 0"),
    (
        "out: vectorize(j) split(j, jo, ji, 4, guard)",
        "schedule of out: loop 'j' is vector already",
    ),
    (
        "product: split(k, ko, ki, 3, shift_inwards)",
        "schedule of product: cannot shift the tail of loop 'k' inwards: it carries a reduction",
    ),
    (
        "out: split(i, io, ii, 3, shift_inwards)",
        "schedule of out: cannot shift the tail of loop 'i' inwards: it may be shorter than 3",
    ),
    (
        "product: split(j, jo, ji, 3, shift_inwards) vectorize(jo)",
        "schedule of product: cannot shift the tail of loop 'j' inwards: 'jo' is a vector around "
        "'k', which reduces",
    ),
    (
        "product: split(j, jo, ji, 3, shift_inwards) parallel(jo)",
        "schedule of product: cannot shift the tail of loop 'j' inwards: 'jo' is parallel around "
        "'k', which reduces",
    ),
    (
        "product: split(j, jo, ji, 3, shift_inwards) reorder(ji, jo) parallel(ji)",
        "schedule of product: cannot shift the tail of loop 'j' inwards: 'ji' is parallel around "
        "'k', which reduces",
    ),
    (
        "product: split(i, io, ii, 3, shift_inwards) reorder(k, io, ii, j)",
        "schedule of product: cannot shift the tail of loop 'i' inwards: "
        "'io' is inside 'k', which reduces",
    ),
    (
        "out: split(j, jo, ji, 3, remainder) reorder(ji, jo)",
        "schedule of out: cannot put loop 'ji' outside 'jo': the remainder of 'j' follows it",
    ),
    (
        "out: split(j, jo, ji, 3, remainder) split(jo, joo, joi, 2, guard)",
        "schedule of out: cannot split or fuse loop 'jo': the remainder of 'j' follows it",
    ),
    (
        "product: fuse(i, k, f)",
        "schedule of product: cannot fuse loops 'i' and 'k': they are no neighbours, in this order",
    ),
    (
        "product: fuse(j, k, f)",
        "schedule of product: cannot fuse loops 'j' and 'k': only 'k' carries a reduction",
    ),
    ("out: reorder(i, i)", "schedule of out: cannot reorder loops: a name of i, i is repeated"),
    (
        "out: parallel(i) parallel(j)",
        "schedule of out: loop 'j' is parallel inside 'i', which is too",
    ),
    (
        "out: vectorize(j) split(i, io, ii, 4, guard) vectorize(ii)",
        "schedule of out: loop 'j' is a vector inside 'ii', which is one too",
    ),
    (
        "out: reorder(j, i) vectorize(j) parallel(i)",
        "schedule of out: loop 'i' is parallel inside the vector loop 'j'",
    ),
    (
        "product: reorder(k, i, j) parallel(i)",
        "schedule of product: loop 'i' is parallel inside 'k', which carries a reduction",
    ),
    (
        "product: parallel(i)",
        "schedule of product: cannot parallelise loop 'i': each thread has its own 'product'",
    ),
    (
        "out: compute_at(product, i)",
        "schedule of out: cannot compute it at loop 'i' of product: "
        "it is an argument and has to be computed whole",
    ),
    (
        "product: compute_at(out, q)",
        "schedule of product: cannot compute it at loop 'q' of out: "
        "schedule of out: there is no loop 'q'",
    ),
    (
        "product: compute_at(nowhere, i)",
        "schedule of product: cannot compute it at loop 'i' of nowhere: there is no such stage",
    ),
    (
        "out: vectorize(j)\nproduct: compute_at(out, j)",
        "schedule of product: cannot compute it at loop 'j' of out: "
        "that is inside the vector loop 'j'",
    ),
    ("product: inline()", "schedule of product: cannot inline it: it carries a reduction"),
    ("out: inline()", "schedule of out: cannot inline it: it is an argument"),
    (
        "product: store_in(register)",
        "schedule of product: cannot keep it in registers: it is computed outside every loop",
    ),
    ("out: store_in(register)", "schedule of out: cannot keep it in registers: it is an argument"),
    (
        "product: compute_at(out, i) store_in(register)",
        "schedule of product: cannot keep it in registers: loop 'j' of product addresses it",
    ),
    (
        "out: reorder(j, i)\nproduct: compute_at(out, j) store_in(register)",
        "schedule of product: cannot keep it in registers: its extents have no constant bound",
    ),
    ("out: cache_write(product)", "schedule of out: there is a tensor 'product' already"),
    ("out: pack(b, p, (0 0), (0 1))", "schedule of out: cannot pack 'b': it does not read it"),
    (
        "product: pack(b, p, (0 4), (0 1))",
        "schedule of product: cannot pack 'b': blocks or order do not fit its dimensions",
    ),
    ("product: factor(j, p, 4)", "schedule of product: it does not reduce over an axis 'j'"),
    ("product: factor(k, p, 1)", "schedule of product: cannot reduce over 'k' in 1 lanes"),
    ("product: interleave(k, p, 1)", "schedule of product: cannot reduce over 'k' in 1 totals"),
    (
        "product: combine(j)",
        "schedule of product: cannot combine lanes of loop 'j': it carries no reduction",
    ),
    ("product: mask(k)", "schedule of product: cannot mask loop 'k': it carries a reduction"),
    ("product: tensorize(k, magic)", "schedule of product: there is no such micro-kernel"),
    (
        "product: tensorize(i, outer_product)",
        "schedule of product: cannot tensorize loop 'i': the extent of 'i' inside is not constant",
    ),
    (
        "out: split(j, jo, ji, 4, guard) tensorize(ji, outer_product)",
        "schedule of out: cannot tensorize loop 'ji': the statement inside is no sum of products",
    ),
    (
        "product: split(k, ko, ki, 3, guard) tensorize(ki, outer_product)",
        "schedule of product: cannot tensorize loop 'ki': 'ki' inside has a guarded tail",
    ),
    (
        "product: split(k, ko, ki, 3, remainder) tensorize(ko, outer_product)",
        "schedule of product: cannot tensorize loop 'ko': 'ko' inside has a remainder",
    ),
    (
        "product: pack(b, p, (0 0), (0 1)) reorder(i, k, j) tensorize(k, outer_product)\n"
        "p: compute_at(product, k)",
        "schedule of p: cannot compute it at loop 'k' of product: "
        "that is inside the tensorized loop 'k'",
    ),
    (
        "product: split(j, jo, ji, 4, guard) reorder(jo, ji, k) tensorize(k, outer_product)",
        "schedule of product: cannot tensorize loop 'k': "
        "no loop inside runs along contiguous elements of the result",
    ),
]


@pytest.mark.parametrize(("schedule", "message"), MISTAKES)
def test_mistakes_in_schedules(schedule: str, message: str) -> None:
    with pytest.raises(ScheduleError) as failure:
        lower("dense", dense(), parse_schedule(schedule))
    assert failure.value.message == message


def normalized() -> list[Tensor]:
    """Rows less their largest, which two sums and the result read."""
    n = variable("n")
    x = placeholder("x", [n, 8])
    k, p, q = reduce_axis("k", 8), reduce_axis("p", 8), reduce_axis("q", 7)
    peak = compute("peak", [n], lambda i: max_(x[i, k], [k]))
    less = compute("less", [n, 8], lambda i, j: x[i, j] - peak[i])
    total = compute("total", [n], lambda i: sum_(less[i, p], [p]))
    part = compute("part", [n], lambda i: sum_(less[i, q], [q]))
    out = compute("out", [n, 8], lambda i, j: less[i, j] * total[i] + part[i])
    return [x, out]


WITH = "schedule of less: cannot compute it with"
STORED = "schedule of less: cannot store it with"
KEPT = "total: compute_at(out, i)\npart: compute_at(out, i)\nless: compute_at(out, i)"
MISTAKES_WITH_READERS = [
    ("less: compute_with(nothing)", f"{WITH} nothing: there is no such stage"),
    ("less: compute_with(peak)", f"{WITH} peak: that does not read it"),
    (
        "out: compute_with(total)",
        "schedule of out: cannot compute it with total: it is an argument",
    ),
    (
        "peak: compute_with(less)",
        "schedule of peak: cannot compute it with less: it carries a reduction",
    ),
    (
        "less: compute_with(part)",
        f"{WITH} part: that does not read each element just once, by its own axes",
    ),
    (
        "less: split(j, jo, ji, 4, guard) compute_with(total)",
        f"{WITH} total: its loops are scheduled",
    ),
    ("less: compute_with(total) unroll(j)", "schedule of less: there is no loop 'j'"),
    (
        "total: compute_at(out, i)\nless: compute_with(total)",
        f"{WITH} total: total is computed elsewhere",
    ),
    ("less: store_with(out)", f"{STORED} out: it is not computed at a loop of that"),
    (f"{KEPT} store_in(register) store_with(out)", f"{STORED} out: dtype, shape or scope differ"),
    (
        f"out: split(j, jo, ji, 3, shift_inwards)\n{KEPT} store_with(out)",
        f"{STORED} out: tiles of that overlap",
    ),
    (
        "out: reorder(j, i)\nless: compute_at(out, j) store_with(out)\n"
        "total: compute_at(out, i)\npart: compute_at(out, j)",
        f"{STORED} out: total reads it in a loop inside of that",
    ),
    (
        "out: split(j, jo, ji, 4, guard)\ntotal: compute_at(out, jo)\n"
        "part: compute_at(out, jo)\nless: compute_at(out, jo) store_with(out)",
        f"{STORED} out: others read more of it than an iteration of that",
    ),
]


@pytest.mark.parametrize(("schedule", "message"), MISTAKES_WITH_READERS)
def test_mistakes_in_stages_that_are_kept(schedule: str, message: str) -> None:
    with pytest.raises(ScheduleError) as failure:
        lower("normalized", normalized(), parse_schedule(schedule))
    assert failure.value.message == message


def test_elements_are_computed_before_others_read_them() -> None:
    x = placeholder("x", [4, 8])
    k, p = reduce_axis("k", 8), reduce_axis("p", 8)
    double = compute("double", [4, 8], lambda i, j: x[i, j] * 2.0)
    first = compute("a", [4], lambda i: sum_(double[i, k], [k]))
    second = compute("b", [4], lambda i: sum_(double[i, p] * first[i], [p]))
    with pytest.raises(ScheduleError) as failure:
        lower("f", [x, second], parse_schedule("double: compute_with(b)"))
    assert (
        failure.value.message
        == "schedule of double: cannot compute it with b: a reads it before that"
    )


def test_a_stage_read_elsewhere_stays_outside() -> None:
    x = placeholder("x", [4])
    y = compute("y", [4], lambda i: x[i] + 1.0)
    z = compute("z", [4], lambda i: y[i] * 2.0)
    w = compute("w", [4], lambda i: y[i] + z[i])
    with pytest.raises(ScheduleError) as failure:
        lower("f", [x, z, w], parse_schedule("y: compute_at(w, i)"))
    message = "schedule of y: cannot compute it at loop 'i' of w: z reads it outside that loop"
    assert failure.value.message == message


def test_an_initial_value_is_computed_before_the_reduction() -> None:
    x = placeholder("x", [4, 4])
    k = reduce_axis("k", 4)
    first = compute("first", [4], lambda i: x[i, 0] * 2.0)
    total = compute("total", [4], lambda i: sum_(x[i, k], [k], first[i]))
    with pytest.raises(ScheduleError) as failure:
        lower("f", [x, total], parse_schedule("first: compute_at(total, k)"))
    assert "the initial value needs it before that loop" in failure.value.message


def mistakes() -> list[tuple[str, object]]:
    x, same = placeholder("x", [4]), placeholder("x", [5])
    hidden = compute("y", [4], lambda i: x[i] * 2.0)
    axis = reduce_axis("i", 4)
    return [
        ("'x' has 1 dimensions, not 2", lambda: x[0, 0]),
        ("'y' has 2 dimensions and the axes i", lambda: compute("y", [4, 4], lambda i: x[i])),
        ("'y' has two axes called 'i'", lambda: compute("y", [4], lambda i: sum_(x[axis], [axis]))),
        ("'a b' cannot be a name", lambda: placeholder("a b", [4])),
        ("'for' cannot be a name", lambda: placeholder("for", [4])),
        ("'a.b' cannot name an axis", lambda: reduce_axis("a.b", 4)),
        ("'x' is read and has to be an argument", lambda: lower("f", [hidden])),
        ("an argument is given twice: x, x", lambda: lower("f", [x, x])),
        ("two tensors are called 'x'", lambda: lower("f", [same, hidden])),
        ("an operation on float32 and int64", lambda: x[0] + cast(DType.INT64, x[0])),
        ("a reduction needs an axis", lambda: sum_(x[0], [])),
    ]


@pytest.mark.parametrize("case", mistakes(), ids=lambda case: case[0])
def test_mistakes_in_computations(case: tuple[str, object]) -> None:
    message, make = case
    assert callable(make)
    with pytest.raises(LoopError) as failure:
        make()
    assert failure.value.message == message
    assert isinstance(failure.value, UserError)
