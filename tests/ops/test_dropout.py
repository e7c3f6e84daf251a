"""Dropout: nothing at inference, a seeded draw in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.errors import TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.types import tensor

X = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)
ALL = np.ones(X.shape, bool)
HALF, ON, OFF = np.array(0.5, np.float32), np.array(True), np.array(False)


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_inference_hands_the_operand_on(opset: int) -> None:
    graph = import_model(one_node("Dropout", [X], opset))
    assert graph.outputs == graph.inputs
    mask = ALL if opset >= 10 else ALL.astype(np.float32)
    agree("Dropout", [X], opset, [X, mask], outputs=2)


def test_the_mode_may_be_an_operand() -> None:
    agree("Dropout", [X, HALF, OFF], 13, [X, ALL], outputs=2)
    agree("Dropout", [X, None, OFF], 12, [X])
    agree("Dropout", [X, np.array(0, np.float32), ON], 22, [X, ALL], outputs=2)


@pytest.mark.parametrize("ratio", [None, HALF, np.array(0.75, np.float64)])
def test_training_drops_and_scales(ratio: Any) -> None:
    arrays = [X, ratio, ON]
    for constants in (False, True):
        model = one_node("Dropout", arrays, 13, constants=constants, outputs=2, seed=3)
        found, mask = by_graft(model, arrays)
        again, _ = by_graft(model, arrays)
        share = 0.5 if ratio is None else float(ratio)
        np.testing.assert_array_equal(found, again)
        np.testing.assert_allclose(found, np.where(mask, X / (1 - share), 0), rtol=1e-6)
        assert 0.5 * share < 1 - mask.mean() < 1.5 * share


def test_a_draw_without_a_seed_differs() -> None:
    arrays = [X, HALF, ON]
    model = one_node("Dropout", arrays, 13)
    assert not np.array_equal(by_graft(model, arrays)[0], by_graft(model, arrays)[0])


def test_refusals() -> None:
    builder = Builder()
    x, whole = builder.input("x", tensor("float32", 3)), builder.input("i", tensor("int8", 3))
    for operands, attributes, message in (
        ((whole,), {}, "wants floating-point data, not int8"),
        ((x, whole), {}, "the ratio is not a floating-point number"),
        ((x, None, x), {}, "training_mode is not bool"),
        ((x,), {"ratio": 1.0}, "the ratio is 1.0, not between 0 and 1"),
    ):
        with pytest.raises(TypeRuleError, match=message):
            builder.call("nn.dropout", *operands, **attributes)  # type: ignore[arg-type]
