"""How operators are written in MIL, Core ML's intermediate language: one emitter for each.

An emitter is given a node and its operands (MIL's variables; constants are arrays), and names MIL's
operator with its arguments. What MIL has not, it refuses by an `UnsupportedError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import extents
from graft.ir.graph import Node
from graft.ops.elementwise import clip_bound
from graft.ops.padding import pad_widths

Call = tuple[str, dict[str, Any]]
Emit = Callable[..., Call]  # of the node and its operands

_UNARY = ("abs", "ceil", "cos", "erf", "exp", "floor", "sigmoid", "sign", "sin", "sqrt", "tanh")
_BINARY = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "real_div"}
_BINARY |= {"maximum": "maximum", "minimum": "minimum"}
EMITTERS: dict[str, Emit] = {
    **{name: lambda node, x: (node.op.name, {"x": x}) for name in _UNARY},
    **{name: lambda node, x, y: (_BINARY[node.op.name], {"x": x, "y": y}) for name in _BINARY},
    "nn.relu": lambda node, x: ("relu", {"x": x}),
    "nn.softmax": lambda node, x: ("softmax", {"x": x, "axis": node.attrs.axis}),
    "concatenate": lambda node, *parts: ("concat", {"values": parts, "axis": node.attrs.axis}),
}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register the decorated function as what writes these operators."""

    def register(emit: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(names, emit))
        return emit

    return register


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedError(reason)


def _constant(operand: Any, name: str) -> Any:
    _require(isinstance(operand, np.ndarray), f"{name} has to be constant")
    return operand


def _scalar(node: Node, number: float) -> Any:
    """A number of the dtype of a node's result, which MIL insists on."""
    return np.asarray(number, node.output.dtype.numpy)[()]


def _window(node: Node, x: Any) -> dict[str, Any]:
    """Strides and padding, which MIL has axis by axis: before, behind, before, behind."""
    pad = np.reshape(node.attrs.padding, (2, -1)).T.reshape(-1)
    return {"x": x, "strides": [*node.attrs.strides], "pad_type": "custom", "pad": pad.tolist()}


@emits("nn.conv1d", "nn.conv2d", "nn.conv1d_transpose", "nn.conv2d_transpose")
def _conv(node: Node, x: Any, weight: Any) -> Call:
    attrs = node.attrs
    options = {"weight": _constant(weight, "the weight"), "groups": attrs.groups}
    options |= _window(node, x) | {"dilations": list(attrs.dilation)}
    _require(not any(getattr(attrs, "output_padding", ())), "MIL pads no results")
    return "conv_transpose" if "transpose" in node.op.name else "conv", options


@emits("nn.max_pool1d", "nn.max_pool2d", "nn.avg_pool1d", "nn.avg_pool2d")
def _pool(node: Node, x: Any) -> Call:
    attrs, options = node.attrs, _window(node, x)
    _require(all(step == 1 for step in attrs.dilation), "MIL dilates no pooling")
    _require(not attrs.ceil_mode, "windows that reach beyond the padding are not for MIL")
    options["kernel_sizes"] = list(attrs.pool_size)
    if "max" in node.op.name:
        return "max_pool", options
    return "avg_pool", {**options, "exclude_padding_from_average": not attrs.count_include_pad}


@emits("nn.dense")
def _dense(node: Node, x: Any, weight: Any) -> Call:
    if isinstance(weight, np.ndarray) and len(extents(node.output)) <= 3:
        return "linear", {"x": x, "weight": weight}
    return "matmul", {"x": x, "y": weight, "transpose_y": True}


@emits("nn.batch_matmul")
def _batch_matmul(node: Node, x: Any, y: Any) -> Call:
    _require(min(len(extents(value)) for value in node.args) > 1, "MIL multiplies matrices")
    turned = {"transpose_x": node.attrs.transpose_a, "transpose_y": node.attrs.transpose_b}
    return "matmul", {"x": x, "y": y, **turned}


@emits("nn.bias_add")
def _bias_add(node: Node, x: Any, bias: Any) -> Call:
    shape = [1] * len(extents(node.output))
    shape[node.attrs.axis] = -1
    return "add", {"x": x, "y": _constant(bias, "the bias").reshape(shape)}


@emits("clip")
def _clip(node: Node, x: Any) -> Call:
    """MIL's own wants both bounds."""
    low, high = (
        None if bound is None else clip_bound(bound, node.output.dtype)[()]
        for bound in (node.attrs.a_min, node.attrs.a_max)
    )
    if low is not None and high is not None:
        return "clip", {"x": x, "alpha": low, "beta": high}
    _require(low is not None or high is not None, "a clip without bounds is none")
    return ("maximum", {"x": x, "y": low}) if high is None else ("minimum", {"x": x, "y": high})


@emits("nn.leaky_relu")
def _leaky_relu(node: Node, x: Any) -> Call:
    return "leaky_relu", {"x": x, "alpha": _scalar(node, node.attrs.alpha)}


