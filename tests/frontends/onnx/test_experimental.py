"""Experimental operators that ONNX has dropped, beside ONNX Runtime, which still runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import agrees, floats, model

from graft.base.errors import ModelError
from graft.frontends.onnx.importer import import_model

OLD = {"domain": "", "opset": 7}
IMAGES = floats(2, 3, 5, 7)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 0.5, "beta": -2.0}),
        ("Crop", {"border": [1, 0, 2, 3]}),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [3, 4]}),
        ("Crop", {"border": [0, 0, 0, 0]}),
        ("ImageScaler", {"scale": 0.25, "bias": [1.0, -2.0, 0.5]}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}),
        ("Scale", {"scale": -3.0}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
        ("ThresholdedRelu", {"alpha": 0.5}),
        ("MeanVarianceNormalization", {}),
        ("MeanVarianceNormalization", {"across_channels": 1}),
        ("MeanVarianceNormalization", {"normalize_variance": 0}),
    ],
)
def test_it_means_what_onnx_runtime_computes(op_type: str, attributes: dict[str, Any]) -> None:
    agrees(op_type, IMAGES, opened=False, **OLD, **attributes)


def test_dynamic_slice() -> None:
    starts, ends, axes = (np.array(numbers) for numbers in ([1, 0], [4, -1], [2, 3]))
    agrees("DynamicSlice", IMAGES, starts, ends, axes, opened=False, **OLD)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "message"),
    [
        ("ImageScaler", (3, 4), {"bias": [1.0]}, "wants .batch, channels, height, width."),
        ("Crop", (1, 1, 4, 4), {"border": [1, 2]}, "four borders"),
        ("Crop", (1, 1, 4, 4), {}, "lacks the attribute 'border'"),
    ],
)
def test_nonsense_is_refused(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(model(op_type, [floats(*shape)], **OLD, **attributes))
