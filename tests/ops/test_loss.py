"""Losses, against ONNX Runtime and against sums by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of, normal

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.types import tensor

LOSSES = {"NegativeLogLikelihoodLoss": 1, "SoftmaxCrossEntropyLoss": 2}
CLASSES = 4


def operands(shape: tuple[int, ...], weighted: bool, ignored: int | None) -> dict[str, Array]:
    """Scores of the shape, labels for them (some of them ignored), and weights if wanted."""
    count = shape[0] * int(np.prod(shape[2:]))
    labels = np.arange(count) * 7 % CLASSES
    if ignored is not None:
        labels[::3] = ignored
    feeds: dict[str, Array] = {"x": normal(*shape) * 3}
    feeds["labels"] = labels.reshape(shape[0], *shape[2:])
    if weighted:
        feeds["weights"] = abs(normal(CLASSES)) + 0.5
    return feeds


@pytest.mark.each_value
@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("shape", [(5, CLASSES), (3, CLASSES, 2), (2, CLASSES, 3, 5)])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -100])
def test_agrees_with_onnx_runtime(
    op_type: str, shape: tuple[int, ...], reduction: str, weighted: bool, ignored: int | None
) -> None:
    feeds = operands(shape, weighted, ignored)
    options: dict[str, Any] = {"reduction": reduction, "outputs": LOSSES[op_type]}
    if ignored is not None:
        options["ignore_index"] = ignored
    expected = by_runtime(op_type, feeds, 13, **options)
    assert_same(by_graft(op_type, feeds, 13, **options), expected, 3e-6)


def by_hand(feeds: dict[str, Array], ignored: int | None) -> float:
    """The weighted mean of cross entropy, element by element."""
    scores, labels = feeds["x"].astype(np.float64), feeds["labels"]
    weights = feeds.get("weights", np.ones(CLASSES)).astype(np.float64)
    total = share = 0.0
    for at in np.ndindex(labels.shape):
        label = int(labels[at])
        if label != ignored:
            column = scores[(at[0], slice(None), *at[1:])]
            total += weights[label] * (np.log(np.exp(column).sum()) - column[label])
            share += weights[label]
    return float(total / share)


@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-10), (np.float32, 1e-6), (np.float16, 1e-2), (ml_dtypes.bfloat16, 6e-2)],
)
@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
def test_dtypes_and_opsets(opset: int, dtype: Any, tolerance: float, label_dtype: Any) -> None:
    if opset == 12 and dtype is ml_dtypes.bfloat16:
        opset = 13  # where bfloat16 begins
    feeds = operands((3, CLASSES, 2), True, 2)
    feeds = {
        name: a.astype(label_dtype if name == "labels" else dtype) for name, a in feeds.items()
    }
    expected = np.asarray(by_hand(feeds, 2)).astype(dtype)
    actual = by_graft("SoftmaxCrossEntropyLoss", feeds, opset, ignore_index=2)
    assert_same(actual, [expected], tolerance)


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_symbolic_extents(op_type: str, reduction: str) -> None:
    feeds = operands((3, CLASSES, 2), True, None)
    shapes = {"x": ["n", CLASSES, "d"], "labels": ["n", "d"]}
    graph = graph_of(op_type, feeds, 13, reduction=reduction, shapes=shapes)
    wanted = (symbol("n"), symbol("d")) if reduction == "none" else ()
    assert graph.outputs[0].type == tensor("float32", *wanted)
    expected = by_graft(op_type, feeds, 13, reduction=reduction)
    actual = by_graft(op_type, feeds, 13, reduction=reduction, shapes=shapes)
    assert_same(actual, expected, 0)


@pytest.mark.parametrize("op_type", LOSSES)
def test_no_samples(op_type: str) -> None:
    feeds = operands((0, CLASSES, 3), False, None)
    (result,) = by_graft(op_type, feeds, 13, reduction="none")
    assert result.shape == (0, 3)
    assert by_graft(op_type, feeds, 13, reduction="sum")[0].item() == 0


def test_ignored_infinity_does_not_count() -> None:
    feeds = operands((4, CLASSES), False, -1)
    feeds["x"][0, 0] = -np.inf  # a label that is ignored, and class 0 in its stead
    (result,) = by_graft("NegativeLogLikelihoodLoss", feeds, 13, ignore_index=-1)
    picked = [-feeds["x"][i, label] for i, label in enumerate(feeds["labels"]) if label >= 0]
    assert_same([result], [np.asarray(np.mean(picked))], 1e-6)


def test_unknown_rank_of_labels() -> None:
    feeds = operands((4, CLASSES), True, None)
    expected = by_runtime("SoftmaxCrossEntropyLoss", feeds, 13)
    actual = by_graft("SoftmaxCrossEntropyLoss", feeds, 13, shapes={"labels": None})
    assert_same(actual, expected, 1e-6)


REFUSALS: list[tuple[tuple[int, ...], dict[str, Any], str]] = [
    ((3,), {"reduction": "median"}, "reduction is 'median', not none, sum or mean"),
    ((4,), {}, r"labels are int64\[4\], scores float32\[3, 4\]"),
    ((3, 1), {}, "labels of rank 2 for scores of rank 2"),
]


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize(("shape", "attributes", "message"), REFUSALS)
def test_refusals(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    feeds = {"x": normal(3, CLASSES), "labels": np.zeros(shape, np.int64)}
    with pytest.raises(UserError, match=message):
        by_graft(op_type, feeds, 13, **attributes)
