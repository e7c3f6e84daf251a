"""Makes products by 16-bit floats of layers whose operands hold no more than that.

A graph enters in which constant weights are numbers that float16 or bfloat16 holds exactly, as they
are where a model stores them so, or where its precision was chosen so. Layers on data that are
rounded to bfloat16 leave as `mixed` ones, which multiply two pairs at a time where the processor
can; so do dense layers of few rows that are bound by the memory their weights lie in. Results are
the same, up to the order of sums.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.kernels.product import FEW_ROWS
from graft.backends.host.kernels.words import per_word
from graft.base.dtypes import Array, DType
from graft.ir.attrs import as_keywords
from graft.ir.graph import Graph, Node, Value
from graft.ops.mixed import HALVES
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.target import Target

LAYERS = {"nn.conv2d": "mixed.conv2d", "nn.dense": "mixed.dense"}


def use_halves(graph: Graph, target: Target) -> Graph:
    """All such layers of a graph."""
    rules = RuleSet("mixed_layers")
    cached = target.cache_bytes[-1] // 2  # of a nearer one, other layers leave less

    @rules.rule(is_op("nn.dense"))
    def streamed_weights(site: Site) -> Replacement:
        """Weights that no cache holds until they are read again, in half the bytes."""
        node = site.node
        weight = site.array(node.args[1])
        if weight is None or weight.dtype != np.float32 or weight.nbytes <= cached:
            return Refusal("the weights are not constant, or a cache holds them")
        if not _has_few_rows(node):
            return Refusal("the layer has rows enough to be bound by its products")
        narrow = next(
            (n for n in (_exactly(weight, half) for half in HALVES) if n is not None), None
        )
        if narrow is None:
            return Refusal("no float of 16 bits holds the weights exactly")
        return site.emit("mixed.dense", node.args[0], site.constant(narrow))

    rules.rule(is_op(*LAYERS))(paired_layer)
    return apply_rules(graph, rules)


def paired_layer(site: Site) -> Replacement:
    """A layer on data and weights of bfloat16."""
    node = site.node
    source, weight = site.producer(node.args[0]), site.array(node.args[1])
    if source is None or source.op.name != "cast" or source.args[0].dtype is not DType.BFLOAT16:
        return Refusal("the data are not widened from bfloat16")
    if weight is None or node.output.dtype is not DType.FLOAT32:
        return Refusal("the weights are not constant, or results not of float32")
    data, narrow = source.args[0], _exactly(weight, DType.BFLOAT16)
    if narrow is None:
        return Refusal("bfloat16 does not hold the weights exactly")
    missing = -weight.shape[1] % per_word(data.dtype)
    if missing:
        if node.op.name != "nn.conv2d" or node.attrs.groups != 1:
            return Refusal(f"{weight.shape[1]} inputs are no pairs")
        data, narrow = _more_channels(site, data, narrow, missing)
    attrs = as_keywords(node.attrs)
    return site.emit(LAYERS[node.op.name], data, site.constant(narrow), **attrs)


def _has_few_rows(node: Node) -> bool:
    shape = node.args[0].tensor.shape
    rows = [dim for dim in (shape or ())[:-1] if isinstance(dim, int)]
    return shape is not None and len(rows) == len(shape) - 1 and math.prod(rows) <= FEW_ROWS


def _exactly(weight: Array, half: DType) -> Array | None:
    """The same numbers in 16 bits; None where they are not the same."""
    with np.errstate(over="ignore"):
        narrow = weight.astype(half.numpy)
    return narrow if np.array_equal(narrow.astype(np.float32), weight) else None


def _more_channels(site: Site, data: Value, weight: Array, missing: int) -> tuple[Value, Array]:
    """Channels that count for nothing, so that there are pairs of them."""
    padded = site.emit("nn.pad", data, pad_width=(0, 0, 0, 0, 0, missing, 0, 0))
    return padded, np.pad(weight, ((0, 0), (0, missing), (0, 0), (0, 0)))
