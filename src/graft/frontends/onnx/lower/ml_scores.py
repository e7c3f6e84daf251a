"""What the ai.onnx.ml models share: samples in, scores and labels out.

Scores pass one of five transforms, which ONNX only names. PROBIT is Winitzki's approximation of
the normal quantile function, SOFTMAX_ZERO a softmax over the scores that are not zero: both as
in ONNX's reference implementation, which every runtime's numbers follow. A row of zeros stays zero
under SOFTMAX_ZERO. ONNX Runtime leaves a single score untransformed; Graft does not.
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np

from graft.base.dtypes import Array, DType
from graft.frontends.onnx.call import Call, cast_to
from graft.ir.graph import Value


class PostTransform(StrEnum):
    """What becomes of scores; in the order in which `TreeEnsemble` numbers them."""

    NONE = "NONE"
    SOFTMAX = "SOFTMAX"
    LOGISTIC = "LOGISTIC"
    SOFTMAX_ZERO = "SOFTMAX_ZERO"
    PROBIT = "PROBIT"


def post_transform(call: Call) -> PostTransform:
    """The transform that the node names."""
    name = call.attribute("post_transform", "NONE")
    names = list(PostTransform)
    if isinstance(name, int) and 0 <= name < len(names):
        return names[name]
    if name not in names:
        call.fail(f"post_transform is '{name}', none of {', '.join(names)}")
    return PostTransform(name)


def transformed(call: Call, scores: Value, transform: PostTransform) -> Value:
    """Scores [samples, classes] after the transform."""
    if transform is PostTransform.SOFTMAX:
        return call.op("nn.softmax", scores, axis=-1)
    if transform is PostTransform.LOGISTIC:
        return call.op("sigmoid", scores)
    if transform is PostTransform.SOFTMAX_ZERO:
        return _softmax_zero(call, scores)
    return _probit(call, scores) if transform is PostTransform.PROBIT else scores


def _softmax_zero(call: Call, scores: Value) -> Value:
    along = {"axes": (-1,), "keepdims": True}
    counts = call.op("greater", call.op("abs", scores), call.scalar(1e-7, scores))
    lowest, zero = call.scalar(-np.inf, scores), call.scalar(0, scores)
    highest = call.op("max", call.op("where", counts, scores, lowest), **along)
    powers = call.op("exp", call.op("subtract", scores, highest))
    powers = call.op("where", counts, powers, zero)
    # The highest score contributes 1, so that only a row of zeros has a smaller sum.
    total = call.op("maximum", call.op("sum", powers, **along), call.scalar(1, scores))
    return call.op("divide", powers, total)


def _probit(call: Call, scores: Value) -> Value:
    """sqrt(2) erfinv(2 p - 1), with the inverse of the error function approximated."""
    shape = 0.147
    one = call.scalar(1, scores)
    centred = call.op("subtract", call.op("multiply", scores, call.scalar(2, scores)), one)
    inside = call.op("subtract", one, call.op("multiply", centred, centred))
    logarithm = call.op("log", inside)
    half = call.op("multiply", logarithm, call.scalar(0.5, scores))
    middle = call.op("add", half, call.scalar(2 / (math.pi * shape), scores))
    beyond = call.op("multiply", logarithm, call.scalar(1 / shape, scores))
    square = call.op("subtract", call.op("multiply", middle, middle), beyond)
    root = call.op("sqrt", call.op("subtract", call.op("sqrt", square), middle))
    size = call.op("multiply", root, call.scalar(math.sqrt(2), scores))
    return call.op("multiply", call.op("sign", centred), size)


def binary_scores(
    call: Call, score: Value, transform: PostTransform, complement: bool = False
) -> Value:
    """Scores [samples, 2] from the one score [samples, 1] of the second class.

    The first class gets the opposite score, or with `complement` what is left of 1. A transform
    works on opposite scores, but for PROBIT, which wants probabilities.
    """
    if transform is PostTransform.PROBIT or (complement and transform is PostTransform.NONE):
        other = call.op("subtract", call.scalar(1, score), score)
    else:
        other = call.op("negative", score)
    return transformed(call, call.op("concatenate", other, score, axis=1), transform)


def samples(call: Call) -> Value:
    """The first operand as [samples, features]; a vector is one sample."""
    data = call.input(0)
    if data.shape is not None and len(data.shape) not in (1, 2):
        call.fail(f"{call.node.op_type} wants samples [N, F], not {data.tensor}")
    return call.op("expand_dims", data, axes=(0,)) if data.shape and len(data.shape) == 1 else data


def float_samples(call: Call) -> Value:
    """The samples as float32."""
    return cast_to(call, samples(call), DType.FLOAT32)


def top_label(call: Call, scores: Value, labels: Array) -> Value:
    """The label of the column with the highest score."""
    column = call.op("argmax", scores, axis=1, keepdims=False)
    return call.op("take", call.constant(labels), column, axis=0)


def label_above(call: Call, score: Value, threshold: float, labels: Array) -> Value:
    """Of two labels the second where the score [samples, 1] is above the threshold.

    A single label is the second one; the first is then 0 or the empty string.
    """
    if len(labels) == 1:
        labels = np.append(np.array(["" if labels.dtype == object else 0], labels.dtype), labels)
    flat = call.op("squeeze", score, axes=(1,))
    above = call.op("greater", flat, call.scalar(threshold, flat))
    index = call.op("cast", above, dtype=DType.INT64)
    return call.op("take", call.constant(labels), index, axis=0)
