"""Products, convolutions and activations with something fused to them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.conftest import ROOT
from tests.frontends.onnx.microsoft.beside_runtime import (
    DOMAIN,
    agrees,
    by_graft,
    floats,
    model,
    whole,
)

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UnsupportedError
from graft.cli.survey import obstacles
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import read_model
from graft.frontends.onnx.registry import LOWERINGS
from graft.ir.evaluate import evaluate


def stored(rows: int, columns: int, turned: bool, batch_turned: bool) -> tuple[int, ...]:
    """The shape in which a batch of matrices has to be stored so that it is turned into rows."""
    first, second = (columns, rows) if turned else (rows, columns)
    return (first, 2, 3, second) if batch_turned else (2, 3, first, second)


@pytest.mark.parametrize("turns", list(itertools.product((0, 1), repeat=4)))
def test_fused_matmul_turns_its_operands(turns: tuple[int, int, int, int]) -> None:
    a, b, batch_a, batch_b = turns
    left = floats(*stored(4, 5, bool(a), bool(batch_a)))
    right = floats(*stored(5, 6, bool(b), bool(batch_b)), seed=1)
    flags = {"transA": a, "transB": b, "transBatchA": batch_a, "transBatchB": batch_b}
    agrees("FusedMatMul", left, right, alpha=0.25, **flags)


@pytest.mark.parametrize(
    ("left", "right", "flags"),
    [
        ((5,), (5, 3), {"transA": 1}),
        ((2, 3, 5), (5,), {"transB": 1}),
        ((5, 2), (4, 5, 3), {"transA": 1}),
        ((0, 5), (5, 3), {}),
    ],
)
def test_fused_matmul_of_other_ranks(left: Any, right: Any, flags: dict[str, int]) -> None:
    agrees("FusedMatMul", floats(*left), floats(*right, seed=1), **flags)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("", None),
        ("Relu", None),
        ("Tanh", None),
        ("Sigmoid", None),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.75]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_fused_conv(activation: str, parameters: list[float] | None) -> None:
    attributes: dict[str, Any] = {"activation": activation} if activation else {}
    if parameters:
        attributes["activation_params"] = parameters
    operands = floats(1, 4, 7, 5), floats(6, 2, 3, 3, seed=1), floats(6, seed=2)
    agrees("FusedConv", *operands, group=2, opened=False, **attributes)
    added = floats(1, 6, 5, 3, seed=3)
    agrees("FusedConv", *operands, added, group=2, opened=False, **attributes)


def test_fused_conv_without_bias_pads_by_itself() -> None:
    window = {"auto_pad": "SAME_UPPER", "strides": [2, 3], "activation": "Relu"}
    agrees("FusedConv", floats(2, 3, 8, 7), floats(5, 3, 3, 2, seed=1), constants=[1], **window)


@pytest.mark.parametrize(
    ("activation", "coefficients"),
    [
        ("Relu", {}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("Elu", {"alpha": 0.4}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("Selu", {"alpha": 1.5, "gamma": 1.1}),
    ],
)
def test_fused_gemm(activation: str, coefficients: dict[str, float]) -> None:
    given = {f"activation_{name}": value for name, value in coefficients.items()}
    operands = floats(5, 3), floats(7, 5, seed=1), floats(1, 7, seed=2)
    factors = {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}
    agrees("FusedGemm", *operands, activation=activation, **given, **factors)


def test_fused_gemm_without_an_activation() -> None:
    """ONNX Runtime insists on one; without it, the operator is Gemm."""
    a, b = floats(2, 5), floats(5, 7, seed=1)
    (result,) = by_graft("FusedGemm", [a, b], alpha=0.5)
    np.testing.assert_allclose(result, a @ b / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
def test_fused_matmul_of_a_turned_operand_and_a_vector(shape: tuple[int, ...]) -> None:
    """What ONNX Runtime gives here is no product of these; NumPy's is."""
    a, b = floats(*shape), floats(5, seed=1)
    (result,) = by_graft("FusedMatMul", [a, b], transA=1)
    np.testing.assert_allclose(result, a.swapaxes(-1, -2) @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes"),
    [
        ("Gelu", [floats(3, 5) * 4], {}),
        ("BiasGelu", [floats(2, 3, 5), floats(5, seed=1)], {}),
        ("FastGelu", [floats(2, 3, 5) * 4], {}),
        ("FastGelu", [floats(2, 3, 5), floats(5, seed=1)], {}),
        ("QuickGelu", [floats(2, 3)], {}),
        ("QuickGelu", [floats(7)], {"alpha": 0.5}),
    ],
)
def test_gelu(op_type: str, operands: list[Array], attributes: dict[str, float]) -> None:
    agrees(op_type, *operands, **attributes)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_max_pool_with_channels_last(dtype: Any) -> None:
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1}
    agrees("NhwcMaxPool", whole(dtype, 1, 7, 6, 3), **window)


