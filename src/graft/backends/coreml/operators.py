"""How operators are written in MIL, Core ML's intermediate language: families of emitters.

An emitter is given a node and its operands (MIL's variables; constants are arrays), and gives MIL's
operator and its arguments. Most are rows of a table: names of operators, operands and attributes.
What MIL has not is refused by an `UnsupportedError`: by an emitter, by coremltools, or by `emit`
where MIL's result has another shape than the node's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_writer import extents
from graft.byoc.formats.operands import late_attribute, require
from graft.ir.graph import Node, Value
from graft.ops.elementwise import clip_bound
from graft.ops.movement import transpose_order
from graft.ops.padding import pad_widths
from graft.ops.slicing import slice_ranges

Options = dict[str, Any]
Emitter = Callable[..., tuple[str, Options]]
More = Callable[[Node], Options]

_GELU = {False: "EXACT", True: "TANH_APPROXIMATION"}
# How MIL finds the nearest pixel; for whole factors the two agree.
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))


def emit(builder: Any, node: Node, known: Mapping[Value | None, Any]) -> Any:
    """The variable of a node's result, or the array of a constant's."""
    if node.op.name == "constant":
        return node.attrs.value.array
    reason = late_attribute(node) if node.op.name in EMITTERS else "it has no MIL form here"
    require(not reason, f"{node.op.name}: {reason}")
    operator, arguments = EMITTERS[node.op.name](node, *(known[value] for value in node.inputs))
    try:
        result = getattr(builder, operator)(**arguments, name=node.output.name)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedError(f"coremltools does not take {operator}: {error}") from error
    require(list(result.shape) == extents(node.output), f"{operator} is {result.shape} in MIL")
    return result


def _number(node: Node, number: float) -> Any:
    """A number of the dtype of a node's result, which MIL insists on."""
    return clip_bound(number, node.output.dtype)[()]


def _rank(node: Node) -> int:
    return len(extents(node.output))


def _window(node: Node) -> Options:
    """Padding, which MIL has axis by axis: before, behind, before, behind."""
    dilates = "pool" in node.op.name and set(node.attrs.dilation) != {1}
    require(not dilates, "MIL dilates no pooling")
    return {"pad_type": "custom", "pad": np.reshape(node.attrs.padding, (2, -1)).T.ravel()}


def _mean_window(node: Node) -> Options:
    return _window(node) | {"exclude_padding_from_average": not node.attrs.count_include_pad}


def _channels(node: Node) -> Options:
    require(node.attrs.axis == 1, "MIL normalises batches along axis 1")
    return {}


def _normalized(node: Node) -> Options:
    return {"axes": list(range(_rank(node)))[node.attrs.axis :]}


def _slice(node: Node) -> Options:
    ranges = slice_ranges(node.attrs, extents(node.args[0]))
    begin, end, stride = zip(*((one.start, one.stop, one.step) for one in ranges), strict=True)
    return {"begin": begin, "end": end, "stride": stride, "end_mask": [stop < 0 for stop in end]}


def _pad(node: Node) -> Options:
    widths = pad_widths(node.attrs, _rank(node))
    pads = [width for axis in range(_rank(node)) for width in widths.get(axis, (0, 0))]
    require(node.attrs.mode == "constant", "MIL's other modes are for the last two axes")
    return {"pad": pads, "constant_val": _number(node, node.attrs.fill)}


def _dense(node: Node, x: Any, weight: Any) -> tuple[str, Options]:
    """MIL has an operator for constant weights, and data of up to three axes."""
    if isinstance(weight, np.ndarray) and _rank(node) <= 3:
        return "linear", {"x": x, "weight": weight}
    return "matmul", {"x": x, "y": weight, "transpose_y": True}


def _bias_add(node: Node, x: Any, bias: Any) -> tuple[str, Options]:
    require(isinstance(bias, np.ndarray), "the bias is not constant")
    _, *behind = range(_rank(node))[node.attrs.axis :]
    return "add", {"x": x, "y": bias.reshape(-1, *(1 for _ in behind))}


