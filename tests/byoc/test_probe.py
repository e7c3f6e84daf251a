"""What regions are checked on, and how far their results may lie apart."""

from __future__ import annotations

import numpy as np
import pytest
from tests.byoc.fakes import chain

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.byoc.probe import (
    Kind,
    Probe,
    _farther,
    evaluate_a_step_off,
    evaluate_nearby,
    probe,
    probes,
)
from graft.byoc.tolerance import depth_of, difference, tolerances
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor


def of(op: str, *types: tuple[str, ...], **attrs: object) -> Graph:
    g = Builder()
    values = [g.input(f"x{n}", tensor(*type_)) for n, type_ in enumerate(types)]
    return g.build(g(op, *values, **attrs))


def test_static_graphs_are_tried_three_times() -> None:
    found = list(probes(chain("exp")))
    assert [str(one) for one in found] == ["ordinary data", "edges data", "ordinary data"]
    edges = found[1].inputs[0]
    tiny = np.finfo(np.float32).tiny
    assert np.abs(edges).max() > 1e3
    assert np.any((np.abs(edges) < tiny) & (edges != 0))
    assert np.any((edges == 0) & np.signbit(edges))
    assert np.all(np.isfinite(edges))
    moved = np.abs(found[0].nearby[0] - found[0].inputs[0])
    assert 0 < moved.max() < 1e-6


def test_symbols_are_tried_at_their_ends() -> None:
    graph = of("add", ("float32", symbol("n"), symbol("m")), ("float32", symbol("m")))
    sizes = list(dict.fromkeys((one.sizes["m"], one.sizes["n"]) for one in probes(graph)))
    assert sizes == [(100, 100), (1, 1), (3, 5)]
    for one in probes(graph):
        assert one.inputs[0].shape == (one.sizes["n"], one.sizes["m"])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integers_use_their_whole_range(dtype: str) -> None:
    graph = of("add", (dtype, 40, 50), (dtype, 40, 50))
    info = np.iinfo(dtype)
    edges = probe(graph, Kind.EDGES, {}, 0).inputs[0]
    assert (edges.min(), edges.max()) == (info.min, info.max)
    ordinary = probe(graph, Kind.ORDINARY, {}, 0).inputs[0]
    assert len(np.unique(ordinary)) > 100
    assert np.any(np.abs(ordinary.astype(np.float64)) > info.max / 4)


def test_integers_that_mean_something_stay_legal() -> None:
    taken = of("take", ("float32", 7, 3), ("int64", 90), axis=0)
    for one in probes(taken):
        assert one.inputs[1].min() >= 0
        assert one.inputs[1].max() <= 6
    divided = of("divide", ("int32", 90), ("int32", 90))
    for one in probes(divided):
        assert one.inputs[1].min() >= 1


def test_large_numbers_do_not_overflow_a_sum() -> None:
    graph = of("nn.dense", ("float16", 3, 500), ("float16", 2, 500))
    for one in probes(graph):
        left, right = (array.astype(np.float32) for array in one.inputs)
        assert np.abs(left @ right.T).max() < np.finfo(np.float16).max


def test_tolerance_grows_with_the_depth_of_the_sum() -> None:
    shallow, deep = chain("exp"), of("nn.dense", ("float32", 2, 400), ("float32", 3, 400))
    assert depth_of(deep)[deep.outputs[0]] == 400
    (small,), (large,) = tolerances(shallow), tolerances(deep)
    assert large.relative == pytest.approx(20 * small.relative)
    assert small.relative == pytest.approx(64 * 2.0**-24)


def test_the_coarsest_float_counts() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 5))
    half = g("cast", x, dtype="float16")
    graph = g.build(g("cast", g("exp", half), dtype="float32"))
    assert tolerances(graph)[0].relative > 64 * 2.0**-12


def test_quantised_results_may_be_a_step_apart() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 4))
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(3))
    graph = g.build(g("qnn.quantize", x, scale, zero, dtype="int8"))
    wanted = [np.array([1, 2, 3, 127], np.int8)]
    assert difference(graph, [np.array([2, 1, 3, 127], np.int8)], wanted) == ""
    found = [np.array([1, 2, 3, -128], np.int8)]
    problem = "its result %quantize differs from the host's in 1 of 4 elements"
    assert difference(graph, found, wanted) == problem


def test_steps_add_up_along_a_chain_of_quantised_units() -> None:
    g = Builder()
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(3))
    x, results = g.input("x", tensor("float32", 4)), []
    for _ in range(3):
        results.append(g("qnn.quantize", x, scale, zero, dtype="int8"))
        x = g("nn.relu", g("qnn.dequantize", results[-1], scale, zero))
    found = tolerances(g.build(*results, x))
    assert [one.steps for one in found] == [1, 2, 3, 0]
    assert found[-1].relative == 3 / 128


