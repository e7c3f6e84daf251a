"""Quantised regions on the emulated HTP: within a step of ONNX Runtime, never in floats, and never
left to the CPU without a word.

The provider is a download of 99 MB, so that these tests are of `make test-full`."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import graft
from graft.backends.qnn import backend, runtime
from graft.backends.qnn.backend import Qnn
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import Source
from graft.byoc.discover import Discovery, backend_named
from graft.byoc.kit import conformance
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.passes.pipeline import optimize
from graft.runtime import loaders, onnx_session

pytestmark = pytest.mark.full
EXTENTS = (224, 56, 8, 4)
FOUND = Discovery({"qnn": Qnn()}, {"qnn": "a test"})
HEADER = '<ir_version: 9, opset_import: ["": 20]>\n'


@pytest.fixture(autouse=True)
def _needs_the_provider() -> None:
    if runtime.missing():
        pytest.skip(runtime.missing())


def graph_of(text: str) -> Graph:
    return duplicate_dequantize(optimize(import_model(parser.parse_model(HEADER + text))))


def blocks(extents: tuple[int, ...], channels: int = 64) -> onnx.ModelProto:
    """Quantised convolutions of images that get smaller, with a Softsign, which the provider does
    not take, between each two of them."""
    draw = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    arrays: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(128), "t": np.float32(0.002)}
    arrays |= {"v": np.int8(0)}

    def add(kind: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attrs))
        return f"v{len(nodes) - 1}"

    value = "x"
    for index, extent in enumerate(extents):
        shape = (channels, channels, 3, 3)
        arrays[f"w{index}"] = draw.integers(-127, 128, shape).astype(np.int8)
        data = add("DequantizeLinear", value, "s", "z")
        weight = add("DequantizeLinear", f"w{index}", "t", "v")
        step = 1 if index == 0 else extents[index - 1] // extent
        product = add("Conv", data, weight, pads=[1] * 4, strides=[step] * 2)
        value = add("QuantizeLinear", add("Relu", product), "s", "z")
        if extent != extents[-1]:
            gate = add("Softsign", add("DequantizeLinear", value, "s", "z"))
            value = add("QuantizeLinear", gate, "s", "z")
    kind = onnx.TensorProto.UINT8
    first, last = ((1, channels, extent, extent) for extent in (extents[0], extents[-1]))
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", kind, first)],
        [helper.make_tensor_value_info(value, kind, last)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


CLIPPED = """
    net (uint8[1, 3] x) => (uint8[1, 2] y)
      <float s = {0.5}, uint8 z = {128}, float t = {0.25}, int8 v = {0}, float low = {LOW},
       float high = {HIGH}, int8[2, 3] w = {1, 2, 3, -4, -5, 6}> {
      data = DequantizeLinear (x, s, z)
      weight = DequantizeLinear (w, t, v)
      product = Gemm <transB = 1> (data, weight)
      clipped = Clip (product, low, high)
      y = QuantizeLinear (clipped, s, z)
    }
"""


@pytest.mark.parametrize(("low", "high"), [(-3, 5), (-64, 63.5)], ids=["binding", "redundant"])
def test_an_activation_inside_a_unit_stays_on_integers(low: float, high: float) -> None:
    """The provider alone would compute it in float16; `compile` refuses that."""
    graph = graph_of(CLIPPED.replace("LOW", str(low)).replace("HIGH", str(high)))
    (candidate,) = (c for c in find_candidates(graph, [Qnn()]).candidates if c.backend == "qnn")
    assert candidate.pattern == "quantized nn.dense"
    x = np.uint8([[0, 129, 255]])
    results: Any = Qnn().runner(graph)([x], [])
    (exact,) = evaluate(graph, [x])
    assert np.abs(results[0].astype(int) - exact).max() <= 1


@pytest.mark.parametrize(("low", "high"), [(-99, 5), (1, 1)])
def test_what_the_compiler_gets_wrong_is_refused(low: float, high: float) -> None:
    graph = graph_of(CLIPPED.replace("LOW", str(low)).replace("HIGH", str(high)))
    result = find_candidates(graph, [Qnn()])
    assert not [c for c in result.candidates if c.backend == "qnn"]
    reasons = {refused.reason for all_ in result.refusals.values() for refused in all_}
    assert any("one bound alone binds is dropped" in reason for reason in reasons)


LAYER = """
    net (uint8[1, 3, 2, 2] x) => (uint8[1, 2, 2, 2] y)
      <float s = {0.5}, uint8 z = {128}, TYPE[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6},
       TYPE[AXES] v = {ZEROS}, float[AXES] t = {SCALES}, int32[2] b = {1000, -900},
       float[OWN] r = {STEPS}> {
      data = DequantizeLinear (x, s, z)
      weight = DequantizeLinear <axis = 0> (w, t, v)
      bias = DequantizeLinear <axis = 0> (b, r)
      product = Conv (data, weight, bias)
      y = QuantizeLinear (product, s, z)
    }
