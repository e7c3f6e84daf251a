"""Quantisations as pointwise steps, which the kernels before them take in.

What is quantised enters: sums of integers, dequantised bytes, or what bias, residual, activation
and interpolation make of them. It leaves in units of the quantisation's scale, so that nothing is
left of it but rounding. What is not quantised again leaves as integers and the steps that turn
them into floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.passes.quantized_values import (
    DEQUANTIZE,
    QUANTIZE,
    Quantized,
    quantized,
    sums_of,
    zero_point_of,
)
from graft.base.dtypes import Array, DType
from graft.ir.attrs import as_keywords
from graft.ir.graph import Node, Value
from graft.ops.integer import BYTES
from graft.ops.resize import interpolates
from graft.rewrite.driver import Site
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

_QUANTISATIONS = RuleSet("integer_quantisations")
_INTERPOLATIONS = RuleSet("integer_interpolations")
_DEQUANTISATIONS = RuleSet("integer_dequantisations")
# In this order: what is quantised or interpolated looks for what it was dequantised from.
ROUNDINGS = (_QUANTISATIONS, _INTERPOLATIONS, _DEQUANTISATIONS)


@_QUANTISATIONS.rule(is_op(QUANTIZE))
def rounding(site: Site) -> Replacement:
    """A quantisation as pointwise steps, which other kernels take in."""
    node = site.node
    scale, zero = site.array(node.args[1]), zero_point_of(site, node)
    if scale is None or zero is None or (scale.size, zero.size) != (1, 1):
        return Refusal("its scale or zero point is not one constant")
    if node.output.dtype not in BYTES or scale.dtype != np.float32 or not scale.reshape(-1)[0] > 0:
        return Refusal("it is not to 8 bits, or its scale is no positive float32")
    limits = np.iinfo(node.output.dtype.numpy)
    offset = int(zero.reshape(-1)[0])
    low, high = limits.min - offset, limits.max - offset
    divided = _divided(site, node.args[0], scale.reshape(()))
    if divided is not None:
        ratio = _before_clip(site, divided.whole(site), low, high)
    elif node.args[0].dtype is DType.FLOAT32 and node.attrs.precision in (None, DType.FLOAT32):
        ratio = site.emit("divide", node.args[0], site.constant(scale.reshape(())))
    else:
        return Refusal("what is quantised does not come from integers, and is not float32")
    operands = (ratio, site.constant(np.float32(offset))) if offset else (ratio,)
    return site.emit("qnn.saturate", *operands, dtype=node.output.dtype)


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A value less than it should be by a constant, which is added when nothing else is."""

    value: Value
    offset: float = 0.0

    def whole(self, site: Site) -> Value:
        if not self.offset:
            return self.value
        return site.emit("add", self.value, site.constant(np.float32(self.offset)))


def _divided(site: Site, value: Value, scale: Array) -> _Shifted | None:
    """The value in units of a scale, where it comes from integers by steps that allow that."""
    sums = sums_of(site, value)
    if sums is not None:
        real = site.emit("cast", sums.sums, dtype=DType.FLOAT32)
        return _Shifted(site.emit("multiply", real, site.constant(sums.scale / scale)))
    data = quantized(site, value)
    if data is not None and data.axis is None:
        return _in_units(site, site.emit("cast", data.value, dtype=DType.FLOAT32), data, scale)
    node = site.producer(value)
    if node is None or not site.only_use(value):
        return None
    codes = _resized_codes(site, node)
    data = None if codes is None else quantized(site, node.args[0])
    if codes is not None and data is not None:
        return _in_units(site, codes, data, scale)
    return _divided_sum(site, node, scale) or _divided_activation(site, node, scale)


def _in_units(site: Site, codes: Value, data: Quantized, scale: Array) -> _Shifted:
    """What codes as floats stand for, in units of a scale."""
    factor = np.float32(data.scale / scale)
    if factor != 1:
        codes = site.emit("multiply", codes, site.constant(factor))
    return _Shifted(codes, float(-factor * np.float32(data.zero_point)))


