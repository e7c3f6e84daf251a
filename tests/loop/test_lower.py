"""Lowering: operators of networks, unscheduled and as an expert would schedule them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import Golden
from tests.loop import kernels
from tests.loop.kernels import Kernel, run

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, select, term, variable
from graft.loop.errors import ScheduleError
from graft.loop.interpret import interpret
from graft.loop.ir import For, LoopKind, Scope
from graft.loop.lower import lower, lower_variants
from graft.loop.parse import from_text
from graft.loop.print import to_text
from graft.loop.schedule import Variant, parse_schedule
from graft.loop.tensor import compute, max_, min_, placeholder, product_, reduce_axis, sum_
from graft.loop.traverse import walk_stmt

N, M, K = variable("n"), variable("m"), variable("k")

CONV = """
out: split(ow, ow_o, ow_i, 6, remainder) fuse(co, oh, row) parallel(row) unroll(ow_i) vectorize(c)
conv: compute_at(out, ow_o) store_in(register) reorder(ci, kh, kw, cb, ow, c)
""".strip()
CONV_UNROLLED = f"{CONV} unroll(ow) vectorize(c)"
GEMM = """
c: cache_write(acc) split(i, io, ii, 4, remainder) split(j, jo, ji, 16, remainder) \
reorder(jo, io, ii, ji) unroll(ii) vectorize(ji)
acc: pack(b, panel, (0 16), (1 0 2)) compute_at(c, io) store_in(register) \
split(p, po, pi, 2, remainder) reorder(po, pi, i, j) tensorize(pi, outer_product) \
unroll(i) vectorize(j)
panel: compute_at(c, jo) vectorize(d1_block)
"""
GEMM_PLAIN = """
c: cache_write(acc) split(i, io, ii, 4, remainder) split(j, jo, ji, 8, remainder) \
reorder(io, jo, ii, ji) unroll(ii) vectorize(ji)
acc: compute_at(c, jo) store_in(register) reorder(p, i, j) unroll(i) vectorize(j)
"""
DEPTHWISE = """
out: cache_write(acc) split(j, jo, ji, 8, guard) vectorize(ji)
acc: compute_at(out, jo) reorder(a, b, j) vectorize(j)
pad: compute_at(out, c)
"""
SOFTMAX = """
out: split(j, jo, ji, 8, remainder) vectorize(ji) parallel(i)
peak: factor(k, largest, 8) compute_at(out, i) store_in(register) unroll(lane)
largest: compute_at(out, i) store_in(register) reorder(k, lane) vectorize(lane)
largest.tail: compute_at(out, i) store_in(register)
power: compute_at(out, i) split(j, jo, ji, 8, remainder) vectorize(ji)
total: factor(p, sums, 8) compute_at(out, i) store_in(register) unroll(lane)
sums: compute_at(out, i) store_in(register) reorder(p, lane) vectorize(lane)
sums.tail: compute_at(out, i) store_in(register)
"""
SOFTMAX_ACROSS = """
out: split(j, jo, ji, 8, remainder) vectorize(ji) parallel(i)
peak: factor_masked(k, largest, 8) compute_at(out, i) store_in(register) combine(lane)
largest: interleave(k, parts, 4) compute_at(out, i) store_in(register) vectorize(lane)
parts: compute_at(out, i) store_in(register) reorder(k, part, lane) unroll(part) vectorize(lane)
parts.rest: compute_at(out, i) store_in(register) reorder(k, lane) vectorize(lane)
largest.tail: compute_at(out, i) store_in(register) mask(lane)
power: compute_at(out, i) split(j, jo, ji, 8, remainder) vectorize(ji)
total: factor(p, sums, 4) compute_at(out, i) store_in(register) combine(lane)
sums: interleave(p, several, 2) compute_at(out, i) store_in(register) vectorize(lane)
several: compute_at(out, i) store_in(register) reorder(p, part, lane) unroll(part) vectorize(lane)
several.rest: compute_at(out, i) store_in(register) reorder(p, lane) vectorize(lane)
sums.tail: compute_at(out, i) store_in(register)
"""
# Exponentials are computed as they are added up, and kept in the result's memory.
SOFTMAX_KEPT = """
out: split(j, jo, ji, 8, guard) mask(ji) parallel(i)
peak: compute_at(out, i) store_in(register)
power: compute_at(out, i) compute_with(total) store_with(out)
total: factor_masked(p, sums, 8) compute_at(out, i) store_in(register) combine(lane)
sums: interleave(p, parts, 4) compute_at(out, i) store_in(register) mask(lane)
parts: compute_at(out, i) store_in(register) reorder(p, part, lane) unroll(part) mask(lane)
parts.rest: compute_at(out, i) store_in(register) reorder(p, lane) mask(lane)
sums.tail: compute_at(out, i) store_in(register) mask(lane)
"""
SOFTMAX_KEPT_KNOWN = SOFTMAX_KEPT.replace(
    "reorder(p, lane) mask", "reorder(p, part, lane) unroll(part) mask"
)
SOFTMAX_KEPT_PLAIN = """
power: compute_at(out, i) compute_with(total)
peak: compute_at(out, i)
total: compute_at(out, i)
"""
SOFTMAX_KEPT_OUTSIDE = "power: compute_with(total)"
ROWS_BRANCHED = """
out: split(i, io, ii, 8, branch) reorder(io, j, ii) mask(ii)
peak: compute_at(out, io) store_in(register) split(i, io, ii, 8, guard) reorder(io, k, ii) \
unroll(io) unroll(k) mask(ii)
power: compute_at(out, io) split(i, io, ii, 8, guard) reorder(io, j, ii) mask(ii)
total: compute_at(out, io) store_in(register) split(i, io, ii, 8, guard) reorder(io, p, ii) \
unroll(io) unroll(p) mask(ii)
""".replace("\\\n", "")
SOFTMAX_EVENLY = "\n".join(
    line for line in SOFTMAX_ACROSS.split("\n") if ".tail" not in line and ".rest" not in line
)
LAYER_NORM = """
out: parallel(i) split(j, jo, ji, 8, remainder) vectorize(ji)
total: compute_at(out, i) store_in(register)
mean: inline()
centred: compute_at(out, i) split(j, jo, ji, 8, guard) vectorize(ji)
square: compute_at(out, i) store_in(register)
factor: compute_at(out, i) store_in(register)
"""
GEMM_MASKED = """
c: cache_write(acc) split(i, io, ii, 4, guard) split(j, jo, ji, 16, guard) \
reorder(io, jo, ii, ji) unroll(ii) mask(ji)
acc: compute_at(c, jo) store_in(register) split(j, jo, ji, 16, guard) reorder(jo, p, i, ji) \
unroll(jo) unroll(i) mask(ji)
""".replace("\\\n", "")
ROWS_MASKED = """
out: split(i, io, ii, 8, guard) reorder(io, j, ii) mask(ii)
peak: compute_at(out, io) store_in(register) split(i, io, ii, 8, guard) reorder(io, k, ii) \
unroll(io) unroll(k) mask(ii)
power: compute_at(out, io) split(i, io, ii, 8, guard) reorder(io, j, ii) mask(ii)
total: compute_at(out, io) store_in(register) split(i, io, ii, 8, guard) reorder(io, p, ii) \
unroll(io) unroll(p) mask(ii)
""".replace("\\\n", "")
CHAIN = "product: inline()\npositive: inline()\nout: split(i, io, ii, 8, guard) vectorize(ii)"
CHAIN_MASKED = CHAIN.replace("vectorize", "mask")

CASES: list[tuple[str, Kernel, str, dict[str, int]]] = [
    ("gemm", kernels.gemm(9, 40, 13), GEMM, {}),
    ("gemm exact", kernels.gemm(8, 32, 2), GEMM, {}),
    ("gemm symbolic", kernels.gemm(N, M, K), GEMM_PLAIN, {"n": 7, "m": 21, "k": 3}),
    ("gemm empty sum", kernels.gemm(N, M, K), GEMM_PLAIN, {"n": 5, "m": 9, "k": 0}),
    ("gemm empty", kernels.gemm(N, M, K), GEMM_PLAIN, {"n": 0, "m": 9, "k": 2}),
    ("conv", kernels.blocked_conv(16, 2, 13), CONV_UNROLLED, {}),
    ("conv strided", kernels.blocked_conv(16, 2, 7, 1, 2), CONV_UNROLLED, {}),
    ("depthwise", kernels.depthwise(2, 5, 13), DEPTHWISE, {}),
    ("depthwise symbolic", kernels.depthwise(2, N, M), DEPTHWISE, {"n": 3, "m": 17}),
    ("depthwise row", kernels.depthwise(2, N, M), DEPTHWISE, {"n": 1, "m": 1}),
    ("pool", kernels.max_pool(13, 9, 7, 5), "out: unroll(b)", {}),
    ("softmax", kernels.softmax(N, M), SOFTMAX, {"n": 3, "m": 13}),
    ("softmax of one", kernels.softmax(N, M), SOFTMAX, {"n": 2, "m": 1}),
    ("softmax across", kernels.softmax(N, M), SOFTMAX_ACROSS, {"n": 3, "m": 77}),
    ("softmax across once", kernels.softmax(N, M), SOFTMAX_ACROSS, {"n": 2, "m": 8}),
    ("softmax across a part", kernels.softmax(N, M), SOFTMAX_ACROSS, {"n": 2, "m": 5}),
    ("softmax kept", kernels.softmax(N, M), SOFTMAX_KEPT, {"n": 3, "m": 77}),
    ("softmax kept, once", kernels.softmax(N, M), SOFTMAX_KEPT, {"n": 2, "m": 8}),
    ("softmax kept, a part", kernels.softmax(N, M), SOFTMAX_KEPT, {"n": 2, "m": 5}),
    ("softmax kept, known", kernels.softmax(3, 77), SOFTMAX_KEPT_KNOWN, {}),
    ("softmax kept, plain", kernels.softmax(N, M), SOFTMAX_KEPT_PLAIN, {"n": 3, "m": 7}),
    ("softmax kept, outside", kernels.softmax(N, M), SOFTMAX_KEPT_OUTSIDE, {"n": 3, "m": 7}),
    ("softmax rows branched", kernels.softmax(N, 3), ROWS_BRANCHED, {"n": 13}),
    ("softmax rows branched, few", kernels.softmax(5, 3), ROWS_BRANCHED, {}),
    ("softmax rows branched, even", kernels.softmax(N, 3), ROWS_BRANCHED, {"n": 16}),
    ("softmax rows masked", kernels.softmax(N, 3), ROWS_MASKED, {"n": 13}),
    ("gemm masked", kernels.gemm(9, 40, 13), GEMM_MASKED, {}),
    ("gemm masked, narrow", kernels.gemm(9, 5, 13), GEMM_MASKED, {}),
    ("gemm masked, symbolic", kernels.gemm(N, M, 7), GEMM_MASKED, {"n": 9, "m": 21}),
    ("softmax across evenly", kernels.softmax(N, 64), SOFTMAX_EVENLY, {"n": 2}),
    ("layer norm", kernels.layer_norm(N, 13), LAYER_NORM, {"n": 3}),
    ("chain", kernels.chain(N), CHAIN, {"n": 21}),
    ("chain masked", kernels.chain(N), CHAIN_MASKED, {"n": 21}),
    ("chain masked, short", kernels.chain(N), CHAIN_MASKED, {"n": 5}),
    ("chain masked, constant", kernels.chain(13), CHAIN_MASKED, {}),
    ("chain masked, empty", kernels.chain(N), CHAIN_MASKED, {"n": 0}),
    ("chain empty", kernels.chain(N), CHAIN, {"n": 0}),
    ("chain constant", kernels.chain(13), CHAIN.replace("guard", "shift_inwards"), {}),
]
by_name = pytest.mark.parametrize(
    ("kernel", "schedule", "sizes"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)


@by_name
def test_unscheduled(kernel: Kernel, schedule: str, sizes: dict[str, int]) -> None:
    function = lower("kernel", kernel.arguments)
    assert from_text(to_text(function)) == function
    result, expected = run(function, kernel, **sizes)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@by_name
def test_scheduled(kernel: Kernel, schedule: str, sizes: dict[str, int]) -> None:
    function = lower("kernel", kernel.arguments, parse_schedule(schedule))
    assert from_text(to_text(function)) == function
    for threads in (1, 2):
        result, expected = run(function, kernel, threads, **sizes)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kernel", "schedule"),
    [
        ("conv", kernels.blocked_conv(32, 7, 13), CONV_UNROLLED),
        ("gemm", kernels.gemm(9, 40, 13), GEMM),
        ("depthwise", kernels.depthwise(3, N, M), DEPTHWISE),
        ("softmax", kernels.softmax(N, M), SOFTMAX),
        ("softmax_kept", kernels.softmax(N, M), SOFTMAX_KEPT),
        ("max_pool", kernels.max_pool(13, 9, 7, 5), ""),
        ("chain", kernels.chain(N), CHAIN),
    ],
)
def test_nests_are_those_of_an_expert(
    name: str, kernel: Kernel, schedule: str, golden: Golden
) -> None:
    golden(name, to_text(lower(name, kernel.arguments, parse_schedule(schedule))))


def test_the_hot_loop_of_the_convolution_is_straight() -> None:
    """Registers, vectors and nothing else: no test, no division, no other memory."""
    kernel = kernels.blocked_conv(32, 7, 13)
    function = lower("conv", kernel.arguments, parse_schedule(CONV_UNROLLED))
    innermost = [
        stmt
        for stmt in walk_stmt(function.body)
        if isinstance(stmt, For) and stmt.var.name.endswith("cb")
    ]
    assert len(innermost) == 2
    for loop, pixels in zip(innermost, (6, 1), strict=True):
        stores = list(walk_stmt(loop.body))
        text = to_text(function)
        assert "//" not in text.split("for cb")[1].split("}")[0]
        kinds = {type(stmt).__name__ for stmt in stores}
        assert kinds <= {"Block", "Store"}
        assert sum(type(stmt).__name__ == "Store" for stmt in stores) == pixels
        assert loop.kind is LoopKind.SERIAL
    assert {s.buffer.scope for s in walk_stmt(function.body) if hasattr(s, "buffer")} == {
        Scope.REGISTER,
        Scope.ARGUMENT,
    }


def test_reductions_of_all_kinds_and_dtypes() -> None:
    for make, meaning in ((sum_, np.sum), (max_, np.max), (min_, np.min), (product_, np.prod)):
        for dtype in (DType.INT8, DType.UINT8, DType.INT64, DType.FLOAT64):
            x = placeholder("x", [5], dtype)
            axis = reduce_axis("axis", 5)
            total = compute(
                "total", [], lambda x=x, axis=axis, make=make: make(x[axis], [axis]), []
            )
            values = np.array([3, 1, 4, 1, 5]).astype(dtype.numpy)
            result = np.zeros((), dtype.numpy)
            interpret(lower("f", [x, total]), {"x": values, "total": result})
            assert result == meaning(values, axis=0)


def test_an_initial_value_may_be_computed() -> None:
    x, start = placeholder("x", [3, 4], DType.INT32), placeholder("start", [3], DType.INT32)
    k = reduce_axis("k", 4)
    total = compute("total", [3], lambda i: sum_(x[i, k], [k], start[i] * 2))
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    result = np.zeros(3, np.int32)
    first = np.array([5, 6, 7], np.int32)
    interpret(lower("f", [x, start, total]), {"x": values, "start": first, "total": result})
    assert result.tolist() == (values.sum(1) + first * 2).tolist()


def test_an_index_of_the_largest_takes_two_stages() -> None:
    x = placeholder("x", [N])
    k, p = reduce_axis("k", N), reduce_axis("p", N)
    peak = compute("peak", [], lambda: max_(x[k], [k]), [])
    place = compute("place", [], lambda: min_(select(equal(x[p], peak[()]), p, 1 << 40), [p]), [])
    result = np.zeros((), np.int64)
    values = np.array([1, 7, 3, 7, 0], np.float32)
    interpret(lower("f", [x, place]), {"x": values, "place": result, "n": 5})
    assert result == 1


def test_reads_through_an_index_tensor() -> None:
    table, index = placeholder("table", [5, 3]), placeholder("index", [N], DType.INT32)
    out = compute("out", [N, 3], lambda i, j: table[cast(DType.INT64, index[i]), j])
    schedule = parse_schedule("out: vectorize(j)")
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    places = np.array([4, 0, 2, 2], np.int32)
    result = np.zeros((4, 3), np.float32)
    function = lower("gather", [table, index, out], schedule)
    interpret(function, {"table": values, "index": places, "out": result, "n": 4})
    np.testing.assert_array_equal(result, values[places])


def test_lanes_may_run_along_a_diagonal() -> None:
    x = placeholder("x", [7, 7])
    diagonal = compute("diagonal", [7], lambda i: x[i, (i * 3) % 7])
    function = lower("f", [x, diagonal], parse_schedule("diagonal: vectorize(i)"))
    assert not [stmt for stmt in walk_stmt(function.body) if isinstance(stmt, For)]
    numbers, found = np.arange(49, dtype=np.float32).reshape(7, 7), np.zeros(7, np.float32)
    interpret(function, {"x": numbers, "diagonal": found})
    np.testing.assert_array_equal(found, numbers[np.arange(7), np.arange(7) * 3 % 7])


def test_negation_changes_the_sign_of_zero() -> None:
    x = placeholder("x", [3])
    minus = compute("minus", [3], lambda i: -x[i])
    found = np.zeros(3, np.float32)
    given = np.array([0.0, -0.0, 2.0], np.float32)
    interpret(lower("f", [x, minus]), {"x": given, "minus": found})
    np.testing.assert_array_equal(np.signbit(found), [True, False, True])


def test_a_select_protects_a_read_in_lanes() -> None:
    """Natively both sides of a select are read, so no index may leave its buffer."""
    x = placeholder("x", [N])
    n = term(N)
    out = compute("out", [n + 6], lambda i: select((i >= 3) & (i < n + 3), x[i - 3], -1.0))
    schedule = parse_schedule("out: split(i, io, ii, 4, guard) vectorize(ii)")
    function = lower("pad", [x, out], schedule)
    for size in (0, 1, 5, 8):
        values = np.arange(size, dtype=np.float32)
        result = np.zeros(size + 6, np.float32)
        interpret(function, {"x": values, "out": result, "n": size})
        np.testing.assert_array_equal(result, np.pad(values, 3, constant_values=-1))


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "out: vectorize(i)",
        "out: split(i, io, ii, 4, guard) vectorize(ii)",
        "out: split(i, io, ii, 4, remainder) reorder(io, a, ii) vectorize(ii) unroll(a)",
        "out: split(i, io, ii, 4, remainder) vectorize(ii) unroll(a)",
    ],
)
def test_windows_that_leave_the_input(schedule: str) -> None:
    """Strided, dilated and padded; some windows see nothing at all."""
    n = term(N)
    x, a = placeholder("x", [N]), reduce_axis("a", 3)

    def seen(i: Term) -> Term:
        place = i * 2 + a * 3 - 5
        return select((place >= 0) & (place < n), x[place], 0.0)

    out = compute("out", [9], lambda i: sum_(seen(i), [a]))
    function = lower("windows", [x, out], parse_schedule(schedule))
    for size in (0, 1, 2, 7, 20):
        values = np.arange(1, size + 1, dtype=np.float32)
        places = [[i * 2 + k * 3 - 5 for k in range(3)] for i in range(9)]
        expected = [sum(values[p] for p in row if 0 <= p < size) for row in places]
        result = np.zeros(9, np.float32)
        interpret(function, {"x": values, "out": result, "n": size})
        np.testing.assert_array_equal(result, expected)


def test_a_stage_may_be_read_twice_and_at_different_places() -> None:
    x = placeholder("x", [10])
    square = compute("square", [10], lambda i: x[i] * x[i])
    out = compute("out", [8], lambda i: square[i] + square[i + 2] + call("sqrt", square[i + 1]))
    schedule = parse_schedule("out: split(i, io, ii, 3, guard)\nsquare: compute_at(out, io)")
    function = lower("f", [x, out], schedule)
    assert "allocate square: float32[5]" in to_text(function)
    values = np.arange(10, dtype=np.float32)
    result = np.zeros(8, np.float32)
    interpret(function, {"x": values, "out": result})
    np.testing.assert_array_equal(result, values[:8] ** 2 + values[2:] ** 2 + values[1:9])


VARIANTS = [
    Variant(parse_schedule("c: split(i, io, ii, 4, shift_inwards) unroll(ii)"), (("n", 4),)),
    Variant(parse_schedule("c: split(i, io, ii, 2, shift_inwards) unroll(ii)"), (("n", 2),)),
    Variant(parse_schedule("")),
]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7])
def test_a_function_chooses_by_its_scalars(rows: int) -> None:
    kernel = kernels.gemm(N, 5, 3)
    function = lower_variants("kernel", kernel.arguments, VARIANTS)
    assert from_text(to_text(function)) == function
    assert to_text(function).count("if n >= ") == 2
    result, expected = run(function, kernel, n=rows)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_variant_that_needs_too_little_is_refused() -> None:
    schedule = parse_schedule("c: split(i, io, ii, 4, shift_inwards)")
    with pytest.raises(ScheduleError, match="it may be shorter than 4"):
        lower_variants("kernel", kernels.gemm(N, 5, 3).arguments, [Variant(schedule, (("n", 3),))])