def _resize(node: Node, x: Any, *_absent: None) -> tuple[str, Options]:
    attrs, mode = node.attrs, node.attrs.coordinate_transformation_mode
    require(_rank(node) == 4, "MIL resizes images")
    require(not (attrs.antialias or attrs.exclude_outside), "MIL interpolates plainly")
    sizes = zip(extents(node.args[0]), extents(node.output), strict=True)
    _, _, height, width = (new // old for old, new in sizes)
    factors = {"x": x, "scale_factor_height": height, "scale_factor_width": width}
    if attrs.method == "nearest_neighbor" and (mode, attrs.rounding_method) in _NEAREST:
        return "upsample_nearest_neighbor", factors
    modes = {"align_corners": mode == "align_corners", "half_pixel_centers": mode == "half_pixel"}
    is_linear = attrs.method == "linear" and any(modes.values())
    require(is_linear, f"MIL has no {attrs.method}, {mode}")
    return "upsample_bilinear", factors | modes


def _form(operator: str, operands: str, attributes: str, more: More = lambda _: {}) -> Emitter:
    """The emitter of a family; coremltools has defaults for what is None."""
    names = [name.partition("=")[::2] for name in attributes.split()]

    def emitter(node: Node, *given: Any) -> tuple[str, Options]:
        options = dict(zip(operands.split(), given, strict=False))
        for name, own in names:
            value = getattr(node.attrs, own or name)
            options[name] = _number(node, value) if isinstance(value, float) else value
        return operator, options | more(node)

    return emitter


_CONV, _POOL = "strides dilations=dilation groups", "strides kernel_sizes=pool_size"
_RENAMED = {"subtract": "sub", "multiply": "mul", "divide": "real_div"}
# Operators of the graph, MIL's ({}: of the same name), the names of its operands, and those of its
# attributes (MIL's=the graph's, or one name for both); behind them what makes others.
_FAMILIES: tuple[tuple[Any, ...], ...] = (
    ("abs ceil cos erf exp floor sigmoid sign sin sqrt tanh nn.relu", "{}", "x", ""),
    ("add subtract multiply divide maximum minimum", "{}", "x y", ""),
    ("nn.batch_matmul", "matmul", "x y", "transpose_x=transpose_a transpose_y=transpose_b"),
    ("sum mean max min prod", "reduce_{}", "x", "axes keep_dims=keepdims"),
    ("nn.conv1d nn.conv2d", "conv", "x weight", _CONV, _window),
    ("nn.conv1d_transpose nn.conv2d_transpose", "conv_transpose", "x weight", _CONV, _window),
    ("nn.max_pool1d nn.max_pool2d", "max_pool", "x", _POOL, _window),
    ("nn.avg_pool1d nn.avg_pool2d", "avg_pool", "x", _POOL, _mean_window),
    ("nn.batch_norm", "{}", "x gamma beta mean variance", "epsilon", _channels),
    ("nn.layer_norm", "{}", "x gamma beta", "epsilon", _normalized),
    ("nn.leaky_relu", "{}", "x", "alpha"),
    ("nn.gelu", "{}", "x", "", lambda node: {"mode": _GELU[node.attrs.approximate]}),
    ("nn.softmax", "{}", "x", "axis"),
    ("clip", "{}", "x", "alpha=low beta=high"),
    ("reshape squeeze expand_dims", "reshape", "x", "", lambda n: {"shape": extents(n.output)}),
    ("transpose", "{}", "x", "", lambda n: {"perm": transpose_order(n.attrs, _rank(n))}),
    ("strided_slice", "slice_by_index", "x", "", _slice),
    ("nn.pad", "{}", "x", "", _pad),
)
EMITTERS: dict[str, Emitter] = {
    name: _form(operator.format(_RENAMED.get(name, name.removeprefix("nn."))), *others)
    for names, operator, *others in _FAMILIES
    for name in names.split()
} | {
    "nn.dense": _dense,
    "nn.bias_add": _bias_add,
    "concatenate": lambda node, *parts: ("concat", {"values": parts, "axis": node.attrs.axis}),
    "resize": _resize,
}
