"""`graft.compile(precision=...)`: the promises, and requests that make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.quantize.models import NETWORKS, perceptron, residual, samples

import graft
from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.byoc import Backend, JsonBackend, Limits, measure
from graft.byoc.formats.onnx_model import to_onnx
from graft.byoc.precision import UnitOption
from graft.compiler import compile_options
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.precision import CANDIDATES, Quantized, _Trial, quantize
from graft.quantize.confidence import OutputError
from graft.quantize.data import DataWarning
from graft.quantize.report import (
    AUTO,
    BRAIN,
    FLOAT,
    HALF,
    INTEGER,
    Budget,
    Quality,
    Report,
    UnitReport,
)
from graft.quantize.scheme import Scheme
from graft.quantize.units import Unit, find_units
from graft.runtime.native import host_architecture
from graft.stages import Imported, import_graph, optimize
from graft.target.target import named_target


@pytest.fixture(autouse=True)
def _short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RACE_BUDGET", 0.02)
    monkeypatch.setattr("graft.backends.host.executable._PROFILE_SECONDS", 0.02)


def quantized(name: str, precision: str, budget: Any = None, count: int = 8) -> Quantized:
    graph = NETWORKS[name]()
    data = samples(graph, count)
    return quantize(optimize(Imported(graph)), data, compile_options(), precision, budget)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        *(("residual", 0.2), ("perceptron", 0.01), ("perceptron", 1e-6)),
        *(("perceptron", "top1=0.9"), ("separable", 0.005)),
    ],
)
def test_promises(name: str, budget: float | str) -> None:
    report = quantized(name, AUTO, budget).report
    assert report.quality.meets(Budget.parse(budget))
    assert report.seconds < report.float_seconds or report.narrow_units == 0
    assert all(unit.reason or unit.precision != FLOAT for unit in report.units)
    if budget == 1e-6:
        assert report.narrow_units == 0
        assert report.quality.error == 0
    times, errors = zip(*((one.seconds, one.error) for one in report.front), strict=True)
    assert list(errors) == sorted(errors)
    assert list(times) == sorted(times, reverse=True)


def test_every_precision_has_its_reason() -> None:
    unit, *_ = find_units(residual())
    trial = object.__new__(_Trial)
    for options, reason in (
        (
            {INTEGER: UnitOption(1.0, 0.5), BRAIN: UnitOption(3.0, 0.1)},
            "no faster in bf16, and over",
        ),
        ({INTEGER: UnitOption(3.0, 0.1), BRAIN: UnitOption(3.0, 0.1)}, "no faster in int8 or bf16"),
        ({INTEGER: UnitOption(1.0, 0.5)}, "its error alone is over the budget"),
        ({INTEGER: UnitOption(1.0, 0.1)}, "the budget is better spent on other units"),
    ):
        costs = {FLOAT: UnitOption(2.0), **options}
        assert trial._why_float(unit, costs, 0.2).startswith(reason)


def test_all_on_integers() -> None:
    found = quantized("residual", INTEGER)
    assert found.report.count(INTEGER) == len(found.report.units) == 7
    assert 0 < found.report.quality.error < 0.06
    with pytest.raises(UserError, match="over the budget"):
        quantized("residual", INTEGER, 1e-6)


def test_compiled_saved_and_loaded(tmp_path: Path) -> None:
    graph = residual()
    data = samples(graph, 6)
    module = graft.compile(graph, precision="int8", data=data, strict=True)
    exact = graft.compile(graph).run(None, data[0])[0]
    found = module.run(None, data[0])[0]
    assert 0 < np.linalg.norm(found - exact) < 0.06 * np.linalg.norm(exact)
    module.save(tmp_path / "model.graft")
    np.testing.assert_array_equal(graft.load(tmp_path / "model.graft").run(None, data[0])[0], found)


def test_written_for_others(tmp_path: Path) -> None:
    """A model file keeps the names of inputs and outputs."""
    plain = to_onnx(residual())
    plain.graph.output[0].name = "scores"
    plain.graph.node.append(
        onnx.helper.make_node("Identity", [residual().outputs[0].name], ["scores"])
    )
    path = tmp_path / "plain.onnx"
    onnx.save(plain, path)
    found = quantize(
        optimize(import_graph(path)),
        samples(residual(), 6),
        compile_options(),
        INTEGER,
    )
    written = to_onnx(found.optimized.graph)
    onnx.checker.check_model(written)
    session = onnxruntime.InferenceSession(written.SerializeToString())
    (sample,) = samples(residual(), 1, seed=4)
    theirs = session.run(["scores"], sample)[0]
    ours = graft.compile(found.optimized).run(["scores"], sample)[0]
    assert np.argmax(theirs) == np.argmax(ours)
    assert np.linalg.norm(theirs - ours) < 0.05 * np.linalg.norm(ours)


def test_random_data_are_reported() -> None:
    graph = residual()
    report = quantize(optimize(Imported(graph)), "random", compile_options(), INTEGER).report
    assert report.random
    assert report.samples + report.held_out == 16


def test_batches_of_any_size() -> None:
    """What is calibrated at some sizes runs at others."""
    g = Builder()
    x = g.input("x", tensor("float32", symbol("batch"), 16))
    weight = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    graph = g.build(g("nn.relu", g("nn.dense", x, g.constant(weight))))
    draw = np.random.default_rng(1)
    data = [draw.normal(size=(size, 16)).astype(np.float32) for size in (3, 1, 5, 2)]
    for precision in ("int8", "auto"):
        module = graft.compile(graph, precision=precision, data=data, strict=True)
        found = module.run(None, {"x": data[2][:4]})[0]
        exact = np.maximum(data[2][:4] @ weight.T, 0)
        assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)


def _refused(**asked: Any) -> str:
    with pytest.raises(UserError) as caught:
        graft.compile(asked.pop("model", None) or residual(), **asked)
    return str(caught.value)


@pytest.mark.parametrize("precision", [BRAIN, HALF])
def test_sixteen_bits(precision: str) -> None:
    """No samples are needed; what is not faster stays in float, with the reason."""
    report = quantized("residual", precision).report
    assert report.quality.error < 0.02
    assert report.seconds < report.float_seconds or report.narrow_units == 0
    kept = [unit.reason for unit in report.units if unit.precision == FLOAT]
    assert all(kept)
    if precision == HALF:
        assert all("do not stream from memory" in reason for reason in kept)
    module = graft.compile(residual(), precision=precision)
    assert np.isfinite(module.run(None, samples(residual(), 1)[0])[0]).all()


def test_backends_that_do_not_compute_in_sixteen_bits() -> None:
    graph = residual()
    options = compile_options(["simnpu", "host"])
    data = samples(graph, 4)
    report = quantize(optimize(Imported(graph)), data, options, BRAIN).report
    assert report.refusals == ("'simnpu' does not compute in bfloat16, but in float32",)


class _Wide(JsonBackend):
    """Takes nothing, and would like activations of 16 bits."""

    name = "wide"
    limits = Limits(quantized=(Scheme(DType.INT16, symmetric=True), Scheme(DType.INT8)))
    kernels: ClassVar[dict[str, Any]] = {}


@pytest.mark.parametrize(
    ("precision", "accelerators", "dtypes"),
    [
        ("int16", (_Wide(),), {"int16", "int8", "int32"}),
        ("int8", (_Wide(),), {"int8", "int32"}),
        ("int8", (), {"uint8", "int8", "int32"}),
        ("int4", (), {"uint8", "int4", "int32"}),
    ],
)
def test_targets_say_which_integers_they_want(
    precision: str, accelerators: tuple[Backend, ...], dtypes: set[str]
) -> None:
    graph, options = perceptron(), replace(compile_options(), accelerators=accelerators)
    found = quantize(optimize(Imported(graph)), samples(graph, 4), options, precision)
    nodes = found.optimized.graph.nodes
    stored = {str(n.args[0].dtype) for n in nodes if n.op.name == "qnn.dequantize"}
    assert stored == dtypes
    assert {unit.precision for unit in found.report.units} == {precision}
    if precision == "int4":
        (refusal,) = found.report.refusals
        assert refusal == (
            "'host' does not multiply affine uint8 by int4, but affine uint8 by int8:"
            " such units run in float"
        )


def test_schemes_that_make_no_sense() -> None:
    with pytest.raises(UserError, match="int32 by int8 is no scheme of integers"):
        Scheme(DType.INT32)


def test_precisions_are_chosen_together_with_backends() -> None:
    """What an accelerator runs stays in float; promises hold against the float plan."""
    graph, options = residual(), compile_options(["onednn", "host"])
    if options.accelerators[0].missing():
        pytest.skip("it takes oneDNN: pip install 'graft-compiler[onednn]'")
    report = quantize(optimize(Imported(graph)), samples(graph, 4), options, AUTO, 0.2).report
    assert report.quality.meets(Budget(0.2))
    assert report.seconds < report.float_seconds or report.narrow_units == 0


def test_two_samples_are_enough_without_a_budget() -> None:
    quality = quantized("perceptron", INTEGER, count=2).report.quality
    assert 0 < quality.error < quality.error_bound == np.inf


def test_budgets_hold_for_data_that_were_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few samples set aside the result is as far below the budget as others may be above."""
    seconds = iter([1.0, *[0.5] * len(CANDIDATES[AUTO])])  # in float, then in each precision

    def unit_seconds(_graph: Graph, units: Sequence[Unit], _groups: object) -> tuple[Any, Any]:
        return [next(seconds)] * len(units), ()

    monkeypatch.setattr("graft.precision.unit_seconds", unit_seconds)
    monkeypatch.setattr("graft.precision.race", lambda runs: {"float": 1.0, "mixed": 0.5})
    found = quantized("perceptron", AUTO, 0.006)
    quality = found.report.quality
    assert quality.error < quality.error_bound <= 0.006
    narrow, exact = graft.compile(found.optimized), graft.compile(perceptron())
    error = OutputError()
    for sample in samples(perceptron(), 64, seed=77):
        error.add(exact.run(None, sample), narrow.run(None, sample))
    assert error.relative <= 0.006