"""
ONE = {"TYPE": "uint8", "AXES": "", "ZEROS": "128", "SCALES": "0.1", "OWN": "", "STEPS": "0.05"}
EACH = {"TYPE": "int8", "AXES": "2", "ZEROS": "0, 0", "SCALES": "0.1, 0.2"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (ONE, ""),
        ({**ONE, "ZEROS": "120"}, "weights have their zero point in the middle"),
        ({**EACH, "OWN": "2", "STEPS": "0.05, 0.1"}, ""),
        ({**EACH, "OWN": "", "STEPS": "0.05"}, "a bias has as many scales as weights"),
        ({**ONE, "OWN": "2", "STEPS": "0.05, 0.05"}, "a bias has as many scales as weights"),
    ],
)
def test_layers_that_come_out_wrong_are_refused(words: dict[str, str], reason: str) -> None:
    text = LAYER
    for word, value in words.items():
        text = text.replace(word, value)
    result = find_candidates(graph_of(text.replace("[]", "")), [Qnn()])
    reasons = [refused.reason for all_ in result.refusals.values() for refused in all_]
    assert any(one.backend == "qnn" for one in result.candidates) == (not reason)
    assert not reason or any(reason in one for one in reasons)


@pytest.mark.parametrize("zero", [128, 100])
def test_a_product_of_two_tensors(zero: int) -> None:
    """The second has its zero point in the middle, or results are off by up to five steps."""
    text = """
        net (uint8[1, 3, 16] x, uint8[1, 16, 4] w) => (uint8[1, 3, 4] y)
          <float s = {0.02}, uint8 z = {1}, uint8 v = {ZERO}, float t = {0.05}, uint8 u = {128}> {
          data = DequantizeLinear (x, s, z)
          weight = DequantizeLinear (w, s, v)
          product = MatMul (data, weight)
          y = QuantizeLinear (product, t, u)
        }
    """
    graph = graph_of(text.replace("ZERO", str(zero)))
    result = find_candidates(graph, [Qnn()])
    assert any(one.backend == "qnn" for one in result.candidates) == (zero == 128)


def test_floats_are_refused() -> None:
    """The provider takes two operators between a dequantisation and a quantisation, in float16."""
    text = backend.PROBE.replace("gate = ", "data_ = Tanh (data) gate = ").replace(
        "Sigmoid (data)", "Sigmoid (data_)"
    )
    model = parser.parse_model(text).SerializeToString()
    with pytest.raises(UnsupportedError, match=r"would compute a part of it in floats: .*'Tanh'"):
        runtime.compile_model(model, 0.0)


def test_a_device_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, ONNX Runtime makes a session, of which all runs on the CPU."""
    nowhere = {"backend_path": "/nowhere/libQnnHtp.so"}
    options = onnx_session.session_options(runtime.PROVIDER, 1, nowhere)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
    model = parser.parse_model(backend.PROBE).SerializeToString()
    onnx_session.session_runner(runtime.PROVIDER, model, options)
    monkeypatch.setattr(runtime, "_COMPILE", nowhere)
    monkeypatch.setattr(backend, "defect", backend.defect.__wrapped__)
    with pytest.raises(UserError, match="'qnn' cannot run here: its device cannot be made"):
        backend_named("qnn", FOUND)


def test_a_plug_in_that_is_registered_already() -> None:
    """By whoever uses ONNX Runtime in this process, too; another registration is an error there."""
    assert runtime.PROVIDER in onnx_session.providers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runtime.PROVIDER in onnx_session.providers.__wrapped__()


