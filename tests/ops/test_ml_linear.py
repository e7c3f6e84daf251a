"""ai.onnx.ml: linear models, support vector machines, and what scores become.

ONNX Runtime leaves a single score untransformed but for LOGISTIC, writes garbage where PROBIT meets
two classes, and picks the second of two classes of a linear SVM by its own rule; SVMRegressor and
LinearRegressor exist there for float alone. There the formulas written out here say what is right.
"""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from tests.ops.ml_node import agree, assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import ModelError, TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
X = np.array([[0.1, 0.2], [0.3, -0.5], [0, 0], [-1, 0.4], [3, 2]], np.float32)
SHAPES = [X, X[:1], X[:0], X[0]]


def rows(count: int, columns: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, columns)).astype(np.float32)


def numbers(count: int, seed: int = 0) -> list[float]:
    return [float(number) for number in rows(1, count, seed)[0]]


# Regression


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_regressor(transform: str) -> None:
    options = {"coefficients": numbers(6), "intercepts": [0.5, 0.25, 0.3], "targets": 3}
    for data in (X, X[:1], X[0]):
        agree("LinearRegressor", [data], post_transform=transform, **options)
    assert by_graft("LinearRegressor", [X[:0]], **options)[0].shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_linear_regressor_of_other_numbers(dtype: Any) -> None:
    data = (X * 4).astype(dtype)
    options: dict[str, Any] = {"coefficients": [1.5, -2.0]}
    expected = by_runtime("LinearRegressor", [data.astype(np.float32)], **options)
    assert_same(by_graft("LinearRegressor", [data], **options), expected)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_one_target_is_transformed_too() -> None:
    options: dict[str, Any] = {"coefficients": [0.25, 0.5], "intercepts": [0.25]}
    raw = X @ np.array([[0.25], [0.5]], np.float32) + np.float32(0.25)
    for transform, expected in {
        "NONE": raw,
        "LOGISTIC": sigmoid(raw),
        "SOFTMAX": np.ones_like(raw),
        "SOFTMAX_ZERO": np.where(raw == 0, 0, 1).astype(np.float32),
    }.items():
        found = by_graft("LinearRegressor", [X], post_transform=transform, **options)
        assert_same(found, [expected])
    agree("LinearRegressor", [X], post_transform="PROBIT", **options)


def test_probit_is_close_to_the_normal_quantile() -> None:
    chances = np.linspace(0.001, 0.999, 41, dtype=np.float32)[:, np.newaxis]
    (found,) = by_graft("LinearRegressor", [chances], coefficients=[1.0], post_transform="PROBIT")
    exact = [[NormalDist().inv_cdf(chance)] for chance in chances[:, 0].tolist()]
    np.testing.assert_allclose(found, exact, rtol=5e-3, atol=5e-3)
    ends = np.array([[0], [1], [0.5], [-1]], np.float32)
    (found,) = by_graft("LinearRegressor", [ends], coefficients=[1.0], post_transform="PROBIT")
    assert found[:3, 0].tolist() == [-math.inf, math.inf, 0]
    assert np.isnan(found[3, 0])