@emits("nn.gelu")
def _gelu(node: Node, x: Any) -> Call:
    mode = "TANH_APPROXIMATION" if node.attrs.approximate else "EXACT"
    return "gelu", {"x": x, "mode": mode}


@emits("nn.layer_norm")
def _layer_norm(node: Node, x: Any, gamma: Any = None, beta: Any = None) -> Call:
    shape = extents(node.output)
    axes = list(range(len(shape)))[node.attrs.axis :]
    options = {"x": x, "axes": axes, "epsilon": _scalar(node, node.attrs.epsilon)}
    for name, operand in (("gamma", gamma), ("beta", beta)):
        if operand is not None:
            spread = np.broadcast_to(_constant(operand, name), shape[axes[0] :])
            options[name] = spread.copy()
    return "layer_norm", options


@emits("nn.batch_norm")
def _batch_norm(node: Node, x: Any, *parameters: Any) -> Call:
    _require(node.attrs.axis == 1, "MIL normalises batches along axis 1")
    named = zip(("gamma", "beta", "mean", "variance"), parameters, strict=True)
    options = {name: _constant(array, name) for name, array in named}
    return "batch_norm", {"x": x, "epsilon": _scalar(node, node.attrs.epsilon), **options}


@emits("reshape", "squeeze", "expand_dims")
def _reshape(node: Node, x: Any) -> Call:
    return "reshape", {"x": x, "shape": np.array(extents(node.output), np.int32)}


@emits("transpose")
def _transpose(node: Node, x: Any) -> Call:
    rank, axes = len(extents(node.output)), node.attrs.axes
    _require(rank > 0, "MIL permutes some axis")
    return "transpose", {"x": x, "perm": [axis % rank for axis in axes or range(rank)[::-1]]}


@emits("strided_slice")
def _strided_slice(node: Node, x: Any) -> Call:
    attrs, shape = node.attrs, extents(node.args[0])
    spans = [(0, extent, 1) for extent in shape]
    steps = attrs.strides or [1] * len(attrs.begin)
    _require(bool(shape) and min(steps, default=1) > 0, "slices run forwards in MIL")
    axes = range(len(steps)) if attrs.axes is None else attrs.axes
    for axis, begin, end, step in zip(axes, attrs.begin, attrs.end, steps, strict=True):
        spans[axis] = slice(int(begin), int(end), int(step)).indices(shape[axis])
    begins, ends, strides = map(list, zip(*spans, strict=True))
    return "slice_by_index", {"x": x, "begin": begins, "end": ends, "stride": strides}


@emits("nn.pad")
def _pad(node: Node, x: Any) -> Call:
    rank, fill = len(extents(node.output)), _scalar(node, node.attrs.fill)
    widths = pad_widths(node.attrs, rank)
    flat = [width for axis in range(rank) for width in widths.get(axis, (0, 0))]
    _require(min(flat, default=0) >= 0, "MIL does not crop by padding")
    _require(node.attrs.mode == "constant", "MIL's other modes are for the last two axes")
    return "pad", {"x": x, "pad": flat, "mode": "constant", "constant_val": fill}


@emits("resize")
def _resize(node: Node, x: Any) -> Call:
    attrs, old, new = node.attrs, extents(node.args[0]), extents(node.output)
    mode = attrs.coordinate_transformation_mode
    whole = all(after % before == 0 for before, after in zip(old, new, strict=True))
    _require(len(old) == 4 and old[:2] == new[:2] and whole, "only whole factors of pixels")
    _require(not (attrs.antialias or attrs.exclude_outside), "MIL interpolates plainly")
    names = ("scale_factor_height", "scale_factor_width")
    factors = {name: new[axis] // old[axis] for axis, name in enumerate(names, 2)}
    if attrs.method == "nearest_neighbor":
        is_floor = (mode, attrs.rounding_method) in _FLOORS
        _require(is_floor, f"MIL's neighbours are not those of {mode}, {attrs.rounding_method}")
        return "upsample_nearest_neighbor", {"x": x, **factors}
    _require(attrs.method == "linear" and mode in _CORNERS, f"{attrs.method}, {mode} is not MIL's")
    options = {name: float(factor) for name, factor in factors.items()}
    aligned = {"align_corners": _CORNERS[mode], "half_pixel_centers": not _CORNERS[mode]}
    return "upsample_bilinear", {"x": x, **options, **aligned}


# Both give the pixel that a whole factor has made a result of.
_FLOORS = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
_CORNERS = {"half_pixel": False, "align_corners": True}


@emits("sum", "mean", "max", "min", "prod")
def _reduce(node: Node, x: Any) -> Call:
    axes, rank = node.attrs.axes, len(extents(node.args[0]))
    chosen = [axis % rank for axis in (range(rank) if axes is None else axes)]
    _require(bool(chosen), "MIL reduces over some axis")
    return f"reduce_{node.op.name}", {"x": x, "axes": chosen, "keep_dims": node.attrs.keepdims}
