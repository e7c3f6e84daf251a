"""Losses of classifiers: negative log likelihood and softmax cross entropy.

Scores [batch, classes, ...] and labels [batch, ...] enter; the loss per label leaves, or its sum or
weighted mean. A label that is to be ignored counts as class 0 with weight zero.
"""

from __future__ import annotations

from graft.base.dim_questions import provably_different
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value


@lowers("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(call: Call) -> Value:
    return _loss(call, call.input(0))


@lowers("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(call: Call) -> tuple[Value, Value]:
    logarithms = call.op("nn.log_softmax", call.input(0), axis=1)
    return _loss(call, logarithms), logarithms


def _loss(call: Call, likelihood: Value) -> Value:
    """The negative log likelihood at the labels, reduced as the node specifies."""
    labels, weights, is_ignored = call.input(1), call.optional(2), None
    _check_labels(call, likelihood, labels)
    if call.has("ignore_index"):
        is_ignored = call.op("equal", labels, call.scalar(call.int("ignore_index"), labels))
        labels = call.op("where", is_ignored, call.scalar(0, labels), labels)
    index = call.op("expand_dims", labels, axes=[1])
    likelihoods = call.op("squeeze", call.op("gather", likelihood, index, axis=1), axes=[1])
    loss = call.op("negative", likelihoods)
    share = None if weights is None else call.op("take", weights, labels, axis=0)
    if share is not None:
        loss = call.op("multiply", loss, share)
    if is_ignored is not None:
        zero, one = call.scalar(0, loss), call.scalar(1, loss)
        loss = call.op("where", is_ignored, zero, loss)
        share = call.op("where", is_ignored, zero, one if share is None else share)
    return _reduced(call, loss, share)


def _check_labels(call: Call, scores: Value, labels: Value) -> None:
    if scores.shape is None or labels.shape is None:
        return
    expected = scores.shape[:1] + scores.shape[2:]
    if len(scores.shape) < 2 or len(expected) != len(labels.shape):
        call.fail(f"labels of rank {len(labels.shape)} for scores of rank {len(scores.shape)}")
    for one, other in zip(expected, labels.shape, strict=True):
        if provably_different(one, other):
            call.fail(f"labels are {labels.type}, scores {scores.type}")


def _reduced(call: Call, loss: Value, share: Value | None) -> Value:
    reduction = call.string("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction not in ("sum", "mean"):
        call.fail(f"reduction is '{reduction}', not none, sum or mean")
    if reduction == "mean" and share is None:
        return call.op("mean", loss, keepdims=False)
    total = call.op("sum", loss, keepdims=False)
    if reduction == "sum" or share is None:
        return total
    return call.op("divide", total, call.op("sum", share, keepdims=False))
