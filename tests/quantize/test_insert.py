"""Units, calibration and insertion: quantised graphs stay close to the float ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.quantize.models import NETWORKS, residual, samples

import graft
from graft.backends.host.passes.use_integers import use_integers
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.byoc.formats.onnx_model import to_onnx
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.quantize.calibrate import Calibration, Feeds, Statistics
from graft.quantize.confidence import OutputError
from graft.quantize.insert import insert_precisions
from graft.quantize.ranges import METHODS
from graft.quantize.report import INTEGER
from graft.quantize.scheme import Scheme
from graft.quantize.units import constants_of, find_units, quantized_values, scale_classes

ANY = pytest.mark.parametrize("name", NETWORKS)


Run = Callable[[Feeds], Sequence[Array]]


def compiled(graph: Graph) -> Run:
    """Natively, all of it."""
    module = graft.compile(graph, strict=True)
    return lambda feeds: module.run(None, feeds)


def evaluated(graph: Graph) -> Run:
    """By the reference evaluator."""
    return lambda feeds: evaluate(graph, list(feeds.values()))


def calibrated(graph: Graph, count: int = 8, method: str = "mse") -> Statistics:
    calibration = Calibration(graph, find_units(graph), compiled)
    for sample in samples(graph, count):
        calibration.add(sample)
    return calibration.statistics(method)


@dataclass(frozen=True)
class Case:
    """A network, and all of it on integers."""

    graph: Graph
    known: Statistics
    quantized: Graph
    run: Run
    run_quantized: Run


def case(name: str, method: str = "mse") -> Case:
    return _case(name, method)


@cache
def _case(name: str, method: str) -> Case:
    graph = NETWORKS[name]()
    known = calibrated(graph, method=method)
    quantized = verify(insert_precisions(graph, dict.fromkeys(find_units(graph), INTEGER), known))
    return Case(graph, known, quantized, compiled(graph), compiled(quantized))


def relative_error(one: Run, two: Run, given: Sequence[Feeds]) -> float:
    error = OutputError()
    for sample in given:
        error.add(one(sample), two(sample))
    return error.relative


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "mse") for name in NETWORKS), *(("perceptron", method) for method in METHODS)],
)
def test_quantised_networks_are_close(name: str, method: str) -> None:
    one = case(name, method)
    error = relative_error(one.run, one.run_quantized, samples(one.graph, 8, seed=99))
    assert 0 < error < (0.2 if method == "entropy" else 0.06)


@ANY
def test_every_unit_is_integer_on_the_host(name: str) -> None:
    names = Counter(node.op.name for node in use_integers(case(name).quantized).nodes)
    units = Counter(unit.anchor.op.name for unit in case(name).known.units)
    for layer in ("conv1d", "conv2d", "conv3d", "dense"):
        assert names[f"qnn.{layer}"] == units[f"nn.{layer}"]
    assert names["qnn.batch_matmul"] == units["nn.batch_matmul"]
    assert names["qnn.attention"] == units["nn.attention"]
    assert not {*units, "qnn.quantize", "qnn.dequantize"} & set(names)


@ANY
def test_native_code_gives_what_the_evaluator_gives(name: str) -> None:
    one = case(name)

    # Numbers within rounding of a tie may go either way.
    assert (
        relative_error(evaluated(one.quantized), one.run_quantized, samples(one.graph, 2, seed=5))
        < 0.02
    )


@ANY
def test_onnx_runtime_runs_what_is_written(name: str) -> None:
    one = case(name)
    session = onnxruntime.InferenceSession(to_onnx(one.quantized).SerializeToString())

    def theirs(feeds: Feeds) -> Sequence[Array]:
        return list(session.run(None, feeds))

    assert relative_error(theirs, one.run_quantized, samples(one.graph, 4, seed=5)) < 0.02


@pytest.mark.parametrize("name", ["residual", "transformer"])
@pytest.mark.parametrize(
    ("scheme", "largest"),
    [
        (Scheme(DType.INT8), 0.06),
        (Scheme(DType.INT8, symmetric=True), 0.06),
        (Scheme(DType.INT16, symmetric=True), 0.02),
        (Scheme(DType.UINT16), 0.02),
        (Scheme(weights=DType.INT4), 0.3),
    ],
    ids=str,
)
def test_schemes(name: str, scheme: Scheme, largest: float) -> None:
    """Each is close to float, and ONNX Runtime runs what is written to the same results."""
    graph = NETWORKS[name]()
    units = find_units(graph)
    calibration = Calibration(graph, units, evaluated)
    for sample in samples(graph, 8):
        calibration.add(sample)
    quantized = verify(
        insert_precisions(
            graph, dict.fromkeys(units, INTEGER), calibration.statistics("mse", scheme)
        )
    )
    codes = [node.output for node in quantized.nodes if node.op.name == "qnn.quantize"]
    assert {value.dtype for value in codes} == {scheme.activations}
    given = samples(graph, 4, seed=5)
    ours = evaluated(quantized)
    assert 0 < relative_error(evaluated(graph), ours, given) < largest
    model = to_onnx(quantized)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert relative_error(lambda feeds: list(session.run(None, feeds)), ours, given) < 0.02


@ANY
def test_nothing_chosen_changes_nothing(name: str) -> None:
    one = case(name)
    assert insert_precisions(one.graph, {}, one.known).nodes == one.graph.nodes


def test_a_sum_belongs_to_the_later_layer() -> None:
    units = find_units(residual())
    assert [len(unit.epilogue) for unit in units] == [2, 2, 1, 3, 2, 3, 1]
    assert sum(len(unit.residuals) for unit in units) == 2


def test_what_is_moved_shares_a_scale() -> None:
    graph = case("branching").graph
    roots = scale_classes(graph, quantized_values(graph, find_units(graph)))
    joined = next(node for node in graph.nodes if node.op.name == "concatenate")
    assert len({roots[value] for value in (*joined.args, joined.output)}) == 1
    quantized = use_integers(case("branching").quantized)
    joined = next(node for node in quantized.nodes if node.op.name == "concatenate")
    assert joined.output.dtype == "uint8"


def test_softmax_reads_floats() -> None:
    quantized = case("perceptron").quantized
    softmax = next(node for node in quantized.nodes if node.op.name == "nn.softmax")
    source = quantized.producers[softmax.args[0]]
    assert source.op.name == "nn.bias_add"


def test_bias_correction_removes_the_shift() -> None:
    """Data whose mean is far from zero make rounded weights shift the outputs."""
    graph, units = case("perceptron").graph, case("perceptron").known.units
    draw = np.random.default_rng(4)
    calibration = Calibration(graph, units[:1], compiled)
    data = [draw.normal(50.0, 1.0, (1, 7, 32)).astype(np.float32) for _ in range(40)]
    for one in data:
        calibration.add({"x": one})
    known = calibration.statistics("mse")
    weight, rounded = units[0].weight, known.weights[units[0].anchor]
    assert weight is not None
    shift = np.mean([one[0] @ (rounded.values - weight).T for one in data], axis=(0, 1))
    np.testing.assert_allclose(rounded.shift, shift, atol=1e-3)
    quantized = insert_precisions(graph, dict.fromkeys(units[:1], INTEGER), known)
    constants = constants_of(quantized)
    arrays = {value.name: array for value, array in constants.items()}
    name = units[0].epilogue[0].args[1].name
    bias = arrays[f"{name}_quantized"] * arrays[f"{name}_scale"]
    assert units[0].bias is not None
    np.testing.assert_allclose(bias, units[0].bias - shift, atol=2e-3)


def test_infinite_activations_are_named() -> None:
    graph = residual()
    calibration = Calibration(graph, find_units(graph), compiled)
    (sample,) = samples(graph, 1)
    with pytest.raises(UserError, match="cannot be calibrated"):
        calibration.add({"x": np.full_like(sample["x"], 3e38)})


@pytest.mark.parametrize(("spread", "most"), [(0.3, 0.02), (2.0, 0.03)])
def test_probabilities_of_many_keys_keep_their_precision(spread: float, most: float) -> None:
    """With 300 keys alike, probabilities are less than one step of 8 bits; with few that count,
    they are not."""
    g, shape = Builder(), (1, 2, 300, 16)
    query, key, value = (g.input(name, tensor("float32", *shape)) for name in "qkv")
    graph = g.build(g("nn.attention", query, key, value))
    draw = np.random.default_rng(3)

    def sample() -> Feeds:
        q, k, v = (draw.standard_normal(shape).astype(np.float32) for _ in range(3))
        return {"q": q * np.float32(spread), "k": k, "v": v + np.float32(1)}

    calibration = Calibration(graph, find_units(graph), evaluated)
    given = [sample() for _ in range(4)]
    for one in given[:2]:
        calibration.add(one)
    known = calibration.statistics("mse")
    quantized = insert_precisions(graph, dict.fromkeys(known.units, INTEGER), known)
    assert relative_error(evaluated(graph), evaluated(quantized), given[2:]) < most
