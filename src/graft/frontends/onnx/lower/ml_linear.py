"""ai.onnx.ml: linear models and support vector machines, as matrix products and a few more."""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array
from graft.frontends.onnx.call import Call, allow
from graft.frontends.onnx.lower.ml_features import ML, labels_of
from graft.frontends.onnx.lower.ml_scores import (
    binary_scores,
    float_samples,
    label_above,
    post_transform,
    top_label,
    transformed,
)
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value


def _floats(call: Call, name: str) -> Array:
    return np.array(call.ints(name, ()), np.float32)


def _matrix(call: Call, name: str, rows: int) -> Array:
    """A list of numbers as a matrix of so many rows."""
    numbers = _floats(call, name)
    if rows < 1 or numbers.size == 0 or numbers.size % rows:
        call.fail(f"{numbers.size} {name} do not make {rows} rows")
    return numbers.reshape(rows, -1)


def _coefficients(call: Call, rows: int, data: Value) -> Array:
    """The weights of a linear model; of more than the data have features, the first ones count."""
    numbers = _floats(call, "coefficients")
    features = None if data.shape is None else data.shape[1]
    if isinstance(features, int) and numbers.size > rows * features > 0:
        excess = f"{numbers.size} coefficients are more than {rows} rows of {features}"
        allow(call, excess, f"the first {rows * features} count")
        return numbers[: rows * features].reshape(rows, features)
    return _matrix(call, "coefficients", rows)


def _affine(call: Call, data: Value, weight: Array, bias: Array) -> Value:
    """data @ weight.T + bias; an empty bias adds nothing."""
    product = call.op("nn.dense", data, call.constant(weight))
    if not bias.size:
        return product
    if len(bias) != len(weight):
        call.fail(f"there are {len(weight)} scores but {len(bias)} offsets to add to them")
    return call.op("nn.bias_add", product, call.constant(bias), axis=-1)


@lowers("LinearRegressor", domain=ML)
def _linear_regressor(call: Call) -> Value:
    data = float_samples(call)
    weight = _coefficients(call, call.int("targets", 1), data)
    scores = _affine(call, data, weight, _floats(call, "intercepts"))
    return transformed(call, scores, post_transform(call))


@lowers("LinearClassifier", domain=ML)
def _linear_classifier(call: Call) -> tuple[Value, Value]:
    data, transform = float_samples(call), post_transform(call)
    names = ("classlabels_ints", "classlabels_strings")
    unnamed = not any(call.ints(name, ()) for name in names)
    labels = np.arange(2) if unnamed else labels_of(call, names)
    intercepts = _floats(call, "intercepts")
    features = data.shape[1] if data.shape is not None else None
    count = len(intercepts) or len(labels)
    if not len(intercepts) and isinstance(features, int) and features:
        count = len(call.ints("coefficients")) // features
    weight = _coefficients(call, count, data)
    scores = _affine(call, data, weight, intercepts)
    if count > 1:
        if len(labels) != count:
            call.fail(f"there are {count} scores but {len(labels)} class labels")
        return top_label(call, scores, labels), transformed(call, scores, transform)
    if len(labels) > 2:
        call.fail(f"one score does not tell {len(labels)} classes apart")
    label = label_above(call, scores, 0, labels)
    if unnamed or len(labels) == 1:
        return label, transformed(call, scores, transform)
    return label, binary_scores(call, scores, transform, complement=True)


