"""Execution providers of ONNX Runtime as backends: one provider, all of a region, or an error."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from graft.backends.host.backend import HostBackend
from graft.backends.ort import runtime
from graft.backends.ort.backend import Ort
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.candidates import find_candidates
from graft.byoc.discover import Discovery, backend_named
from graft.byoc.probe import samples
from graft.byoc.tolerance import difference
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.passes.pipeline import optimize
from graft.runtime import loaders, onnx_session

CPU = "CPUExecutionProvider"
TAKES_NOTHING = "AzureExecutionProvider"  # built in, for operators of its own alone
FAMILY = Discovery({"ort": Ort()}, {"ort": "a test"})

MODEL = """
    <ir_version: 10, opset_import: ["": 20]>
    net (float[1, 3, 9, 9] x, float[4, 3, 3, 3] w) => (float[1, 4, 7, 7] y) {
      c = Conv (x, w)
      y = Relu (c)
    }
"""
QUANTIZED = """
    <ir_version: 10, opset_import: ["": 20]>
    net (uint8[1, 3] x) => (uint8[1, 4] y)
      <float s = {0.5}, uint8 z = {128}, float t = {0.25}, int8 v = {0}, int32 u = {0},
       float r = {0.125}, int32[4] b = {1, 2, -3, 4},
       int8[4, 3] w = {1, 2, 3, -4, -5, 6, 7, 8, 9, 10, 11, -12}> {
      data = DequantizeLinear (x, s, z)
      weight = DequantizeLinear (w, t, v)
      bias = DequantizeLinear (b, r, u)
      product = Gemm <transB = 1> (data, weight, bias)
      y = QuantizeLinear (product, s, z)
    }
"""


def test_a_network_as_one_region_agrees_with_the_host(models_dir: Path) -> None:
    graph = optimize(import_model(models_dir / "resnet18.onnx"))
    data = samples(graph, 1)
    ours, theirs = ([np.empty((1, 1000), np.float32)] for _ in range(2))
    HostBackend().runner(graph)(data, ours)
    (theirs,) = [Ort(CPU).runner(graph)(data, [])]
    assert theirs is not None
    assert difference(graph, theirs, ours) == ""


def test_what_a_provider_leaves_to_the_cpu_is_an_error() -> None:
    model = parser.parse_model(MODEL)
    provider = Ort(TAKES_NOTHING)
    if provider.missing():
        pytest.skip(provider.missing())
    with pytest.raises(UnsupportedError, match=f"{TAKES_NOTHING} does not take it: .*fallback"):
        provider.compile_model(model)
    graph = optimize(import_model(model))
    found = find_candidates(graph, [provider])
    assert not [c for c in found.candidates if c.backend == provider.name]
    reasons = {refused.reason for all_ in found.refusals.values() for refused in all_}
    assert any("does not take it" in reason for reason in reasons)


def test_quantised_layers_are_taken_whole() -> None:
    graph = duplicate_dequantize(optimize(import_model(parser.parse_model(QUANTIZED))))
    found = find_candidates(graph, [Ort(CPU)])
    (candidate,) = (c for c in found.candidates if c.pattern == "quantized nn.dense")
    assert len(candidate.nodes) == len(found.nodes)
    x = np.uint8([[0, 129, 255]])
    (y,) = Ort(CPU).runner(graph)([x], []) or ()
    data = (x.astype(np.float32) - 128) / 2
    weight = np.float32([[1, 2, 3], [-4, -5, 6], [7, 8, 9], [10, 11, -12]]) / 4
    bias = np.float32([1, 2, -3, 4]) / 8
    exact = np.clip(np.rint((data @ weight.T + bias) * 2) + 128, 0, 255)
    assert np.abs(exact - y).max() <= 1


def test_names_of_providers() -> None:
    assert backend_named(f"ort:{CPU}", FAMILY).name == f"ort:{CPU}"
    with pytest.raises(UserError, match=f"'ort' cannot run here: name a provider: .*ort:{CPU}"):
        backend_named("ort", FAMILY)
    with pytest.raises(UserError, match="has no 'NoSuchProvider' here: there are ort:"):
        backend_named("ort:NoSuchProvider", FAMILY)
    with pytest.raises(UserError, match="'host' is one backend, so that there is no 'host:big'"):
        backend_named("host:big", Discovery({"host": HostBackend()}, {"host": "a test"}))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "find_spec", lambda _name: None)
    assert "pip install 'graft-compiler[onnxruntime]'" in Ort(CPU).missing()
    with pytest.raises(UserError, match="it needs the package 'onnxruntime'"):
        loaders.check_loader(runtime.load, "1.31.1")


def test_a_plug_in_that_does_not_load_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package in the form of ONNX Runtime's guide, whose library is none."""
    (tmp_path / "onnxruntime_nothing.py").write_text(
        "def get_ep_names(): return ['NothingExecutionProvider']\n"
        "def get_library_path(): return '/nowhere/libnothing.so'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match=r"the plug-in onnxruntime_nothing does not load: .*\.so"):
        assert CPU in onnx_session.providers.__wrapped__()


def test_the_model_is_the_code() -> None:
    blob = Ort(CPU).compile_model(parser.parse_model(MODEL))
    provider, _, model = blob.partition(b"\0")
    assert provider == CPU.encode()
    onnx.checker.check_model(onnx.load_from_string(model))


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit('no\\x1b[31m licence')",
        "def get_ep_names(): return []\ndef get_library_path(): return ''",
        "def get_ep_names(): return [7]\ndef get_library_path(): return None",
    ],
)
def test_hostile_plug_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    (tmp_path / "onnxruntime_hostile.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime_hostile", raising=False)
    with pytest.warns(UserWarning, match="the plug-in onnxruntime_hostile") as caught:
        assert CPU in onnx_session.providers.__wrapped__()
    assert "\x1b" not in str(caught[0].message)


