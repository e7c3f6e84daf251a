"""Models as ONNX Runtime's optimisers and quantisers save them: imported, run, compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.transformers.optimizer import optimize_model
from tests.frontends.onnx.microsoft.networks import (
    HEADS,
    HIDDEN,
    feeds,
    images,
    sentences,
    sounds,
)

import graft
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.frontends.onnx.importer import import_model

LEVELS = onnxruntime.GraphOptimizationLevel
BLOCKED = "com.microsoft.nchwc"


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def optimized(source: Path, level: Any) -> Path:
    """What ONNX Runtime saves after optimising the model."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = level
    settings.log_severity_level = 3
    result = source.with_suffix(".optimized.onnx")
    settings.optimized_model_filepath = str(result)
    onnxruntime.InferenceSession(str(source), settings, providers=["CPUExecutionProvider"])
    return result


def operators(path: Path) -> set[str]:
    nodes = onnx.load(path).graph.node
    return {f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes}


def results(path: Path, given: dict[str, Array], target: str) -> tuple[Array, Array]:
    """What ONNX Runtime and Graft make of a file."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, given)
    (ours,) = graft.compile(str(path), target=target).run(None, given)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    return theirs, ours


OPTIMIZED: dict[str, tuple[Callable[[], onnx.ModelProto], set[str]]] = {
    "images": (images, {"com.microsoft::FusedConv", "com.microsoft::QuickGelu"}),
    "sentences": (
        sentences,
        {
            "LayerNormalization",
            "com.microsoft::FusedMatMul",
            "com.microsoft::Gelu",
            "com.microsoft::SkipLayerNormalization",
        },
    ),
    "sounds": (sounds, {"LSTM"}),
}


@pytest.mark.parametrize("target", ["reference", "host"])
@pytest.mark.parametrize("name", OPTIMIZED)
def test_optimised_models(name: str, target: str, tmp_path: Path) -> None:
    make, expected = OPTIMIZED[name]
    model = make()
    path = optimized(saved(model, tmp_path / "m.onnx"), LEVELS.ORT_ENABLE_EXTENDED)
    assert expected <= operators(path)
    theirs, ours = results(path, feeds(model), target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_models_for_one_kind_of_machine_are_refused(tmp_path: Path) -> None:
    path = optimized(saved(images(), tmp_path / "m.onnx"), LEVELS.ORT_ENABLE_ALL)
    if not any(name.startswith(BLOCKED) for name in operators(path)):
        pytest.skip("ONNX Runtime does not block layouts on this machine")
    with pytest.raises(UnsupportedError, match="a layout of the machine that saved the model"):
        import_model(str(path))


@pytest.mark.parametrize("target", ["reference", "host"])
def test_models_of_the_optimiser_for_transformers(target: str, tmp_path: Path) -> None:
    model = sentences()
    path = fused(saved(model, tmp_path / "m.onnx"))
    found = {"com.microsoft::Attention", "com.microsoft::BiasGelu"}
    assert found <= operators(path)
    theirs, ours = results(path, feeds(model), target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def fused(source: Path) -> Path:
    """What the optimiser for transformers makes of the encoder."""
    result = source.with_suffix(".fused.onnx")
    better = optimize_model(
        str(source), model_type="bert", num_heads=HEADS, hidden_size=HIDDEN, opt_level=0
    )
    better.save_model_to_file(str(result))
    return result


class Samples(CalibrationDataReader):
    """Four of them, for the quantiser to see the ranges of values."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.left = iter([feeds(model, seed) for seed in range(4)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


FORMS = {
    "QDQ": (QuantFormat.QDQ, {"QuantizeLinear", "DequantizeLinear"}),
    "operators": (
        QuantFormat.QOperator,
        {
            "QLinearConv",
            "com.microsoft::QLinearAdd",
            "com.microsoft::QLinearMul",
            "com.microsoft::QLinearConcat",
            "com.microsoft::QLinearSigmoid",
            "com.microsoft::QLinearLeakyRelu",
            "com.microsoft::QLinearAveragePool",
            "com.microsoft::QLinearGlobalAveragePool",
            "com.microsoft::QLinearSoftmax",
            "com.microsoft::QGemm",
        },
    ),
}
TYPES = {"unsigned": QuantType.QUInt8, "signed": QuantType.QInt8}


def quantized_images(folder: Path, form: str, data: str, per_channel: bool) -> Path:
    """Signed weights keep to seven bits, since ONNX Runtime's sums saturate on some machines."""
    model = images()
    path = folder / "quantized.onnx"
    quantize_static(
        saved(model, folder / "m.onnx"),
        path,
        Samples(model),
        quant_format=FORMS[form][0],
        per_channel=per_channel,
        reduce_range=True,
        activation_type=TYPES[data],
        weight_type=QuantType.QInt8,
    )
    assert FORMS[form][1] <= operators(path)
    return path


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("data", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", [None, LEVELS.ORT_ENABLE_EXTENDED, LEVELS.ORT_ENABLE_ALL])
def test_quantised_images(
    form: str, data: str, per_channel: bool, level: Any, tmp_path: Path
) -> None:
    """Probabilities are quantised too: an element rounded otherwise may cost a step or two."""
    path = quantized_images(tmp_path, form, data, per_channel)
    if level is not None:
        path = optimized(path, level)
        assert "com.microsoft::QLinearConcat" in operators(path)
    theirs, ours = results(path, feeds(images(), seed=9), "reference")
    step = float(np.min(np.diff(np.unique(theirs))))
    assert np.abs(ours - theirs).max() <= 2.1 * step
    assert np.mean(ours == theirs) >= 0.5
    assert np.argmax(ours) == np.argmax(theirs)


DYNAMIC: dict[str, tuple[Callable[[], onnx.ModelProto], set[str], set[str]]] = {
    "images": (images, {"ConvInteger", "MatMulInteger"}, {"com.microsoft::DynamicQuantizeMatMul"}),
    "sentences": (
        sentences,
        {"MatMulInteger", "DynamicQuantizeLinear"},
        {"com.microsoft::MatMulIntegerToFloat"},
    ),
    "sounds": (sounds, {"com.microsoft::DynamicQuantizeLSTM"}, set()),
}


@pytest.mark.parametrize("level", [None, LEVELS.ORT_ENABLE_EXTENDED])
@pytest.mark.parametrize("name", DYNAMIC)
def test_models_that_quantise_as_they_run(name: str, level: Any, tmp_path: Path) -> None:
    make, plain, better = DYNAMIC[name]
    model = make()
    path = tmp_path / "quantized.onnx"
    quantize_dynamic(
        saved(model, tmp_path / "m.onnx"), path, weight_type=QuantType.QInt8, reduce_range=True
    )
    assert plain <= operators(path)
    if level is not None:
        path = optimized(path, level)
        assert better <= operators(path)
    theirs, ours = results(path, feeds(model), "reference")
    np.testing.assert_allclose(ours, theirs, atol=2e-2 * np.abs(theirs).max())


def test_an_encoder_fused_and_quantised(tmp_path: Path) -> None:
    model = sentences()
    path = tmp_path / "quantized.onnx"
    quantize_dynamic(
        fused(saved(model, tmp_path / "m.onnx")),
        path,
        weight_type=QuantType.QInt8,
        reduce_range=True,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    assert "com.microsoft::QAttention" in operators(path)
    theirs, ours = results(path, feeds(model), "reference")
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