def test_softmax_zero_leaves_zeros_out() -> None:
    identity = {"coefficients": np.eye(3).reshape(-1).tolist(), "targets": 3}
    data = np.array([[0, 0, 0], [0, -200, 0], [1000, 0, 1000], [1, 2, 1e-9]], np.float32)
    options: dict[str, Any] = {"post_transform": "SOFTMAX_ZERO", **identity}
    (found,) = by_graft("LinearRegressor", [data], **options)
    share = 1 / (1 + math.e)
    expected = [[0, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [share, 1 - share, 0]]
    assert_same([found], [np.array(expected, np.float32)])


def test_linear_regressor_refusals() -> None:
    with pytest.raises(ModelError, match="3 coefficients do not make 2 rows"):
        by_graft("LinearRegressor", [X], coefficients=[1.0, 2.0, 3.0], targets=2)
    with pytest.raises(ModelError, match="post_transform is 'RELU', none of NONE, SOFTMAX"):
        by_graft("LinearRegressor", [X], coefficients=[1.0, 2.0], post_transform="RELU")
    with pytest.raises(ModelError, match="there are 1 scores but 2 offsets"):
        by_graft("LinearRegressor", [X], coefficients=[1.0, 2.0], intercepts=[1.0, 2.0])
    with pytest.raises(ModelError, match=r"wants samples \[N, F\], not float32\[1, 5, 2\]"):
        by_graft("LinearRegressor", [X[np.newaxis]], coefficients=[1.0, 2.0])
    with pytest.raises(TypeRuleError, match=r"nn\.dense"):
        by_graft("LinearRegressor", [X], coefficients=[1.0])


def test_regressors_of_symbolic_batches() -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", symbol("n"), 2))
    vectors = builder.constant(rows(3, 2))
    found = builder("ml.squared_distance", data, vectors)
    assert found.type == tensor("float32", symbol("n"), 3)
    unranked = builder.input("unranked", TensorType(DType.FLOAT32, None))
    rough = builder("ml.squared_distance", unranked, vectors)
    assert rough.shape is not None
    assert rough.shape[1] == 3
    expected = ((X[:, np.newaxis] - rows(3, 2)) ** 2).sum(-1)
    assert_same(evaluate(builder.build(found, rough), [X, X[:2]]), [expected, expected[:2]])
    with pytest.raises(TypeRuleError, match="the samples' and the vectors' lengths differ"):
        builder("ml.squared_distance", data, builder.constant(rows(3, 4)))


# Classification


@pytest.mark.each_value
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("strings", [False, True])
def test_linear_classifier(transform: str, classes: int, strings: bool) -> None:
    names = [f"class {i}" for i in range(classes)]
    labels = (
        {"classlabels_strings": names} if strings else {"classlabels_ints": [5, -6, 7, 9][:classes]}
    )
    options = {"coefficients": numbers(2 * classes), "intercepts": numbers(classes, 1), **labels}
    for data in (X, X[:1], X[0], X.astype(np.float64), (X * 9).astype(np.int64)):
        agree("LinearClassifier", [data], outputs=2, post_transform=transform, **options)
    empty = by_graft("LinearClassifier", [X[:0]], outputs=2, **options)
    assert [result.shape for result in empty] == [(0,), (0, classes)]


ONE_SCORE: dict[str, Any] = {"coefficients": [1.0, -2.0], "intercepts": [0.25], "outputs": 2}


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_linear_classifier_with_one_score(transform: str) -> None:
    for labels in ({"classlabels_ints": [5, 6]}, {"classlabels_strings": ["no", "yes"]}):
        agree("LinearClassifier", [X], post_transform=transform, **ONE_SCORE, **labels)
    if transform == "NONE":
        agree("LinearClassifier", [X], **ONE_SCORE)


def test_linear_classifier_with_one_score_transformed() -> None:
    raw = X @ np.array([[1], [-2]], np.float32) + np.float32(0.25)
    pair, softmax = np.hstack([-raw, raw]), np.hstack([sigmoid(-2 * raw), sigmoid(2 * raw)])
    labels = np.where(raw[:, 0] > 0, 6, 5)
    for transform, expected in {"SOFTMAX": softmax, "SOFTMAX_ZERO": softmax}.items():
        assert (pair != 0).all()
        options = {"classlabels_ints": [5, 6], "post_transform": transform}
        found = by_graft("LinearClassifier", [X], **ONE_SCORE, **options)
        assert_same(found, [labels, expected])
    single = {"classlabels_ints": [6], "post_transform": "LOGISTIC"}
    found = by_graft("LinearClassifier", [X], **ONE_SCORE, **single)
    assert_same(found, [np.where(raw[:, 0] > 0, 6, 0), sigmoid(raw)])
    found = by_graft("LinearClassifier", [X], **ONE_SCORE, classlabels_strings=["yes"])
    assert found[0].tolist() == ["yes" if score > 0 else "" for score in raw[:, 0]]


def test_linear_classifier_without_intercepts() -> None:
    options: dict[str, Any] = {"coefficients": numbers(6), "classlabels_ints": [1, 2, 3]}
    found = by_graft("LinearClassifier", [X], outputs=2, **options)
    expected = by_runtime("LinearClassifier", [X], outputs=2, intercepts=[0.0] * 3, **options)
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classlabels_ints": [1, 2]}, "there are 3 scores but 2 class labels"),
        ({"classlabels_ints": [1], "classlabels_strings": ["a"]}, "wants one of classlabels_ints"),
        (
            {"intercepts": [1.0], "coefficients": [1.0, 2.0], "classlabels_ints": [1, 2, 3]},
            "one score does not tell 3 classes",
        ),
        ({"intercepts": [1.0] * 4}, "6 coefficients do not make 4 rows"),
    ],
)
def test_linear_classifier_refusals(options: dict[str, Any], message: str) -> None:
    given = {"intercepts": [1.0] * 3, "coefficients": numbers(6), **options}
    with pytest.raises(UserError, match=message):
        by_graft("LinearClassifier", [X], outputs=2, **given)