@pytest.mark.parametrize(
    ("budget", "quality", "text"),
    [
        (Budget(0.05), Quality(0.04, 0.045), "4 samples measured on leave a margin of 12%"),
        (Budget(0.05), Quality(0.049, 0.0495), ""),
        (Budget(None, 0.9), Quality(0.1, 0.2, 1.0, 0.3), "4 samples agree, which proves 30.0%"),
        (Budget(None, 0.9), Quality(0.1, 0.2, 0.98, 0.95), ""),
        (None, Quality(0.04, 0.045), ""),
    ],
)
def test_advice(budget: Budget | None, quality: Quality, text: str) -> None:
    units = tuple(UnitReport(kind, "nn.dense", kind, "") for kind in (FLOAT, INTEGER))
    report = Report(units, 12, 4, quality, 1.0, 0.5, budget)
    assert (text in report.advice) if text else report.advice == ""
    assert replace(report, random=True).advice == ""


def test_requests_that_make_no_sense() -> None:
    data = samples(residual(), 4)
    assert "needs samples to calibrate on" in _refused(precision="auto")
    assert "are for quantisation" in _refused(data=data)
    assert "are for quantisation" in _refused(budget=0.1)
    assert "known ones: float32, fp16, bf16, int8, int16, int4, auto" in _refused(
        precision="int3", data=data
    )
    assert "too few samples (1)" in _refused(precision="auto", data=data[:1])
    assert "too few samples (0)" in _refused(precision="auto", data=[])
    assert "too few samples (2): a budget is kept by how much errors differ" in _refused(
        precision="auto", data=data[:2]
    )
    for budget in (0, -1, 2, "most", "top5=0.9", float("nan")):
        assert "is no share of 1" in _refused(precision="auto", data=data, budget=budget)
    for machine in ("aarch64", "x86-64"):
        if machine.replace("-", "_") == host_architecture():
            continue
        assert f"code for machine='{machine}' is for {machine.replace('-', '_')}" in _refused(
            precision="int8", data=data, machine=machine
        )
    assert "'onednn' is for this machine" in _refused(
        precision="int8", data=data, target="onednn,host", machine="plain"
    )
    nothing = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    assert "nothing to quantise" in _refused(model=nothing, precision="int8", data=[np.ones(2)])
    with pytest.warns(DataWarning, match="nothing to quantise"):  # float keeps every promise
        module = graft.compile(nothing, precision="auto", data=[np.ones(2)])
    assert module.run(None, {"x": np.float32([-1, 2])})[0].tolist() == [0, 2]