def _kernel(call: Call, data: Value, vectors: Array) -> Value:
    """The kernel function of each sample and each vector: [samples, vectors]."""
    gamma, offset, degree = (*call.ints("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    kind = call.string("kernel_type", "LINEAR")
    if kind not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        call.fail(f"kernel_type is '{kind}', none of LINEAR, POLY, RBF, SIGMOID")
    constant = call.constant(vectors)
    if kind == "RBF":
        distance = call.op("ml.squared_distance", data, constant)
        return call.op("exp", call.op("multiply", distance, call.scalar(-gamma, distance)))
    product = call.op("nn.dense", data, constant)
    if kind == "LINEAR":
        return product
    scaled = call.op("multiply", product, call.scalar(gamma, product))
    scaled = call.op("add", scaled, call.scalar(offset, product))
    if kind == "POLY":
        return call.op("power", scaled, call.scalar(degree, product))
    return call.op("tanh", scaled)


@lowers("SVMRegressor", domain=ML)
def _svm_regressor(call: Call) -> Value:
    data, count = float_samples(call), call.int("n_supports", 0)
    weight = _matrix(call, "coefficients", 1)
    if count > 0:
        data = _kernel(call, data, _matrix(call, "support_vectors", count))
    score = _affine(call, data, weight, _floats(call, "rho")[:1])
    if call.int("one_class", 0):
        inside = call.op("greater", score, call.scalar(0, score))
        score = call.op("where", inside, call.scalar(1, score), call.scalar(-1, score))
    return transformed(call, score, post_transform(call))


@lowers("SVMClassifier", domain=ML)
def _svm_classifier(call: Call) -> tuple[Value, Value]:
    data, transform = float_samples(call), post_transform(call)
    labels = labels_of(call, ("classlabels_ints", "classlabels_strings"))
    supports = call.ints("vectors_per_class", ())
    if not sum(supports):  # one linear function per class
        weight = _matrix(call, "coefficients", len(labels))
        rho = np.repeat(_floats(call, "rho")[:1], len(labels))
        scores = _affine(call, data, weight, rho)
        return top_label(call, scores, labels), transformed(call, scores, transform)
    if len(supports) != len(labels) or len(labels) < 2 or min(supports) < 0:
        call.fail(f"vectors_per_class {list(supports)} do not fit {len(labels)} classes")
    vectors = _matrix(call, "support_vectors", sum(supports))
    weight, rho = _pair_weights(call, supports), _floats(call, "rho")
    scores = _affine(call, _kernel(call, data, vectors), weight, rho[: len(weight)])
    label = top_label(call, _votes(call, scores, len(labels)), labels)
    if call.ints("prob_a", ()):
        return label, transformed(call, _probabilities(call, scores, len(labels)), transform)
    if len(labels) == 2:
        return label, binary_scores(call, scores, transform)
    return label, transformed(call, scores, transform)


def _pair_weights(call: Call, supports: tuple[int, ...]) -> Array:
    """Per pair of classes i < j the weights of all support vectors: [pairs, vectors].

    Only those of the two classes count. Class i's stand in row j - 1 of the coefficients, class
    j's in row i.
    """
    classes, count = len(supports), sum(supports)
    coefficients = _floats(call, "coefficients")
    if coefficients.size != (classes - 1) * count:
        call.fail(
            f"{coefficients.size} coefficients do not fit {count} vectors of {classes} classes"
        )
    coefficients = coefficients.reshape(classes - 1, count)
    owner = np.repeat(np.arange(classes), supports)
    pairs = zip(*np.triu_indices(classes, 1), strict=True)
    return np.stack(
        [
            np.where(owner == i, coefficients[j - 1], np.where(owner == j, coefficients[i], 0))
            for i, j in pairs
        ]
    )


def _votes(call: Call, scores: Value, classes: int) -> Value:
    """How many pairs each class wins: a positive score is a vote for the first of the pair."""
    first, second = np.triu_indices(classes, 1)
    pairs = np.arange(len(first))
    votes = np.zeros((classes, len(pairs)), np.float32)
    votes[first, pairs], votes[second, pairs] = 1, -1
    lost = np.bincount(second, minlength=classes).astype(np.float32)
    zero, one = call.scalar(0, scores), call.scalar(1, scores)
    won = call.op("where", call.op("greater", scores, zero), one, zero)
    return _affine(call, won, votes, lost)


def _probabilities(call: Call, scores: Value, classes: int) -> Value:
    """Class probabilities from the pairs' scores, each first made a probability by a sigmoid."""
    slopes, offsets = _floats(call, "prob_a"), _floats(call, "prob_b")
    pairs = classes * (classes - 1) // 2
    if len(slopes) != pairs or len(offsets) != pairs:
        call.fail(f"prob_a and prob_b have {len(slopes)} and {len(offsets)} numbers, not {pairs}")
    scaled = call.op("multiply", scores, call.constant(-slopes))
    scaled = call.op("subtract", scaled, call.constant(offsets))
    certain = call.op("clip", call.op("sigmoid", scaled), a_min=1e-7, a_max=1 - 1e-7)
    return call.op("ml.pairwise_coupling", certain, classes=classes)
