"""Regions of symbolic shapes: compiled once, run at any size, with a bounded number kept."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.backends.onednn.regions import Case, refusals

import graft
from graft.backends.onednn import runtime
from graft.backends.onednn.backend import OneDnn
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType


def network(rows: object = 9) -> tuple[Case, Graph]:
    """A convolution with a residual, pooling and a dense layer, for any number of images."""
    case = Case()
    x = case.builder.input("x", TensorType(DType.FLOAT32, (symbol("n"), 19, rows, 7)))
    y = case("nn.conv2d", x, case.constant(19, 19, 3, 3), padding=(1, 1, 1, 1))
    y = case("nn.relu", case("add", case("nn.bias_add", y, case.constant(19)), x))
    y = case("nn.max_pool2d", y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    y = case("mean", y, axes=(2, 3))
    return case, case.builder.build(case("nn.dense", y, case.constant(11, 19)))


def images(case: Case, *shape: int) -> tuple[Array, Array]:
    return case.array(*shape), np.full((shape[0], 11), np.nan, np.float32)


def check(graph: Graph, region: runtime.Region, data: Array, result: Array) -> None:
    region([data], [result])
    (expected,) = evaluate(graph, [data])
    np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-4, atol=1e-4)


def loaded(graph: Graph) -> runtime.Region:
    assert refusals(graph) == []
    backend = OneDnn()
    return backend.load(backend.code(graph))


def test_a_batch_of_any_size() -> None:
    case, graph = network()
    region = loaded(graph)
    for count in (2, 1, 5, 2):
        check(graph, region, *images(case, count, 19, 9, 7))


def test_images_of_any_size() -> None:
    case, graph = network(rows=symbol("h"))
    region = loaded(graph)
    for count, rows in ((2, 9), (1, 16), (3, 5)):
        check(graph, region, *images(case, count, 19, rows, 7))


def test_an_empty_batch() -> None:
    case, graph = network()
    data, result = images(case, 0, 19, 9, 7)
    loaded(graph)([data], [result])


def test_sums_of_nothing_are_left_to_the_host() -> None:
    case = Case()
    types = [TensorType(DType.FLOAT32, (rows, symbol("n"))) for rows in (3, 4)]
    x, weight = (case.builder.input(name, type_) for name, type_ in zip("xw", types, strict=True))
    region = loaded(case.builder.build(case("nn.dense", x, weight)))
    data = [np.empty((rows, 0), np.float32) for rows in (3, 4)]
    with pytest.raises(EvaluationError, match="tensors without elements"):
        region(data, [np.empty((3, 4), np.float32)])


def test_the_sizes_kept_are_bounded_and_share_constants() -> None:
    case, graph = network()
    region = loaded(graph)
    for count in range(1, 2 * runtime._SIZES):
        check(graph, region, *images(case, count, 19, 9, 7))
    assert len(region._by_shapes) == runtime._SIZES
    kept = region.primitives([(2 * runtime._SIZES - 1, 19, 9, 7)])
    assert kept is region.primitives([(2 * runtime._SIZES - 1, 19, 9, 7)])
    copies = [len(value.copies) for value in region._constants.values.values()]
    assert max(copies) < runtime._SIZES


def test_several_threads_with_sizes_of_their_own() -> None:
    case, graph = network()
    region, failures = loaded(graph), list[str]()
    sets = [images(case, 1 + number % 3, 19, 9, 7)[0] for number in range(6)]

    def work(data: Array) -> None:
        for _ in range(10):
            try:
                check(graph, region, data, np.full((len(data), 11), np.nan, np.float32))
            except AssertionError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=work, args=(data,)) for data in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_extents_that_follow_from_no_input_are_refused() -> None:
    case = Case()
    x = case.builder.input("x", TensorType(DType.FLOAT32, (symbol("n") * 2, 4)))
    reasons = refusals(case.builder.build(case("exp", x)))
    assert any("whose extents no operand tells" in reason for reason in reasons)


def test_a_model_with_a_symbolic_batch() -> None:
    _, graph = network()
    module = graft.compile(graph, "onednn", pins=["*=onednn"])
    assert len(module.placement.regions) == 1
    draw = np.random.default_rng(3)
    for count in (1, 4, 3):
        data = draw.standard_normal((count, 19, 9, 7), dtype=np.float32)
        (expected,) = evaluate(graph, [data])
        (result,) = module.run(None, {"x": data})
        np.testing.assert_allclose(result, np.asarray(expected), rtol=1e-4, atol=1e-4)
    assert not module.incidents