def test_what_is_hardly_determined_is_nobodys_fault() -> None:
    """1e8 - 1e8 is anything within rounding; where the reference moves as much, so may others."""
    graph = of("subtract", ("float32", 2), ("float32", 2))
    wanted, found = [np.array([4.0, 1.0], np.float32)], [np.array([12.0, 1.0], np.float32)]
    assert "differs from the host's by 8" in difference(graph, found, wanted)
    assert difference(graph, found, wanted, [np.array([8.0, 1.0], np.float32)]) == ""


@pytest.mark.parametrize(("ulps", "holds"), [(1, True), (100, False)])
def test_an_operator_may_magnify_the_rounding_of_its_operand(ulps: int, holds: bool) -> None:
    """An ulp of erf near 1 is a thousand times as much after atanh; a hundred are a mistake."""
    inner, graph = chain("erf"), chain("erf", "atanh")
    shape, ulp = (1, 3, 9, 7), np.float32(2.0**-24)
    data = [np.random.default_rng(0).uniform(2, 3, shape).astype(np.float32)]
    one = Probe(Kind.ORDINARY, {}, data, data)
    (erf,), (expected,) = evaluate(inner, data), evaluate(graph, data)
    result = np.arctanh(erf - ulps * ulp)
    assert np.abs(result - expected).max() > 1e-4
    assert "differs" in difference(graph, [result], [expected], [expected])
    problem = difference(graph, [result], [expected], evaluate_nearby(graph, one, [expected]))
    assert (problem == "") == holds


def test_constants_and_results_do_not_move_nearby() -> None:
    """A negative number to the power of 2 is one, and to that of its neighbours none."""
    g = Builder()
    x = g.input("x", tensor("float32", 5))
    graph = g.build(g("power", x, g.constant(np.float32(2))))
    data = [np.full(5, -1, np.float32)]
    one = Probe(Kind.ORDINARY, {}, data, data)
    (nearby,) = evaluate_nearby(graph, one, evaluate(graph, data))
    assert nearby.tolist() == [1.0] * 5


def test_movements_do_not_make_up_for_each_other() -> None:
    """An input that moves against what is computed of it, as every second one does."""
    graph = chain("negative", "sin")
    data = [np.random.default_rng(0).uniform(2000, 3000, (1, 3, 9, 7)).astype(np.float32)]
    moved = [np.nextafter(data[0], np.float32(9999))]
    expected = [np.asarray(one) for one in evaluate(graph, data)]
    (nearby,) = evaluate_nearby(graph, Probe(Kind.ORDINARY, {}, data, moved), expected)
    assert (nearby != expected[0]).mean() > 0.95


@pytest.mark.parametrize(("off", "holds"), [(1, True), (2, False)])
def test_a_step_of_a_coarse_scale_is_many_of_a_finer_one(off: int, holds: bool) -> None:
    g = Builder()
    x, zero = g.input("x", tensor("float32", 8)), g.constant(np.uint8(0))
    coarse, fine = (g.constant(np.float32(scale)) for scale in (10, 0.5))
    codes = g("qnn.quantize", x, coarse, zero, dtype=DType.UINT8)
    inside = g("qnn.dequantize", codes, coarse, zero)
    graph = g.build(g("qnn.quantize", inside, fine, zero, dtype=DType.UINT8))
    data = [np.arange(20, 100, 10, dtype=np.float32)]
    one, (expected,) = Probe(Kind.ORDINARY, {}, data, data), evaluate(graph, data)
    result = (np.asarray(expected) + 20 * off).astype(np.uint8)
    nearby = evaluate_a_step_off(graph, one, [np.asarray(expected)])
    assert (difference(graph, [result], [expected], nearby) == "") == holds
    assert "differs" in difference(graph, [result], [expected], [expected])


def test_the_farther_of_two_movements_counts() -> None:
    one, other = np.float32([1, np.nan, 3, np.inf]), np.float32([4, 5, np.nan, np.inf])
    farther = _farther(one, other, np.float32([2, 5, 3, np.inf]))
    np.testing.assert_array_equal(farther, np.float32([4, np.nan, np.nan, np.inf]))
    assert _farther(np.int8([1, 3]), np.int8([9, 2]), np.int8([2, 2])).tolist() == [9, 3]
    assert _farther(np.array([True]), np.array([False]), np.array([False])).tolist() == [True]


def test_denormals_may_count_as_zero() -> None:
    graph = chain("exp")
    shape = (1, 3, 9, 7)
    wanted = [np.full(shape, 1e-40, np.float32)]
    assert difference(graph, [np.zeros(shape, np.float32)], wanted) == ""