# Support vector machines

KERNELS: list[dict[str, Any]] = [
    {"kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 0.0]},
    {"kernel_type": "RBF", "kernel_params": [0.7, 0.0, 0.0]},
    {"kernel_type": "POLY", "kernel_params": [0.7, 1.1, 3.0]},
    {"kernel_type": "SIGMOID", "kernel_params": [0.3, 0.1, 0.0]},
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel["kernel_type"]))
def test_svm_regressor(kernel: dict[str, Any]) -> None:
    options = {"coefficients": numbers(5), "support_vectors": numbers(10, 1), "rho": [0.3]}
    for one_class, data in product((0, 1), (X, X[:1])):
        agree("SVMRegressor", [data], n_supports=5, one_class=one_class, **options, **kernel)
    whole = (X * 3).astype(np.int64)
    found = by_graft("SVMRegressor", [whole], n_supports=5, **options, **kernel)
    wide = [whole.astype(np.float32)]
    assert_same(found, by_runtime("SVMRegressor", wide, n_supports=5, **options, **kernel))


def test_svm_regressor_without_vectors() -> None:
    options = {"coefficients": [0.5, -0.2], "rho": [0.1], "n_supports": 0, **KERNELS[0]}
    agree("SVMRegressor", [X], **options)
    agree("SVMRegressor", [X[0]], **options)
    (raw,) = by_graft("SVMRegressor", [X], **options)
    found = by_graft("SVMRegressor", [X], post_transform="LOGISTIC", **options)
    assert_same(found, [sigmoid(raw)])
    with pytest.raises(ModelError, match="kernel_type is 'COSINE', none of LINEAR"):
        by_graft(
            "SVMRegressor",
            [X],
            coefficients=[1.0],
            n_supports=1,
            support_vectors=[1.0, 2.0],
            kernel_type="COSINE",
        )


def machine(supports: list[int], probabilities: bool, kernel: dict[str, Any]) -> dict[str, Any]:
    """A random classifier with so many support vectors per class."""
    classes, count = len(supports), sum(supports)
    pairs = classes * (classes - 1) // 2
    options: dict[str, Any] = {
        "outputs": 2,
        "coefficients": numbers((classes - 1) * count),
        "support_vectors": numbers(2 * count, 1),
        "vectors_per_class": supports,
        "rho": numbers(pairs, 2),
        "classlabels_ints": [10 + i for i in range(classes)],
        **kernel,
    }
    if probabilities:
        options["prob_a"] = [-1.5 - abs(number) for number in numbers(pairs, 3)]
        options["prob_b"] = numbers(pairs, 4)
    return options


@pytest.mark.each_value
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel["kernel_type"]))
@pytest.mark.parametrize("supports", [[1, 2], [2, 1, 3], [1, 0, 2, 2]], ids=str)
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel: dict[str, Any], supports: list[int], probabilities: bool) -> None:
    options = machine(supports, probabilities, kernel)
    data = np.concatenate([X, rows(20, 2, 5)])
    for given in (data, data[:1], data[0], (3 * data).astype(np.int32), data.astype(np.float64)):
        agree("SVMClassifier", [given], 1e-4, **options)
    empty = by_graft("SVMClassifier", [X[:0]], **options)
    assert [len(result) for result in empty] == [0, 0]


