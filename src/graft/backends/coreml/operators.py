"""How operators are written in MIL, Core ML's intermediate language: one emitter for each.

An emitter is given a node and its operands (MIL's variables; constants are arrays), and gives a
call: MIL's operator with its arguments. What MIL has not is refused by an `UnsupportedError`: by an
emitter, by coremltools, or by `emit` where MIL's result has another shape than the node's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import extents
from graft.byoc.formats.operands import late_attribute
from graft.ir.graph import Node, Value
from graft.ops.elementwise import clip_bound
from graft.ops.movement import transpose_order
from graft.ops.padding import pad_widths
from graft.ops.slicing import slice_steps

Call = tuple[str, dict[str, Any]]


def emit(builder: Any, node: Node, known: Mapping[Value | None, Any]) -> Any:
    """The variable of a node's result, or the array of a constant's."""
    if node.op.name == "constant":
        return node.attrs.value.array
    reason = late_attribute(node) if node.op.name in EMITTERS else "it has no MIL form here"
    _require(not reason, f"{node.op.name}: {reason}")
    attributes = dict(node.op.alternatives)  # that may also be operands, and are none here
    operands = [known[value] for i, value in enumerate(node.inputs) if i not in attributes]
    is_fixed = all(one is None or isinstance(one, np.ndarray) for one in operands[1:])
    _require(is_fixed or node.op.name not in LAYERS, "its parameters have to be constant")
    operator, arguments = EMITTERS[node.op.name](node, *operands)
    try:
        result = getattr(builder, operator)(**arguments, name=node.output.name)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedError(f"coremltools does not take {operator}: {error}") from error
    _require(list(result.shape) == extents(node.output), f"{operator} is {result.shape} in MIL")
    return result


def call(operator: str, /, **arguments: Any) -> Call:
    """A call of one of MIL's operators; arguments that are None are left out by coremltools."""
    return operator, arguments


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedError(reason)


_GELU = {False: "EXACT", True: "TANH_APPROXIMATION"}
_NAMES = {"subtract": "sub", "multiply": "mul", "divide": "real_div"}


def _name(node: Node) -> str:
    """What MIL calls an operator, mostly the same."""
    return _NAMES.get(node.op.name, node.op.name.removeprefix("nn."))


def _number(node: Node, number: float) -> Any:
    """A number of the dtype of a node's result, which MIL insists on."""
    return clip_bound(number, node.output.dtype)[()]


def _window(node: Node) -> dict[str, Any]:
    """Strides and padding, which MIL has axis by axis: before, behind, before, behind."""
    pad = np.reshape(node.attrs.padding, (2, -1)).T.ravel()
    return {"strides": node.attrs.strides, "pad_type": "custom", "pad": pad}


def _conv(node: Node, x: Any, weight: Any) -> Call:
    operator = "conv_transpose" if "transpose" in node.op.name else "conv"
    options = {"dilations": node.attrs.dilation, "groups": node.attrs.groups, **_window(node)}
    return call(operator, x=x, weight=weight, **options)


def _pool(node: Node, x: Any) -> Call:
    _require(set(node.attrs.dilation) == {1}, "MIL dilates no pooling")
    options = {"kernel_sizes": node.attrs.pool_size, **_window(node)}
    if "max" in node.op.name:
        return call("max_pool", x=x, **options)
    without_pads = not node.attrs.count_include_pad
    return call("avg_pool", x=x, exclude_padding_from_average=without_pads, **options)


def _matmul(node: Node, x: Any, y: Any) -> Call:
    """Of a dense layer too, whose weights are transposed; MIL has a word for constant ones."""
    is_dense, is_constant = node.op.name == "nn.dense", isinstance(y, np.ndarray)
    if is_dense and is_constant and len(extents(node.output)) <= 3:
        return call("linear", x=x, weight=y)
    first, second = (getattr(node.attrs, f"transpose_{one}", one == "b") for one in "ab")
    return call("matmul", x=x, y=y, transpose_x=first, transpose_y=second)


def _bias_add(node: Node, x: Any, bias: Any) -> Call:
    shape = [1] * len(extents(node.output))
    shape[node.attrs.axis] = -1
    return call("add", x=x, y=bias.reshape(shape))


def _norm(node: Node, x: Any, *parameters: Any) -> Call:
    options = dict(zip(("gamma", "beta", "mean", "variance"), parameters, strict=False))
    if node.op.name == "nn.layer_norm":
        options["axes"] = list(range(len(extents(node.output))))[node.attrs.axis :]
    else:
        _require(node.attrs.axis == 1, "MIL normalises batches along axis 1")
    return call(_name(node), x=x, epsilon=_number(node, node.attrs.epsilon), **options)


