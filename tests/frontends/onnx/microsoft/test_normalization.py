"""Normalisations with sums and embeddings fused in front of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import (
    agrees,
    by_graft,
    floats,
    model,
    scalar,
    whole,
)

from graft.base.dtypes import Array
from graft.base.errors import ModelError
from graft.frontends.onnx.importer import import_model

X = floats(2, 3, 5) * 3 + 1
GAMMA, BETA, BIAS = (floats(5, seed=seed) for seed in (1, 2, 3))


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 5), (3, 5)])
@pytest.mark.parametrize("beta", [BETA, None])
@pytest.mark.parametrize("bias", [BIAS, None])
def test_skip_layer_normalization(shape: Any, beta: Array | None, bias: Array | None) -> None:
    skip = floats(*shape, seed=4)
    agrees("SkipLayerNormalization", X, skip, GAMMA, beta, bias, opened=False, epsilon=1e-3)


def test_skip_layer_normalization_gives_its_sum() -> None:
    operands = X, floats(2, 3, 5, seed=4), GAMMA, BETA, BIAS
    agrees("SkipLayerNormalization", *operands, outputs="y - - sum")
    agrees("SkipLayerNormalization", X[0], X[1], GAMMA, BETA, outputs="y - - sum")


def test_skip_simplified_layer_normalization() -> None:
    skip = floats(2, 3, 5, seed=4)
    agrees("SkipSimplifiedLayerNormalization", X, skip, GAMMA, epsilon=0.1)
    agrees("SkipSimplifiedLayerNormalization", X, skip, GAMMA, BIAS, outputs="y - - sum")
    agrees("SkipSimplifiedLayerNormalization", X[0], skip[0], GAMMA)


def test_statistics_are_those_of_the_sum() -> None:
    skip = floats(2, 3, 5, seed=4)
    outputs = "y mean deviation sum"
    _, mean, inverse, total = by_graft(
        "SkipLayerNormalization", [X, skip, GAMMA], outputs=outputs, epsilon=0.01
    )
    np.testing.assert_allclose(mean, (X + skip).mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)
    deviation = np.sqrt((X + skip).var(-1, keepdims=True) + 0.01)
    np.testing.assert_allclose(inverse, 1 / deviation, rtol=1e-5)
    np.testing.assert_allclose(total, X + skip, rtol=1e-6)


@pytest.mark.parametrize(
    ("scale", "attributes"), [((5,), {}), ((3, 5), {"axis": 1, "epsilon": 0.1})]
)
def test_simplified_layer_normalization(scale: Any, attributes: dict[str, Any]) -> None:
    agrees(
        "SimplifiedLayerNormalization",
        *(X, floats(*scale, seed=1)),
        domain="",
        outputs="y inverse",
        opened=False,
        **attributes,
    )


@pytest.mark.parametrize("opset", [11, 13, 16])
def test_layer_normalization_before_onnx_had_it(opset: int) -> None:
    """ONNX Runtime writes it into models of any opset."""
    operands = X, GAMMA, BETA
    agrees("LayerNormalization", *operands, domain="", opset=opset, outputs="y mean deviation")


IDS = whole(np.int32, 2, 4, low=0, high=9)
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.int32)
TABLES = floats(9, 6), floats(7, 6, seed=1), floats(2, 6, seed=2)
PARAMETERS = floats(6, seed=3), floats(6, seed=4)


@pytest.mark.parametrize("mask", [MASK, None])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_embeddings(mask: Array | None, rows: int) -> None:
    positions = whole(np.int32, rows, 4, low=0, high=7) if rows else None
    operands = IDS, IDS % 2, *TABLES, *PARAMETERS, mask, positions
    agrees("EmbedLayerNormalization", *operands, outputs="y words sum", opened=False)


def test_embeddings_without_segments() -> None:
    words, positions, _ = TABLES
    operands = IDS, None, words, positions, None, *PARAMETERS
    agrees("EmbedLayerNormalization", *operands, outputs="y words", epsilon=0.1)
    agrees("EmbedLayerNormalization", *operands, None, MASK % 2, outputs="y - sum", opened=False)


def test_segments_come_with_their_table() -> None:
    words, positions, segments = TABLES
    with pytest.raises(ModelError, match="come together or not at all"):
        import_model(
            model("EmbedLayerNormalization", [IDS, None, words, positions, segments, *PARAMETERS])
        )


def test_quantised_embeddings() -> None:
    stored = [whole(np.uint8, *shape) for shape in ((9, 6), (7, 6), (2, 6), (6,), (6,))]
    scales = [scalar(0.02 + 0.01 * i) for i in range(5)]
    zeros = [scalar(120 + i, np.uint8) for i in range(5)]
    operands = IDS, IDS % 2, *stored, MASK, *scales, *zeros
    agrees("QEmbedLayerNormalization", *operands, outputs="y words", tolerance=1e-4)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last: int, activation: int) -> None:
    """No kernel of ONNX Runtime runs it on the host; the formula is the documented one."""
    x, gamma, beta = floats(2, 6, 3, 4), floats(6, seed=1), floats(6, seed=2)
    grouped = x.reshape(2, 3, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    normal = centred / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    expected = normal.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
    if activation:
        expected = expected / (1 + np.exp(-expected))
    attributes = {"groups": 3, "activation": activation, "channels_last": last}
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    (result,) = by_graft("GroupNorm", [x.transpose(order), gamma, beta], **attributes)
    np.testing.assert_allclose(result, expected.transpose(order), rtol=1e-4, atol=1e-5)
    half = x.transpose(order) / 2
    operands = [half - BIAS[0], gamma, beta, half, np.full(6, BIAS[0])]
    result, total = by_graft("SkipGroupNorm", operands, outputs="y sum", **attributes)
    np.testing.assert_allclose(result, expected.transpose(order), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(total, x.transpose(order), rtol=1e-4, atol=1e-5)
