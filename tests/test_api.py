"""The public names: `graft.compile`, the module it gives, and ONNX's backend interface."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import graft
import graft.onnx_backend

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
affine (float[n, 3] x, float[3] w) => (float[n, 3] y, float[n] total) {
    scaled = Mul(x, w)
    one = Constant<value = float {1.0}>()
    y = Add(scaled, one)
    axes = Constant<value = int64[1] {1}>()
    total = ReduceSum<keepdims = 0>(y, axes)
}
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([1, 2, 3], np.float32)
Y = X * W + 1


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


@pytest.fixture(scope="module")
def module(model: onnx.ModelProto) -> graft.Module:
    return graft.compile(model, target=["reference"])


def test_model_as_path_bytes_and_proto(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    for source in (path, str(path), path.read_bytes(), model):
        outputs = graft.compile(source).run(None, {"x": X, "w": W})
        np.testing.assert_array_equal(outputs[0], Y)


def test_outputs_by_name(module: graft.Module) -> None:
    (total,) = module.run(["total"], {"x": X, "w": W})
    np.testing.assert_array_equal(total, Y.sum(axis=1))


def test_arguments_look_like_those_of_onnx_runtime(module: graft.Module) -> None:
    inputs = [(a.name, a.shape, a.type) for a in module.get_inputs()]
    assert inputs == [("x", ["n", 3], "tensor(float)"), ("w", [3], "tensor(float)")]
    assert [a.name for a in module.get_outputs()] == ["y", "total"]


def test_placement_prints_and_is_json(module: graft.Module) -> None:
    assert str(module.placement).startswith("reference: ")
    assert json.loads(module.placement.to_json())["nodes"]["reference"] > 0


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": X}, "the input 'w' is missing"),
        ({"x": X, "w": W, "z": W}, "there is no input 'z'"),
        ({"x": X.astype(np.float64), "w": W}, r"wants float32\[n, 3\], not float64\[2, 3\]"),
        ({"x": X[0], "w": W}, r"wants float32\[n, 3\], not float32\[3\]"),
        ({"x": X, "w": W[:2]}, r"wants float32\[3\], not float32\[2\]"),
    ],
)
def test_wrong_feeds(module: graft.Module, feeds: dict[str, object], message: str) -> None:
    with pytest.raises(graft.UserError, match=message):
        module.run(None, feeds)


def test_wrong_output_name(module: graft.Module) -> None:
    with pytest.raises(graft.UserError, match="there is no output 'z'"):
        module.run(["z"], {"x": X, "w": W})


def test_unknown_target(model: onnx.ModelProto) -> None:
    with pytest.raises(graft.UserError, match="there is no backend 'abacus'"):
        graft.compile(model, target=["abacus"])


def test_strict_refuses_the_reference_evaluator(model: onnx.ModelProto) -> None:
    with pytest.raises(graft.UserError, match="strict=True refuses the reference evaluator"):
        graft.compile(model, target=["reference"], strict=True)
    with pytest.raises(graft.UserError, match="strict=True"):
        graft.onnx_backend.prepare(model, target=["reference"], strict=True)


def test_onnx_backend_runs_models_and_nodes(model: onnx.ModelProto) -> None:
    prepared = graft.onnx_backend.prepare(model, target=["reference"])
    for inputs in ([X, W], {"x": X, "w": W}):
        np.testing.assert_array_equal(prepared.run(inputs)[0], Y)
    np.testing.assert_array_equal(graft.onnx_backend.run_model(model, [X, W])[0], Y)
    node = onnx.helper.make_node("Mul", ["a", "a"], ["b"])
    np.testing.assert_array_equal(graft.onnx_backend.run_node(node, [X])[0], X * X)


def test_onnx_backend_is_for_the_cpu(model: onnx.ModelProto) -> None:
    assert graft.onnx_backend.supports_device("CPU")
    assert not graft.onnx_backend.supports_device("CUDA:0")
    with pytest.raises(graft.UserError, match="not on 'CUDA'"):
        graft.onnx_backend.prepare(model, device="CUDA")


def test_importing_graft_is_cheap() -> None:
    """Neither onnx nor a room of the compiler is loaded before it is used."""
    code = "import sys, graft; print([m for m in sys.modules if m.startswith(('onnx', 'graft.'))])"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


def test_submodule_does_not_shadow_the_function() -> None:
    code = "import graft.compiler, graft.onnx_backend, graft; assert callable(graft.compile)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        _ = graft.bogus