@pytest.mark.parametrize("transform", TRANSFORMS[1:])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("supports", [[1, 2], [2, 1, 3]], ids=str)
def test_svm_classifier_transforms(
    transform: str, probabilities: bool, supports: list[int]
) -> None:
    options = machine(supports, probabilities, KERNELS[1])
    if len(supports) > 2 or probabilities or transform == "LOGISTIC":
        agree("SVMClassifier", [X], 1e-4, post_transform=transform, **options)
        return
    labels, raw = by_graft("SVMClassifier", [X], **options)
    found = by_graft("SVMClassifier", [X], post_transform=transform, **options)
    if transform == "PROBIT":
        exact = [NormalDist().inv_cdf(p) if 0 < p < 1 else math.nan for p in raw[:, 1].tolist()]
        np.testing.assert_allclose(found[1][:, 1], exact, rtol=5e-3)
        np.testing.assert_allclose(found[1][:, 0], -found[1][:, 1], rtol=1e-4)
    else:
        assert_same(found, [labels, sigmoid(2 * raw)])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_svm_classifier(transform: str) -> None:
    options: dict[str, Any] = {
        "rho": [0.05],
        "outputs": 2,
        "post_transform": transform,
        **KERNELS[0],
    }
    three = {"coefficients": numbers(6), "classlabels_strings": ["a", "b", "c"]}
    agree("SVMClassifier", [X], **options, **three)
    two = {"coefficients": [0.5, -0.2, -0.3, 0.1], "classlabels_ints": [5, 6]}
    labels, scores = by_graft("SVMClassifier", [X], **options, **two)
    expected = by_runtime("SVMClassifier", [X], **options, **two)
    assert_same([scores], expected[1:])
    weight = np.array(two["coefficients"]).reshape(2, 2)
    assert labels.tolist() == np.array([5, 6])[(X @ weight.T).argmax(1)].tolist()


def test_coupled_probabilities_of_agreeing_pairs_are_exact() -> None:
    """Where pairs come from class probabilities, coupling gives these back."""
    shares = np.random.default_rng(7).dirichlet(np.ones(4), 30)
    first, second = np.triu_indices(4, 1)
    pairs = shares[:, first] / (shares[:, first] + shares[:, second])
    builder = Builder()
    data = builder.input("pairs", tensor("float64", symbol("n"), 6))
    graph = builder.build(builder("ml.pairwise_coupling", data, classes=4))
    (found,) = evaluate(graph, [pairs])
    np.testing.assert_allclose(found, shares, atol=0.02)
    np.testing.assert_allclose(found.sum(1), 1)
    with pytest.raises(TypeRuleError, match="the number of pairs and that of 3 classes differ"):
        builder("ml.pairwise_coupling", data, classes=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vectors_per_class": [3]}, r"vectors_per_class \[3\] do not fit 2 classes"),
        ({"coefficients": [1.0]}, "1 coefficients do not fit 3 vectors of 2 classes"),
        ({"support_vectors": [1.0, 2.0]}, "2 support_vectors do not make 3 rows"),
        ({"prob_b": None}, "prob_a and prob_b have 1 and 0 numbers, not 1"),
        ({"rho": [1.0, 2.0]}, None),
        (
            {"classlabels_ints": None},
            "wants one of classlabels_ints, classlabels_strings, has none",
        ),
        ({"support_vectors": numbers(9)}, r"nn\.dense"),
    ],
)
def test_svm_classifier_refusals(changes: dict[str, Any], message: str | None) -> None:
    options = machine([1, 2], True, KERNELS[0]) | changes
    options = {name: value for name, value in options.items() if value is not None}
    if message is None:
        graph_of("SVMClassifier", [X], **options)  # more offsets than pairs do no harm
        return
    with pytest.raises(UserError, match=message) as caught:
        by_graft("SVMClassifier", [X], **options)
    assert caught.value.location is not None
