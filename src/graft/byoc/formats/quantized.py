"""Patterns of quantised units: an operator, the dequantisations before it, the quantisation behind
it.

NPUs recognise integer arithmetic of Q/DQ models by this form. A unit is matched as a whole; scales,
zero points, weights and biases are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.byoc.contract import Match, PatternTable
from graft.rewrite.pattern import Pattern, is_constant, is_op, wildcard
from graft.rewrite.rule import Refusal

LAYERS = ("nn.conv2d", "nn.dense")
ACTIVATIONS = ("nn.relu", "clip")
BINARY = ("add", "subtract", "multiply")
# Of single elements, so that a table of all 256 codes has them exactly.
FUNCTIONS = (
    *("sigmoid", "tanh", "exp", "log", "sqrt", "erf", "sin", "cos", "abs", "negative"),
    *("nn.gelu", "nn.leaky_relu", "floor", "ceil", "round", "sign"),
)
UNARY = (
    *("nn.relu", "clip", "sigmoid", "tanh", "nn.softmax"),
    *("nn.max_pool2d", "nn.avg_pool2d", "mean"),
    *("reshape", "transpose", "squeeze", "expand_dims", "strided_slice"),
)


def dequantized(data: Pattern) -> Pattern:
    """A dequantisation of `data`, with or without a zero point."""
    dequantize = is_op("qnn.dequantize")
    scale = is_constant()
    return dequantize(data, scale, is_constant()) | dequantize(data, scale)


def quantized(value: Pattern) -> Pattern:
    """A quantisation with constant scale and zero point."""
    return is_op("qnn.quantize")(value, is_constant(), is_constant())


def quantized_layer(*names: str) -> Pattern:
    """A product with constant weights, optionally with a bias, a tensor added to it (the shortcut
    of a residual block, with a scale of its own) and an activation."""
    product = is_op(*names)(dequantized(wildcard()), dequantized(is_constant()))
    bias = dequantized(is_constant().has_dtype("int32"))
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, bias))
    summed = biased.optional(lambda x: is_op("add")(x, dequantized(wildcard())))
    return quantized(summed.optional(lambda x: is_op(*ACTIVATIONS)(x)))


def overflowing(match: Match) -> Refusal | None:
    """Refuse a layer whose sums with its bias may exceed 32 bits, as where the weights of a channel
    are almost zero and the bias is in steps of their scale."""
    makers = {node.output: node for node in match.nodes}
    for node in match.nodes:
        layer = makers.get(node.args[0]) if node.op.name == "nn.bias_add" else None
        if layer is None or layer.op.name not in LAYERS or node.args[1] not in makers:
            continue
        codes, *parameters = makers[layer.args[1]].args
        weights, bias = (match.constants[one] for one in (codes, makers[node.args[1]].args[0]))
        zero = match.constants[parameters[1]].astype(np.int64) if parameters[1:] else np.zeros(1)
        wide, inner = weights.astype(np.int64), tuple(range(1, weights.ndim))
        # one zero point is taken away; several may lie along any axis, as a bias may
        is_one, farthest = zero.size == 1, np.abs(zero).max(initial=0)
        distances = np.abs(wide - zero.item()) if is_one else np.abs(wide) + farthest
        products = 255 * distances.sum(inner).max(initial=0)
        largest = int(products + np.abs(bias.astype(np.int64)).max(initial=0))
        if largest >= 1 << 31:
            return Refusal(f"sums of up to {largest:,} overflow 32 bits", node)
    return None


def quantized_units(
    unary: Sequence[str] = UNARY,
    binary: Sequence[str] = BINARY,
    variadic: Sequence[str] = ("concatenate",),
) -> PatternTable:
    """Patterns of layers, and of operators of two tensors, of one, and of any number."""
    pair = is_op(*binary)(dequantized(wildcard()), dequantized(wildcard()))
    return [
        *((f"quantized {name}", quantized_layer(name)) for name in LAYERS),
        ("quantized pair", quantized(pair.optional(lambda x: is_op(*ACTIVATIONS)(x)))),
        *((f"quantized {name}", quantized(is_op(name)(dequantized(wildcard())))) for name in unary),
        *((f"quantized {n}", quantized(is_op(n).each(dequantized(wildcard())))) for n in variadic),
    ]