def _divided_activation(site: Site, node: Node, scale: Array) -> _Shifted | None:
    """The same for an operator that keeps numbers within bounds, or scales negative ones."""
    if node.op.name not in ("nn.relu", "nn.leaky_relu", "clip") or len(node.inputs) != 1:
        return None
    data = _divided(site, node.args[0], scale)
    if data is None:
        return None
    if node.op.name != "clip":
        return _Shifted(site.again(node, data.whole(site)))
    bounds = {"a_min": node.attrs.a_min, "a_max": node.attrs.a_max}
    scaled = {key: None if b is None else float(b) / float(scale) for key, b in bounds.items()}
    return _Shifted(site.again(node, data.whole(site), **scaled))


def _divided_sum(site: Site, node: Node, scale: Array) -> _Shifted | None:
    """The same for a sum, of which all constant parts become one."""
    if node.op.name not in ("add", "nn.bias_add"):
        return None
    left, bias = _divided(site, node.args[0], scale), site.array(node.args[1])
    if left is None:
        return None
    if bias is not None:
        divided = site.constant((bias / scale).astype(np.float32))
        return _Shifted(site.again(node, left.value, divided), left.offset)
    right = _divided(site, node.args[1], scale)
    if right is None:
        return None
    shifted = _Shifted(left.value, float(np.float32(left.offset + right.offset)))
    return _Shifted(site.again(node, shifted.whole(site), right.value))


def _before_clip(site: Site, value: Value, low: int, high: int) -> Value:
    """The value before an activation that the limits of the codes make needless."""
    node = site.producer(value)
    if node is not None and node.op.name == "nn.relu" and low == 0:
        return node.args[0]
    if node is None or node.op.name != "clip" or len(node.inputs) != 1:
        return value
    floor, ceiling = node.attrs.a_min, node.attrs.a_max
    above = floor is None or np.rint(floor) <= low
    below = ceiling is None or np.rint(ceiling) >= high
    return node.args[0] if above and below else value


@_INTERPOLATIONS.rule(is_op("resize"))
def interpolated_codes(site: Site) -> Replacement:
    """An image that is dequantised and resized is resized as bytes."""
    codes = _resized_codes(site, site.node)
    data = None if codes is None else quantized(site, site.node.args[0])
    if codes is None or data is None:
        return Refusal("it does not interpolate bytes of one constant scale")
    return _codes_as_floats(site, codes, data)


def _resized_codes(site: Site, node: Node) -> Value | None:
    """The codes that an interpolated image has, not rounded: weights add up to one, so that scale
    and zero point stay what they are."""
    if node.op.name != "resize" or not interpolates(node.attrs):
        return None
    data = quantized(site, node.args[0])
    if data is None or data.axis is not None or site.array(data.value) is not None:
        return None
    attrs = as_keywords(node.attrs)
    attrs["extrapolation_value"] = float(
        attrs["extrapolation_value"] / float(data.scale) + int(data.zero_point)
    )
    return site.emit("qnn.resize", data.value, *node.inputs[1:], **attrs)


@_DEQUANTISATIONS.rule(is_op(DEQUANTIZE))
def difference_times_scale(site: Site) -> Replacement:
    """A dequantisation in steps that other kernels take in: exactly what it means."""
    data = quantized(site, site.node.output)
    if data is None or data.axis is not None or site.array(data.value) is not None:
        return Refusal("it is not of bytes by one constant scale")
    return _codes_as_floats(site, site.emit("cast", data.value, dtype=DType.FLOAT32), data)


def _codes_as_floats(site: Site, codes: Value, data: Quantized) -> Value:
    """What codes as floats stand for."""
    if data.zero_point:
        codes = site.emit("subtract", codes, site.constant(np.float32(data.zero_point)))
    return site.emit("multiply", codes, site.constant(data.scale))
