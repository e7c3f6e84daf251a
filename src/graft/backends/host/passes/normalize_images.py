"""Makes normalisations of images what kernels for blocks of channels compute.

Frameworks normalise the channels of [batch, channels, rows, columns] by moving them to the end and
back again; `nn.channel_norm` does so where they are. Instance and group normalisation become means
over pixels and arithmetic with them. Layers before and after then keep their images in blocks.
"""

from __future__ import annotations

import numpy as np

from graft.base.dims import Unknown
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("normalize_images")

_TO_END, _BACK = (0, 2, 3, 1), (0, 3, 1, 2)
_NORMS = ("nn.layer_norm", "nn.rms_norm")
# Kernels of images in blocks take channels that a block of so many divides.
NARROWEST_BLOCK = 8


def normalize_images(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("transpose"))
def norm_between_transposes(site: Site) -> Replacement:
    norm = site.producer(site.node.args[0])
    if norm is None or norm.op.name not in _NORMS or site.node.attrs.axes != _BACK:
        return Refusal("what is transposed is no normalisation of channels")
    moved, *parameters = norm.inputs
    source = None if moved is None else site.producer(moved)
    if source is None or source.op.name != "transpose" or source.attrs.axes != _TO_END:
        return Refusal("the channels have not been moved to the end")
    if norm.attrs.axis not in (-1, 3) or not site.only_use(norm.output):
        return Refusal("it is not over the channels alone, or others read it")
    image = source.args[0]
    channels = _channels(image)
    if not channels:
        return Refusal("the image has no blocks of channels")
    if any(one is not None and one.tensor.shape != (channels,) for one in parameters):
        return Refusal("scale or shift is not one number per channel")
    centered = norm.op.name == "nn.layer_norm"
    return site.emit(
        "nn.channel_norm", image, *parameters, epsilon=norm.attrs.epsilon, centered=centered
    )


@RULES.rule(is_op("nn.group_norm", "nn.instance_norm"))
def norm_over_pixels(site: Site) -> Replacement:
    image, gamma, beta = site.node.args
    channels = _channels(image)
    attrs = site.node.attrs
    if not channels or attrs.axis not in (1, -3):
        return Refusal("the image has no blocks of channels")
    groups: int = getattr(attrs, "num_groups", channels)
    mean = _mean(site, image, channels, groups)
    # written twice, each is computed by the kernel that reads it instead of going through memory
    deviation, again = (site.emit("subtract", image, mean) for _ in range(2))
    variance = _mean(site, site.emit("multiply", deviation, deviation), channels, groups)
    root = site.emit("sqrt", site.emit("add", variance, _number(site, attrs.epsilon)))
    factor = site.emit("divide", _per_channel(site, gamma, channels), root)
    scaled = site.emit("multiply", again, factor)
    return site.emit("add", scaled, _per_channel(site, beta, channels))


def _channels(image: Value) -> int:
    """The channels of an image that may be in blocks of them; zero for anything else."""
    shape = image.tensor.shape
    if shape is None or len(shape) != 4 or any(isinstance(dim, Unknown) for dim in shape):
        return 0
    if 0 in shape or image.dtype is not DType.FLOAT32:
        return 0
    channels = shape[1]
    return channels if isinstance(channels, int) and channels % NARROWEST_BLOCK == 0 else 0


def _mean(site: Site, image: Value, channels: int, groups: int) -> Value:
    """The mean over the pixels of each group of channels, for each channel or for all at once.

    Each channel gets its group's mean by a convolution: views would keep readers off blocks."""
    means = site.emit("mean", image, axes=(2, 3), keepdims=True)
    if groups == channels:
        return means
    if groups == 1:
        return site.emit("mean", means, axes=(1,), keepdims=True)
    members = channels // groups
    weights = site.constant(np.full((channels, members, 1, 1), 1 / members, np.float32))
    return site.emit("nn.conv2d", means, weights, groups=groups)


def _number(site: Site, number: float) -> Value:
    return site.constant(np.array(number, np.float32))


def _per_channel(site: Site, parameter: Value, channels: int) -> Value:
    """A list of numbers as one per channel of an image."""
    array = site.array(parameter)
    if array is not None:
        return site.constant(array.reshape(channels, 1, 1))
    return site.emit("reshape", parameter, allowzero=True, shape=(channels, 1, 1))
