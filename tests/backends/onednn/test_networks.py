"""Whole networks as regions, against the host; regions that are called by several threads."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.backends.onednn.regions import Case, operators, refusals

from graft.backends.host.backend import HostBackend
from graft.backends.onednn.backend import OneDnn
from graft.base.dtypes import Array
from graft.byoc.probe import samples
from graft.byoc.tolerance import difference
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.passes.pipeline import optimize
from graft.runtime.json_graph import unpack

MODELS = Path(__file__).parents[3] / "models"


def network(name: str) -> Graph:
    return optimize(import_model(MODELS / f"{name}.onnx"))


def empty(graph: Graph) -> list[Array]:
    return [np.empty(value.shape, np.float32) for value in graph.outputs]  # type: ignore[arg-type]


def test_resnet18_is_one_region_that_agrees_with_the_host() -> None:
    graph = network("resnet18")
    assert refusals(graph) == []
    plan = operators(unpack(OneDnn().compile(graph)))
    assert plan == ["convolution_forward", "pooling_forward"] + ["convolution_forward"] * 19 + [
        "pooling_forward",
        "matmul",
    ]
    data = samples(graph, 1)
    found, wanted = empty(graph), empty(graph)
    OneDnn().runner(graph)(data, found)
    HostBackend().runner(graph)(data, wanted)
    assert difference(graph, found, wanted) == ""


@pytest.mark.parametrize("name", ["mobilenet_v2", "inception_v3", "resnet50"])
def test_networks_of_which_nothing_is_left_to_others(name: str) -> None:
    assert refusals(network(name)) == []


def test_of_a_transformer_only_the_choice_of_a_token_is_left() -> None:
    assert set(refusals(network("vit_b_16"))) == {"no pattern of onednn ends in take"}


def block() -> tuple[Case, Graph]:
    """A convolution with a residual, and a product, on odd shapes."""
    case = Case()
    x = case.input(1, 19, 17, 15)
    y = case("nn.conv2d", x, case.constant(19, 19, 3, 3), padding=(1, 1, 1, 1))
    y = case("nn.relu", case("add", y, x))
    y = case("reshape", case("mean", y, axes=(2, 3)), shape=(1, 19))
    return case, case.builder.build(case("nn.dense", y, case.constant(11, 19)))


def test_several_threads_at_once() -> None:
    _, graph = block()
    runner = OneDnn().runner(graph)
    inputs = [samples(graph, seed)[0] for seed in range(8)]
    wanted = [np.asarray(evaluate(graph, [x])[0]) for x in inputs]
    failures: list[str] = []

    def work(number: int) -> None:
        result = empty(graph)
        for _ in range(50):
            runner([inputs[number]], result)
            if not np.allclose(result[0], wanted[number], rtol=1e-4, atol=1e-4):
                failures.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_calls_do_not_depend_on_each_other_or_on_the_caller_s_memory() -> None:
    case, graph = block()
    runner = OneDnn().runner(graph)
    first, second = empty(graph), empty(graph)
    runner(case.data, first)
    other = case.data[0].copy() * 2
    runner([other], second)
    other[...] = np.nan
    again = empty(graph)
    runner(case.data, again)
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(first[0], second[0])


def test_memory_goes_with_the_region() -> None:
    _, graph = block()
    runner = OneDnn().runner(graph)
    gone = weakref.ref(runner)
    del runner
    gc.collect()
    assert gone() is None


def test_buffers_serve_one_after_the_other() -> None:
    case = Case()
    y = case.input(1, 16, 20, 20)
    for _ in range(8):
        y = case("nn.relu", case("nn.conv2d", y, case.constant(16, 16, 1, 1)))
    backend, graph = OneDnn(), case.builder.build(y)
    primitives = backend.load(backend.code(graph)).primitives([(1, 16, 20, 20)])
    arrays = [
        value.buffer.array
        for _, arguments in primitives.steps
        for number, value in arguments.items()
        if number == 17 and value.buffer.array is not None
    ]
    assert len(arrays) >= 7
    assert len({id(array) for array in arrays}) <= 3
