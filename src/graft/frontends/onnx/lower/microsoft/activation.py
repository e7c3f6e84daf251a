"""Activations with something fused before them, and those that follow a fused product.

GELU in its forms, softmax with a bias, and the activations that `FusedConv` and `FusedGemm` name
by an attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.activation import swish
from graft.frontends.onnx.lower.microsoft.contract import lowers_microsoft, main
from graft.frontends.onnx.registry import lower_as
from graft.ir.graph import Value

# What a fused activation is called -> the names of its coefficients, in the order they are given.
_COEFFICIENTS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "Elu": ("alpha",),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("a_min", "a_max"),
}


def coefficients_of(call: Call, activation: str) -> tuple[str, ...]:
    """The names of an activation's coefficients."""
    if activation not in _COEFFICIENTS:
        call.unsupported(f"{call.node.op_type} with the activation '{activation}'")
    return _COEFFICIENTS[activation]


def activated(call: Call, x: Value, activation: str, coefficients: Sequence[float]) -> Value:
    """An activation by its name; one without a name leaves everything as it is."""
    if not activation:
        return x
    names = coefficients_of(call, activation)
    if len(coefficients) > len(names):
        count = len(coefficients)
        call.fail(f"{activation} takes {len(names)} coefficients, {count} are given")
    parameters = dict(zip(names, coefficients, strict=False))
    if activation == "Clip":
        return call.op("clip", x, **parameters)
    return main(call, activation, x, **parameters)


def with_bias(call: Call, x: Value, bias: Value | None) -> Value:
    """A bias along the last axis, where there is one."""
    return x if bias is None else call.op("nn.bias_add", x, bias, axis=-1)


@lowers_microsoft("Gelu", "X")
def _gelu(call: Call) -> Value:
    return call.op("nn.gelu", call.input(0))


@lowers_microsoft("BiasGelu", "A B")
def _bias_gelu(call: Call) -> Value:
    return call.op("nn.gelu", with_bias(call, call.input(0), call.input(1)))


@lowers_microsoft("FastGelu", "X bias?")
def _fast_gelu(call: Call) -> Value:
    return call.op("nn.gelu", with_bias(call, call.input(0), call.optional(1)), approximate=True)


@lowers_microsoft("QuickGelu", "X", "alpha")
def _quick_gelu(call: Call) -> Value:
    return swish(call, call.input(0), call.float("alpha", 1.702))


@lowers_microsoft("BiasAdd", "X bias skip")
def _bias_add(call: Call) -> Value:
    return call.op("add", with_bias(call, call.input(0), call.input(1)), call.input(2))


@lowers_microsoft("BiasSplitGelu", "X bias")
def _bias_split_gelu(call: Call) -> Value:
    """The left half of the channels, each multiplied by the GELU of its partner in the right."""
    shifted = with_bias(call, call.input(0), call.input(1))
    left, right = call.ops("split", shifted, axis=-1, sections=2)
    return call.op("multiply", left, call.op("nn.gelu", right))


@lowers_microsoft("BiasSoftmax", "data bias", "axis is_inner_broadcast")
def _bias_softmax(call: Call) -> Value:
    """Softmax over all axes from `axis` on, taken as one, of the data plus what fits its shape.

    A bias that is broadcast within has extents of 1 where it is; one that is broadcast without may
    lack leading axes.
    """
    call.int("is_inner_broadcast")
    total = call.op("add", call.input(0), call.input(1))
    return lower_as(call, "Softmax", total, opset=11, axis=call.int("axis", 1))[0]
