"""Units, calibration and insertion: quantised graphs stay close to the float ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from tests.quantize.models import NETWORKS, branching, perceptron, residual, samples

import graft
from graft.backends.host.use_integers import use_integers
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.byoc.formats.onnx_model import to_onnx
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.verify import verify
from graft.quantize.calibrate import Calibration, Feeds, Statistics
from graft.quantize.insert import insert_quantization
from graft.quantize.ranges import METHODS
from graft.quantize.sensitivity import SWITCHES, OutputError, contributions, switched
from graft.quantize.units import find_units, quantized_values, scale_classes

ANY = pytest.mark.parametrize("name", NETWORKS)


def compiled(graph: Graph) -> Callable[[Feeds], Sequence[Array]]:
    """Natively, all of it."""
    module = graft.compile(graph, strict=True)
    return lambda feeds: module.run(None, feeds)


def calibrated(graph: Graph, count: int = 8, method: str = "mse") -> Statistics:
    calibration = Calibration(graph, find_units(graph), compiled)
    for sample in samples(graph, count):
        calibration.add(sample)
    return calibration.statistics(method)


def relative_error(graph: Graph, other: Graph) -> float:
    error, one, two = OutputError(), compiled(graph), compiled(other)
    for sample in samples(graph, 8, seed=99):
        error.add(one(sample), two(sample))
    return error.relative


@ANY
@pytest.mark.parametrize("method", METHODS)
def test_quantised_networks_are_close(name: str, method: str) -> None:
    graph = NETWORKS[name]()
    known = calibrated(graph, method=method)
    quantized = verify(insert_quantization(graph, find_units(graph), known))
    assert 0 < relative_error(graph, quantized) < (0.2 if method == "entropy" else 0.06)


@ANY
def test_every_unit_is_integer_on_the_host(name: str) -> None:
    graph = NETWORKS[name]()
    units = find_units(graph)
    made = use_integers(insert_quantization(graph, units, calibrated(graph, 2)))
    names = [node.op.name for node in made.nodes]
    assert sum(one in ("qnn.conv2d", "qnn.dense") for one in names) == len(units)
    assert not {"nn.conv2d", "nn.dense", "qnn.quantize", "qnn.dequantize"} & set(names)


@ANY
def test_native_code_gives_what_the_evaluator_gives(name: str) -> None:
    graph = NETWORKS[name]()
    quantized = insert_quantization(graph, find_units(graph), calibrated(graph, 2))
    error, run = OutputError(), compiled(quantized)
    for sample in samples(graph, 2, seed=5):
        error.add(evaluate(quantized, list(sample.values())), run(sample))
    assert error.relative < 0.02  # numbers within rounding of a tie may go either way


@ANY
def test_onnx_runtime_runs_what_is_written(name: str) -> None:
    graph = NETWORKS[name]()
    quantized = insert_quantization(graph, find_units(graph), calibrated(graph, 4))
    session = onnxruntime.InferenceSession(to_onnx(quantized).SerializeToString())
    error, run = OutputError(), compiled(quantized)
    for sample in samples(graph, 4, seed=5):
        error.add(session.run(None, sample), run(sample))
    assert error.relative < 0.02


@ANY
def test_nothing_chosen_changes_nothing(name: str) -> None:
    graph = NETWORKS[name]()
    assert insert_quantization(graph, [], calibrated(graph, 2)).nodes == graph.nodes


@ANY
def test_each_unit_alone(name: str) -> None:
    """What is perturbed by the switch is what quantising the unit alone gives, about."""
    graph = NETWORKS[name]()
    known = calibrated(graph, 4)
    errors = contributions(graph, known, compiled, samples(graph, 8, seed=99), lambda _: None)
    for unit, error in errors.items():
        alone = insert_quantization(graph, [unit], known)
        assert 0 < 0.2 * error <= relative_error(graph, alone) ** 2 <= 5 * error


def test_without_switches_it_is_the_float_network() -> None:
    graph = residual()
    units = find_units(graph)
    both, plain = compiled(switched(graph, calibrated(graph, 2))), compiled(graph)
    (sample,) = samples(graph, 1)
    off = {**sample, SWITCHES: np.zeros(len(units), bool)}
    np.testing.assert_allclose(both(off)[0], plain(sample)[0], rtol=1e-4, atol=1e-5)


def test_a_sum_belongs_to_the_later_layer() -> None:
    units = find_units(residual())
    assert [len(unit.epilogue) for unit in units] == [2, 2, 1, 3, 2, 3, 1]
    assert sum(len(unit.residuals) for unit in units) == 2


def test_what_is_moved_shares_a_scale() -> None:
    graph = branching()
    values = quantized_values(graph, find_units(graph))
    roots = scale_classes(graph, values)
    joined = next(node for node in graph.nodes if node.op.name == "concatenate")
    assert len({roots[value] for value in (*joined.args, joined.output)}) == 1
    quantized = use_integers(insert_quantization(graph, find_units(graph), calibrated(graph, 2)))
    joined = next(node for node in quantized.nodes if node.op.name == "concatenate")
    assert joined.output.dtype == "uint8"


def test_softmax_reads_floats() -> None:
    graph = perceptron()
    quantized = insert_quantization(graph, find_units(graph), calibrated(graph, 2))
    softmax = next(node for node in quantized.nodes if node.op.name == "nn.softmax")
    source = quantized.producers[softmax.args[0]]
    assert source.op.name == "nn.bias_add"


def test_bias_correction_removes_the_shift() -> None:
    """Data whose mean is far from zero make rounded weights shift the outputs."""
    graph = perceptron()
    units = find_units(graph)
    known = calibrated(graph)
    first, plain = (
        insert_quantization(
            graph, units[:1], replace(known, means={units[0].anchor: np.full(32, mean)})
        )
        for mean in (50.0, 0.0)
    )
    weight = units[0].weight
    error = (units[0].quantized.values - weight).sum(axis=1) * 50.0

    def bias(of: Graph) -> Array:
        arrays = {n.output.name: n.attrs.value.array for n in of.nodes if n.op.name == "constant"}
        name = units[0].epilogue[0].args[1].name
        return np.asarray(arrays[f"{name}_quantized"] * arrays[f"{name}_scale"])

    np.testing.assert_allclose(bias(plain) - bias(first), error, atol=1e-3)


def test_infinite_activations_are_named() -> None:
    graph = residual()
    calibration = Calibration(graph, find_units(graph), compiled)
    (sample,) = samples(graph, 1)
    with pytest.raises(UserError, match="cannot be calibrated"):
        calibration.add({"x": sample["x"] * np.float32(3e38)})