def _clip(node: Node, x: Any) -> Call:
    """A bound that is not there is infinite: MIL's operator has both."""
    low, high = node.attrs.a_min, node.attrs.a_max
    bounds = -np.inf if low is None else low, np.inf if high is None else high
    return call("clip", x=x, alpha=_number(node, bounds[0]), beta=_number(node, bounds[1]))


def _transpose(node: Node, x: Any) -> Call:
    return call("transpose", x=x, perm=transpose_order(node.attrs, len(extents(node.output))))


def _strided_slice(node: Node, x: Any) -> Call:
    steps: Any = slice_steps(node.attrs, extents(node.args[0]))
    result = list(enumerate(extents(node.output)))
    begins, strides = zip(*(steps.get(axis, (0, 1)) for axis, _ in result), strict=True)
    ends = [begins[axis] + (extent - 1) * strides[axis] + 1 for axis, extent in result]
    return call("slice_by_index", x=x, begin=begins, end=ends, stride=strides)


def _pad(node: Node, x: Any) -> Call:
    widths, rank = pad_widths(node.attrs, len(extents(node.output))), len(extents(node.output))
    flat = [width for axis in range(rank) for width in widths.get(axis, (0, 0))]
    _require(node.attrs.mode == "constant", "MIL's other modes are for the last two axes")
    _require(min(flat) >= 0, "MIL does not crop by padding")
    return call("pad", x=x, pad=flat, constant_val=_number(node, node.attrs.fill))


# How MIL finds the pixels that results are made of, which is where the two of whole factors agree.
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
_LINEAR = ("half_pixel", "align_corners")


def _resize(node: Node, x: Any) -> Call:
    attrs, mode = node.attrs, node.attrs.coordinate_transformation_mode
    _require(len(extents(node.output)) == 4, "MIL resizes images")
    _require(not (attrs.antialias or attrs.exclude_outside), "MIL interpolates plainly")
    (*_, old_height, old_width), (*_, height, width) = map(extents, (node.args[0], node.output))
    factors = {
        "scale_factor_height": height // old_height,
        "scale_factor_width": width // old_width,
    }
    if attrs.method == "nearest_neighbor" and (mode, attrs.rounding_method) in _NEAREST:
        return call("upsample_nearest_neighbor", x=x, **factors)
    _require(attrs.method == "linear" and mode in _LINEAR, f"MIL has no {attrs.method}, {mode}")
    options = {"align_corners": mode == _LINEAR[1], "half_pixel_centers": mode == _LINEAR[0]}
    return call("upsample_bilinear", x=x, **factors, **options)


def _reduce(node: Node, x: Any) -> Call:
    axes = range(len(extents(node.args[0]))) if node.attrs.axes is None else node.attrs.axes
    return call(f"reduce_{node.op.name}", x=x, axes=list(axes), keep_dims=node.attrs.keepdims)


_ELEMENTWISE = (
    *("abs", "ceil", "cos", "erf", "exp", "floor", "nn.relu", "sigmoid", "sign", "sin", "sqrt"),
    *("tanh", "add", "subtract", "multiply", "divide", "maximum", "minimum"),
)
# Those whose operands but the first are constants.
LAYERS: dict[str, Callable[..., Call]] = {
    **{f"nn.conv{form}": _conv for form in ("1d", "2d", "1d_transpose", "2d_transpose")},
    **{f"nn.{form}_norm": _norm for form in ("batch", "layer")},
    "nn.bias_add": _bias_add,
}
EMITTERS: dict[str, Callable[..., Call]] = {
    **LAYERS,
    **dict.fromkeys(_ELEMENTWISE, lambda node, x, y=None: call(_name(node), x=x, y=y)),
    **{f"nn.{form}": _pool for form in ("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")},
    **dict.fromkeys(("nn.dense", "nn.batch_matmul"), _matmul),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), _reduce),
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims"),
        lambda node, x: call("reshape", x=x, shape=extents(node.output)),
    ),
    "nn.leaky_relu": lambda node, x: call(_name(node), x=x, alpha=_number(node, node.attrs.alpha)),
    "nn.gelu": lambda node, x: call(_name(node), x=x, mode=_GELU[node.attrs.approximate]),
    "nn.softmax": lambda node, x: call(_name(node), x=x, axis=node.attrs.axis),
    "clip": _clip,
    "concatenate": lambda node, *parts: call("concat", values=parts, axis=node.attrs.axis),
    "transpose": _transpose,
    "strided_slice": _strided_slice,
    "nn.pad": _pad,
    "resize": _resize,
}