def test_nothing_is_printed() -> None:
    """Qualcomm's library prints a line while it is loaded; what C code prints later is not lost."""
    code = "import ctypes; from graft.backends.qnn.backend import Qnn; assert not Qnn().missing()"
    code += "; ctypes.CDLL(None).puts(b'after')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (result.stdout, result.stderr) == (b"after\n", b"")


def test_fewer_regions_than_onnx_runtime(tmp_path: Path) -> None:
    """Its own partitioning offloads all that the provider takes; ours what pays for its launch: the
    first has 800 times the products of the third, of which a host makes short work."""
    model = blocks(EXTENTS)
    theirs = regions_of_onnx_runtime(model, tmp_path)
    assert theirs == 4
    module = graft.compile(model, target="qnn", fallback="error")
    ours = [region for region in module.placement.regions if region.backend == "qnn"]
    assert 0 < len(ours) < theirs
    greedy = graft.compile(model, target="qnn", pins=["v3=qnn", "v10=qnn", "v17=qnn", "v24=qnn"])
    assert len([region for region in greedy.placement.regions if region.backend == "qnn"]) == theirs
    x = np.random.default_rng(1).integers(0, 255, (1, 64, *EXTENTS[:1] * 2)).astype(np.uint8)
    (on_host,) = graft.compile(model).run(None, {"x": x})
    (result,) = module.run(None, {"x": x})
    assert np.abs(result.astype(int) - on_host).max() <= 2
    assert not module.incidents
    module.save(tmp_path / "blocks.graft")
    (again,) = graft.load(tmp_path / "blocks.graft").run(None, {"x": x})
    assert np.array_equal(again, result)


def regions_of_onnx_runtime(model: onnx.ModelProto, folder: Path) -> int:
    """How many parts of a model its QNN provider runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    options.add_provider_for_devices(onnx_session.devices(runtime.PROVIDER)[:1], runtime._COMPILE)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (image,) = session.get_inputs()
    session.run(None, {image.name: np.zeros(image.shape, np.uint8)})
    events = json.loads(Path(session.end_profiling()).read_text())
    return Counter(event.get("args", {}).get("provider") for event in events)[runtime.PROVIDER]


def test_times_are_a_model_s() -> None:
    graph = graph_of(backend.PROBE.split("\n", 1)[1])
    cost = Qnn().price(graph)
    assert cost is not None
    assert cost.source is Source.DECLARED
    assert cost.seconds == pytest.approx(max(0.0, (4 + 4 + 4 + 1) / 135e9))
    runner: Any = Qnn().runner(graph)
    assert runner.simulated
    assert runner.seconds == cost.seconds


def test_the_author_s_kit() -> None:
    conformance(Qnn(), 2).assert_ok()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "find_spec", lambda _name: None)
    assert "pip install 'graft-compiler[qnn]'" in Qnn().missing()
    with pytest.raises(UserError, match="it needs the package 'onnxruntime-qnn'"):
        loaders.check_loader(runtime.load, "2.7.0")


RESIDUAL = """
    net (uint8[1, 4, 6, 5] x, uint8[1, 4, 6, 5] r) => (uint8[1, 4, 6, 5] y)
      <float s = {0.05}, uint8 z = {120}, float t = {0.01}, int8 v = {0}, float u = {0.04},
       uint8 p = {130}, float o = {0.06}, uint8 q = {100}, int8[4, 4, 1, 1] w = {WEIGHTS}> {
      data = DequantizeLinear (x, s, z)
      weight = DequantizeLinear (w, t, v)
      sums = Conv (data, weight)
      other = DequantizeLinear (r, u, p)
      all = Add (sums, other)
      y = QuantizeLinear (all, o, q)
    }
"""


def test_a_tensor_is_added_to_a_layer_within_a_step() -> None:
    weights = ", ".join(str(16 * n % 255 - 127) for n in range(16))
    graph = graph_of(RESIDUAL.replace("WEIGHTS", weights))
    (candidate,) = (c for c in find_candidates(graph, [Qnn()]).candidates if c.backend == "qnn")
    assert "add" in candidate.label
    draw = np.random.default_rng(1)
    inputs = [draw.integers(0, 256, (1, 4, 6, 5)).astype(np.uint8) for _ in range(2)]
    results: Any = Qnn().runner(graph)(inputs, [])
    (exact,) = evaluate(graph, inputs)
    assert np.abs(results[0].astype(int) - exact).max() <= 1