LESSER = "x86-64-v2"


@pytest.mark.skipif(host_architecture() != "x86_64", reason="its levels are x86's")
@pytest.mark.parametrize("precision", [AUTO, INTEGER])
def test_for_a_lesser_machine(precision: str, tmp_path: Path) -> None:
    """What this machine can run it can measure; the file asks for that machine's features only."""
    graph = residual()
    data = samples(graph, 8)
    asked = {"precision": precision, "data": data, "budget": 0.2}
    module = graft.compile(graph, machine=LESSER, **asked)
    exact = graft.compile(graph).run(None, data[0])[0]
    result = module.run(None, data[0])[0]
    assert np.linalg.norm(result - exact) < 0.2 * np.linalg.norm(exact)
    assert module.program.target.features == named_target(LESSER).features
    module.save(tmp_path / "model.graft")
    again = graft.load(tmp_path / "model.graft").run(None, data[0])[0]
    np.testing.assert_array_equal(again, result)


def test_code_that_this_machine_lacks_instructions_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.runtime.native.host_features", lambda: frozenset({"sse", "sse2"}))
    monkeypatch.setattr("graft.runtime.native.host_architecture", lambda: "x86_64")
    message = _refused(precision="auto", data=samples(residual(), 4), machine="x86-64-v3")
    assert "code for machine='x86-64-v3' needs a processor with avx, avx2," in message
    assert "quantise there" in message


@pytest.mark.parametrize(
    ("constant", "message"),
    [
        ((0, 1, 2), "the input 'x' is constant in all channels over all samples"),
        ((1,), "the input 'x' is constant in channel 1 over all samples"),
        ((0, 2), "the input 'x' is constant in channels 0, 2 over all samples"),
    ],
)
def test_constant_channels_are_named(constant: tuple[int, ...], message: str) -> None:
    """They have no range of their own, which is harmless, but nothing else has been seen."""
    graph = residual()
    data = [{"x": np.array(one["x"])} for one in samples(graph, 4)]
    for one in data:
        one["x"][:, constant] = 0.5
    with pytest.warns(DataWarning, match=message):
        module = graft.compile(graph, precision="int8", data=data)
    assert np.isfinite(module.run(None, data[0])[0]).all()
