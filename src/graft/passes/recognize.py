"""Recognises composite operators that exporters decompose into small ones.

GELU, layer and group normalisation and attention, each written as its formula.
"""

from __future__ import annotations

import numpy as np

from graft.ir.graph import Graph, Node, Value
from graft.passes import simplify_movement
from graft.passes.eliminate_noops import same_shape
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import Pattern, is_constant, is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet, merged

RULES = RuleSet("recognize")


def recognize(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    return apply_rules(graph, merged(RULES.name, (RULES, simplify_movement.RULES)))


def _one_plus_erf(x: Pattern) -> Pattern:
    return op.erf((x / 2**0.5) | (x * 0.5**0.5)) + 1


def _gelu(site: Site, x: Value, approximate: bool = False) -> Replacement:
    if not same_shape(x, site.root):
        return Refusal("a number in the formula has more axes than its operand")
    return site.emit("nn.gelu", x, approximate=approximate)


def _half_of_product(x: Pattern, factor: Pattern) -> Pattern:
    """x * factor / 2, in any order."""
    return ((x * 0.5) * factor) | (x * (factor * 0.5)) | ((x * factor) * 0.5)


@RULES.rule(lambda x: _half_of_product(x, _one_plus_erf(x)))
def gelu(site: Site, x: Value) -> Replacement:
    return _gelu(site, x)


def _inner_of_tanh_gelu(x: Pattern) -> Pattern:
    cube = (x**3) | (x * (x * x))
    return (x + cube * 0.044715) * 0.7978845608


@RULES.rule(lambda x: _half_of_product(x, op.tanh(_inner_of_tanh_gelu(x)) + 1))
def tanh_gelu(site: Site, x: Value) -> Replacement:
    return _gelu(site, x, approximate=True)


_EPSILON = is_constant()


def _normalized(x: Pattern) -> Pattern:
    centered = x - op.mean(x)
    variance = op.mean((centered**2) | (centered * centered))
    return centered / op.sqrt(variance + _EPSILON)


@RULES.rule(_normalized)
def layer_norm(site: Site, x: Value) -> Replacement:
    rank = x.tensor.rank
    epsilon = site.array(site.match[_EPSILON])
    if rank is None or epsilon is None or epsilon.size != 1:
        return Refusal("the rank or epsilon is not known")
    if not same_shape(x, site.root):
        return Refusal("epsilon has more axes than what is normalised")
    means = [node for node in site.match.nodes if node.op.name == "mean"]
    number = float(epsilon.reshape(-1)[0])
    if all(_is_over_axis(node, rank - 1, rank) for node in means):
        return site.emit("nn.layer_norm", x, axis=-1, epsilon=number)
    if rank != 4 or not all(_is_over_axis(node, 1, rank) for node in means):
        return Refusal("the mean is neither over the last axis nor over the channels of images")
    moved = site.emit("transpose", x, axes=(0, 2, 3, 1))
    normal = site.emit("nn.layer_norm", moved, axis=-1, epsilon=number)
    return site.emit("transpose", normal, axes=(0, 3, 1, 2))


def _is_over_axis(node: Node, axis: int, rank: int) -> bool:
    axes = node.attrs.axes
    keepdims: bool = node.attrs.keepdims
    return keepdims and len(node.args) == 1 and axes in ((axis - rank,), (axis,))


@RULES.rule(lambda x, gamma: op.nn.layer_norm(x) * gamma)
def layer_norm_scaled(site: Site, x: Value, gamma: Value) -> Replacement:
    return _with_parameters(site, x, gamma)


@RULES.rule(lambda x, gamma, beta: op.nn.layer_norm(x, gamma) + beta)
def layer_norm_shifted(site: Site, x: Value, gamma: Value, beta: Value) -> Replacement:
    return _with_parameters(site, x, gamma, beta)


def _with_parameters(site: Site, x: Value, *parameters: Value) -> Replacement:
    norm = next(node for node in site.match.nodes if node.op.name == "nn.layer_norm")
    axis: int = norm.attrs.axis
    epsilon: float = norm.attrs.epsilon
    last = (x.shape or ())[-1:]
    if axis != -1 or any(p.shape != last or site.array(p) is None for p in parameters):
        return Refusal("scale and shift are not constants of the last axis")
    if not site.only_use(norm.output):
        return Refusal("others read what is normalised")
    return site.emit("nn.layer_norm", x, *parameters, axis=axis, epsilon=epsilon)


@RULES.rule(is_op("reshape"))
def group_norm(site: Site) -> Replacement:
    """An instance normalisation of reshaped channel groups."""
    norm = site.producer(site.node.args[0])
    if norm is None or norm.op.name != "nn.instance_norm" or norm.attrs.axis != 1:
        return Refusal("what is reshaped is no normalisation of instances")
    grouped, *parameters = norm.args
    source = site.producer(grouped)
    if source is None or source.op.name != "reshape" or not site.only_use(norm.output):
        return Refusal("the channels have not been grouped, or others read what is normalised")
    data, groups = source.args[0], (grouped.shape or (None, None))[1]
    shape = data.shape or ()
    channels = shape[1] if len(shape) > 1 else None
    if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
        return Refusal("it is not known how many channels a group has, or they are not whole")
    if not same_shape(data, site.root) or shape[0] != (grouped.shape or (None,))[0]:
        return Refusal("the result has another shape than the data, or instances are cut")
    numbers = [site.array(parameter) for parameter in parameters]
    spread = [np.repeat(number, channels // groups) for number in numbers if number is not None]
    if len(spread) != len(parameters):
        return Refusal("scale or shift is not constant")
    constants = map(site.constant, spread)
    epsilon: float = norm.attrs.epsilon
    return site.emit("nn.group_norm", data, *constants, num_groups=groups, epsilon=epsilon)


_SOFTMAX = is_op("nn.softmax")


def _scores(q: Pattern, kt: Pattern) -> Pattern:
    product = op.nn.batch_matmul(q, kt)
    return product | (product * is_constant()) | (product / is_constant())


def _attention(q: Pattern, kt: Pattern, v: Pattern) -> Pattern:
    return op.nn.batch_matmul(_SOFTMAX(_scores(q, kt)), v)


def _masked_attention(q: Pattern, kt: Pattern, v: Pattern, mask: Pattern) -> Pattern:
    return op.nn.batch_matmul(_SOFTMAX(_scores(q, kt) + mask), v)


@RULES.rule(_attention)
def attention(site: Site, q: Value, kt: Value, v: Value) -> Replacement:
    return _whole_attention(site, q, kt, v, None)


@RULES.rule(_masked_attention)
def masked_attention(site: Site, q: Value, kt: Value, v: Value, mask: Value) -> Replacement:
    if mask.dtype != q.dtype or mask.tensor.rank not in (2, q.tensor.rank):
        return Refusal("the mask is not added to whole score matrices")
    return _whole_attention(site, q, kt, v, mask)


def _whole_attention(site: Site, q: Value, kt: Value, v: Value, mask: Value | None) -> Replacement:
    softmax = next(node for node in site.match.nodes if node.op.name == "nn.softmax")
    scores = softmax.args[0]
    products = [node for node in site.match.nodes if node.op.name == "nn.batch_matmul"]
    if any(p.attrs.transpose_a or p.attrs.transpose_b for p in products):
        return Refusal("a product transposes its operands")
    if softmax.attrs.axis not in (-1, len(q.shape or ()) - 1) or not site.only_use(softmax.output):
        return Refusal("the softmax is not over the keys, or others read it")
    inner = next(product for product in products if product.output is not site.root)
    if not same_shape(scores, inner.output):
        return Refusal("the mask broadcasts the scores")
    shapes = [value.shape or () for value in (q, kt, v, scores)]
    rank = len(shapes[0])
    if rank not in (3, 4) or any(
        len(shape) != rank or shape[:-2] != shapes[0][:-2] for shape in shapes
    ):
        return Refusal("operands are not [batch, heads, length, size] or [batch, length, size]")
    if not all(isinstance(size, int) for size in (shapes[0][-1], shapes[2][-1])):
        return Refusal("how long queries and values are is known only at run time")
    scale = _scale_of_scores(site, inner.output)
    if scale is None:
        return Refusal("the scores are not scaled by a single number")
    return _emit_attention(site, q, kt, v, mask, scale)


def _emit_attention(
    site: Site, q: Value, kt: Value, v: Value, mask: Value | None, scale: float
) -> Value:
    """Attention of operands with heads, or without: of non-local blocks, or in one axis with the
    batch."""
    if q.tensor.rank == 4:
        key = site.emit("transpose", kt, axes=(0, 1, 3, 2))
        return site.emit("nn.attention", q, key, v, mask, scale=scale)

    def with_one_head(value: Value) -> Value:
        return site.emit("expand_dims", value, axes=(1,)) if value.tensor.rank == 3 else value

    key = site.emit("transpose", kt, axes=(0, 2, 1))
    operands = [None if one is None else with_one_head(one) for one in (q, key, v, mask)]
    return site.emit("squeeze", site.emit("nn.attention", *operands, scale=scale), axes=(1,))


def _scale_of_scores(site: Site, product: Value) -> float | None:
    """The number that scores are multiplied by; None where it is not one number."""
    for node in site.match.nodes:
        if node.op.name not in ("multiply", "divide"):
            continue
        factor = next(arg for arg in node.args if arg is not product)
        number = site.array(factor)
        if number is None or number.size != 1:
            return None
        value = float(number.reshape(-1)[0])
        return value if node.op.name == "multiply" else 1 / value if value else None
    return 1.0


@RULES.rule(is_op("nn.attention"))
def attention_of_scaled_operands(site: Site) -> Replacement:
    """Fold a scalar factor of queries or keys into the attention's scale."""
    scale: float | None = site.node.attrs.scale
    operands = list(site.node.inputs)
    if scale is None:
        return Refusal("the scale is the usual one")
    for position in (0, 1):
        value = operands[position]
        node = None if value is None else site.producer(value)
        if node is None or node.op.name != "multiply":
            continue
        for data, factor in (node.args, node.args[::-1]):
            number = site.array(factor)
            if number is not None and number.size == 1 and data.type == node.output.type:
                operands[position] = data
                scaled = scale * float(number.reshape(-1)[0])
                return site.again(site.node, *operands, scale=scaled)
    return Refusal("no operand is scaled by a number")