def gelu(x: Array) -> Array:
    return by_graft("Gelu", [x])[0]


def test_what_has_no_kernel_on_the_host_of_onnx_runtime() -> None:
    """Its meaning is what ONNX Runtime documents."""
    x, bias, skip = floats(2, 3, 6), floats(6, seed=1), floats(2, 3, 6, seed=2)
    (result,) = by_graft("BiasAdd", [x, bias, skip])
    np.testing.assert_allclose(result, x + bias + skip, rtol=1e-6)
    (result,) = by_graft("BiasSplitGelu", [x, bias])
    left, right = np.split(x + bias, 2, axis=-1)
    np.testing.assert_allclose(result, left * gelu(right), rtol=1e-5, atol=1e-6)
    data, weight = floats(1, 5, 4, 3), floats(2, 3, 3, 3, seed=1)
    (result,) = by_graft("NhwcConv", [data, weight])
    (plain,) = by_graft("FusedConv", [data.transpose(0, 3, 1, 2), weight])
    np.testing.assert_allclose(result, plain.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)
    (result,) = by_graft("NhwcFusedConv", [data, weight, None, result], activation="Relu")
    np.testing.assert_allclose(
        result, np.maximum(2 * plain.transpose(0, 2, 3, 1), 0), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("axis", "shape"), [(3, (2, 1, 1, 5)), (-1, (4, 5)), (2, (2, 1, 4, 5))])
def test_bias_softmax(axis: int, shape: tuple[int, ...]) -> None:
    x, bias = floats(2, 3, 4, 5), floats(*shape, seed=1)
    attributes = {"axis": axis, "is_inner_broadcast": int(shape[:1] == (2,))}
    (result,) = by_graft("BiasSoftmax", [x, bias], **attributes)
    total = x + bias
    flat = total.reshape(*x.shape[: axis % 4], -1)
    powers = np.exp(flat - flat.max(-1, keepdims=True))
    expected = (powers / powers.sum(-1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("op_type", "operands", "attributes", "message"),
    [
        ("Gelu", [floats(3)], {"approximate": "tanh"}, "Gelu has no attribute 'approximate'"),
        ("Gelu", [floats(3), floats(3)], {}, "Gelu takes 1 operands at most, has 2"),
        ("BiasGelu", [floats(3)], {}, "BiasGelu lacks its operand 'B'"),
        ("BiasSoftmax", [floats(3), floats(3)], {}, "lacks the attribute 'is_inner_broadcast'"),
    ],
)
def test_a_wrong_node_is_refused(
    op_type: str, operands: list[Array], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        import_model(model(op_type, operands, **attributes), strict=True)
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


def test_the_domain_need_not_be_imported() -> None:
    """As in what the optimiser for transformers has in memory."""
    x = floats(3, 5)
    proto = model("Gelu", [x])
    del proto.opset_import[1]
    (result,) = evaluate(import_model(proto), [x])
    np.testing.assert_array_equal(result, gelu(x))
    assert obstacles(read_model(proto)) == []


def test_the_documentation_names_every_operator() -> None:
    page = (ROOT / "docs" / "onnxruntime-models.md").read_text(encoding="utf-8")
    prefix = f"{DOMAIN}::"
    registered = {name.removeprefix(prefix) for name in LOWERINGS if name.startswith(prefix)}
    assert len(registered) > 40
    assert {name for name in registered if f"`{name}`" not in page} == set()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="activation 'Mystery'"):
        import_model(
            model("FusedConv", [floats(1, 1, 3, 3), floats(1, 1, 2, 2)], activation="Mystery")
        )
    with pytest.raises(ModelError, match="Relu takes 0 coefficients, 1 are given"):
        import_model(
            model(
                "FusedConv",
                [floats(1, 1, 3, 3), floats(1, 1, 2, 2)],
                activation="Relu",
                activation_params=[1.0],
            )
        )


@pytest.mark.parametrize("op_type", ["Conv", "ReorderInput", "MaxPool"])
def test_blocked_layouts_are_refused(op_type: str) -> None:
    proto = model(op_type, [floats(1, 8, 3, 3)], domain=f"{DOMAIN}.nchwc")
    proto.opset_import.add(domain=f"{DOMAIN}.nchwc", version=1)
    with pytest.raises(UnsupportedError, match="a layout of the machine") as caught:
        import_model(proto)
    assert "ORT_ENABLE_EXTENDED" in caught.value.hint