@pytest.mark.parametrize(
    "blob", [b"", b"\0", b"\xff\xfe\0x", CPU.encode(), f"{CPU}\0garbage".encode(), b"Nobody\0x"]
)
def test_blobs_that_are_no_models_are_refused(blob: bytes) -> None:
    with pytest.raises(UnsupportedError):
        runtime.load(blob, threads=1)


def test_options_that_a_provider_does_not_take() -> None:
    with pytest.raises(UnsupportedError, match="does not take its options"):
        onnx_session.session_options(CPU, 1, {"key": "x" * 1_000_000})


@pytest.mark.parametrize(("width", "is_taken"), [(1, False), (2, True)])
def test_single_pixels_are_not_normalised(width: int, is_taken: bool) -> None:
    """Of which nothing but the bias is left, and ONNX Runtime leaves a rounding error."""
    text = """
        <ir_version: 10, opset_import: ["": 20]>
        net (float[1, 2, 1, WIDTH] x, float[2] g, float[2] b) => (float[1, 2, 1, WIDTH] y) {
          y = InstanceNormalization (x, g, b)
        }
    """
    model = parser.parse_model(text.replace("WIDTH", str(width)))
    found = find_candidates(optimize(import_model(model)), [Ort(CPU)])
    assert any(one.backend == f"ort:{CPU}" for one in found.candidates) == is_taken


@pytest.mark.parametrize(("step", "is_taken"), [("0.125", True), ("0.25", False)])
def test_a_bias_in_other_steps_than_the_products(step: str, is_taken: bool) -> None:
    """ONNX Runtime's own fusion reads it as if it were in theirs."""
    model = parser.parse_model(QUANTIZED.replace("float r = {0.125}", f"float r = {{{step}}}"))
    graph = duplicate_dequantize(optimize(import_model(model)))
    found = find_candidates(graph, [Ort(CPU)])
    assert any(one.backend == f"ort:{CPU}" for one in found.candidates) == is_taken


@pytest.mark.parametrize(("bias", "is_taken"), [(2**30, True), (2**31 - 1, False)])
def test_sums_that_overflow_with_their_bias(bias: int, is_taken: bool) -> None:
    """ONNX Runtime's own fusion wraps them around."""
    model = parser.parse_model(QUANTIZED.replace("b = {1, 2, ", f"b = {{1, {bias}, "))
    graph = duplicate_dequantize(optimize(import_model(model)))
    found = find_candidates(graph, [Ort(CPU)])
    assert any(one.backend == f"ort:{CPU}" for one in found.candidates) == is_taken
    reasons = {one.reason for refused in found.refusals.values() for one in refused}
    assert any("overflow 32 bits" in one for one in reasons) == (not is_taken)


def test_a_bias_along_another_axis_than_the_outputs() -> None:
    """Neither it nor the zero points of the weights have to be as many as the outputs."""
    build = Builder()
    one = build.constant(np.float32(0.1))
    x = build("qnn.dequantize", build.input("x", tensor("int8", 3, 4)), one)
    scales, zeros = build.constant(np.ones(4, np.float32)), build.constant(np.ones(4, np.int8))
    weights = build.constant(np.ones((2, 4), np.int8))
    dense = build("nn.dense", x, build("qnn.dequantize", weights, scales, zeros, axis=1))
    bias = build("qnn.dequantize", build.constant(np.ones(3, np.int32)), one)
    biased = build("nn.bias_add", dense, bias, axis=0)
    zero = build.constant(np.int8(0))
    graph = build.build(build("qnn.quantize", biased, one, zero, dtype="int8"))
    reasons = find_candidates(graph, [Ort(CPU)]).refusals[graph.nodes[-1]]
    assert any("ONNX Runtime counts a bias in steps" in refused.reason for refused in reasons)


@pytest.mark.parametrize(("count", "is_taken"), [(1, True), (3, False)])
def test_data_of_several_scales(count: int, is_taken: bool) -> None:
    """ONNX Runtime makes a session, which fails when it runs."""
    scales = ", ".join(["0.5", "0.25", "1.0"][:count])
    text = f"""
        <ir_version: 10, opset_import: ["": 20]>
        net (uint8[1, 3] x) => (uint8[1, 2] y)
          <float[{count}] s = {{{scales}}}, float t = {{0.25}}, float r = {{1.0}}, uint8 z = {{0}},
           int8[2, 3] w = {{1, 2, 3, -4, -5, 6}}> {{
          data = DequantizeLinear <axis = {1 if count > 1 else 0}> (x, s)
          weight = DequantizeLinear (w, t)
          product = Gemm <transB = 1> (data, weight)
          y = QuantizeLinear (product, r, z)
        }}
    """
    graph = duplicate_dequantize(optimize(import_model(parser.parse_model(text))))
    found = find_candidates(graph, [Ort(CPU)])
    covered = {one.pattern for one in found.candidates if one.backend == f"ort:{CPU}"}
    assert ("quantized nn.dense" in covered) == is_taken
