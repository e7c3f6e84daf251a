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
from graft.byoc.formats.operands import late_attribute
from graft.ir.graph import Node, Value
from graft.ops.elementwise import clip_bound
from graft.ops.movement import transpose_order
from graft.ops.padding import pad_widths
from graft.ops.slicing import slice_steps

Options = dict[str, Any]
Emitter = Callable[..., tuple[str, Options]]
More = Callable[[Node], Options]

_LAYERS = ("nn.conv", "nn.bias_add", "nn.batch_norm", "nn.layer_norm")  # of constant parameters
_GELU = {False: "EXACT", True: "TANH_APPROXIMATION"}
# How MIL finds the pixels that results are made of, which is where the two of whole factors agree.
_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
_LINEAR = ("half_pixel", "align_corners")


def emit(builder: Any, node: Node, known: Mapping[Value | None, Any]) -> Any:
    """The variable of a node's result, or the array of a constant's."""
    if node.op.name == "constant":
        return node.attrs.value.array
    reason = late_attribute(node) if node.op.name in EMITTERS else "it has no MIL form here"
    _require(not reason, f"{node.op.name}: {reason}")
    attributes = dict(node.op.alternatives)  # that may also be operands, and are none here
    operands = [known[value] for i, value in enumerate(node.inputs) if i not in attributes]
    is_fixed = all(one is None or isinstance(one, np.ndarray) for one in operands[1:])
    _require(is_fixed or not node.op.name.startswith(_LAYERS), "its parameters are not constant")
    operator, arguments = EMITTERS[node.op.name](node, *operands)
    try:
        result = getattr(builder, operator)(**arguments, name=node.output.name)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedError(f"coremltools does not take {operator}: {error}") from error
    _require(list(result.shape) == extents(node.output), f"{operator} is {result.shape} in MIL")
    return result


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedError(reason)


def _number(node: Node, number: float) -> Any:
    """A number of the dtype of a node's result, which MIL insists on."""
    return clip_bound(number, node.output.dtype)[()]


def _rank(node: Node) -> int:
    return len(extents(node.output))


def _window(node: Node) -> Options:
    """Padding, which MIL has axis by axis: before, behind, before, behind."""
    dilates = "pool" in node.op.name and set(node.attrs.dilation) != {1}
    _require(not dilates, "MIL dilates no pooling")
    return {"pad_type": "custom", "pad": np.reshape(node.attrs.padding, (2, -1)).T.ravel()}


def _mean_window(node: Node) -> Options:
    return _window(node) | {"exclude_padding_from_average": not node.attrs.count_include_pad}


def _channels(node: Node) -> Options:
    _require(node.attrs.axis == 1, "MIL normalises batches along axis 1")
    return {}


def _normalized(node: Node) -> Options:
    return {"axes": list(range(_rank(node)))[node.attrs.axis :]}


def _clip(node: Node) -> Options:
    """A bound that is not there is infinite: MIL's operator has both."""
    low, high = node.attrs.a_min, node.attrs.a_max
    bounds = -np.inf if low is None else low, np.inf if high is None else high
    return {name: _number(node, b) for name, b in zip(("alpha", "beta"), bounds, strict=True)}


def _reduced(node: Node) -> Options:
    every = node.attrs.axes is None
    return {"axes": list(range(len(extents(node.args[0])))) if every else list(node.attrs.axes)}


def _slice(node: Node) -> Options:
    steps: Any = slice_steps(node.attrs, extents(node.args[0]))
    result = list(enumerate(extents(node.output)))
    begins, strides = zip(*(steps.get(axis, (0, 1)) for axis, _ in result), strict=True)
    ends = [begins[n] + (extent - 1) * strides[n] + np.sign(strides[n]) for n, extent in result]
    return {"begin": begins, "end": ends, "stride": strides, "end_mask": [e < 0 for e in ends]}


def _pad(node: Node) -> Options:
    widths = pad_widths(node.attrs, _rank(node))
    flat = [width for axis in range(_rank(node)) for width in widths.get(axis, (0, 0))]
    _require(node.attrs.mode == "constant", "MIL's other modes are for the last two axes")
    _require(min(flat) >= 0, "MIL does not crop by padding")
    return {"pad": flat}


def _matmul(node: Node, x: Any, y: Any) -> tuple[str, Options]:
    """Of a dense layer too, whose weights are transposed; MIL has a word for constant ones."""
    is_dense, is_constant = node.op.name == "nn.dense", isinstance(y, np.ndarray)
    if is_dense and is_constant and _rank(node) <= 3:
        return "linear", {"x": x, "weight": y}
    first, second = (getattr(node.attrs, f"transpose_{one}", one == "b") for one in "ab")
    return "matmul", {"x": x, "y": y, "transpose_x": first, "transpose_y": second}


def _bias_add(node: Node, x: Any, bias: Any) -> tuple[str, Options]:
    axes = range(_rank(node))
    shape = [-1 if axis == axes[node.attrs.axis] else 1 for axis in axes]
    return "add", {"x": x, "y": bias.reshape(shape)}


def _resize(node: Node, x: Any) -> tuple[str, Options]:
    attrs, mode = node.attrs, node.attrs.coordinate_transformation_mode
    _require(_rank(node) == 4, "MIL resizes images")
    _require(not (attrs.antialias or attrs.exclude_outside), "MIL interpolates plainly")
    sizes = zip(extents(node.args[0]), extents(node.output), strict=True)
    _, _, height, width = (new // old for old, new in sizes)
    factors = {"x": x, "scale_factor_height": height, "scale_factor_width": width}
    if attrs.method == "nearest_neighbor" and (mode, attrs.rounding_method) in _NEAREST:
        return "upsample_nearest_neighbor", factors
    _require(attrs.method == "linear" and mode in _LINEAR, f"MIL has no {attrs.method}, {mode}")
    options = {"align_corners": mode == _LINEAR[1], "half_pixel_centers": mode == _LINEAR[0]}
    return "upsample_bilinear", factors | options


def _form(operator: str, operands: str, attributes: str, *more: More) -> Emitter:
    """The emitter of a family; coremltools leaves out operands that are None."""
    names = [name.partition("=")[::2] for name in attributes.split()]

    def emitter(node: Node, *given: Any) -> tuple[str, Options]:
        options = dict(zip(operands.split(), given, strict=False))
        for name, own in names:
            value = getattr(node.attrs, own or name)
            options[name] = _number(node, value) if isinstance(value, float) else value
        return operator, options | {key: v for one in more for key, v in one(node).items()}

    return emitter


_CONV, _POOL = "strides dilations=dilation groups", "strides kernel_sizes=pool_size"
# Operators of the graph, MIL's ({}: of the same name), the names of its operands, and those of its
# attributes (MIL's=the graph's, or one name for both); behind them what makes others.
_FAMILIES: tuple[tuple[Any, ...], ...] = (
    ("abs ceil cos erf exp floor sigmoid sign sin sqrt tanh nn.relu", "{}", "x", ""),
    ("add maximum minimum", "{}", "x y", ""),
    ("subtract", "sub", "x y", ""),
    ("multiply", "mul", "x y", ""),
    ("divide", "real_div", "x y", ""),
    ("sum mean max min prod", "reduce_{}", "x", "keep_dims=keepdims", _reduced),
    ("nn.conv1d nn.conv2d", "conv", "x weight", _CONV, _window),
    ("nn.conv1d_transpose nn.conv2d_transpose", "conv_transpose", "x weight", _CONV, _window),
    ("nn.max_pool1d nn.max_pool2d", "max_pool", "x", _POOL, _window),
    ("nn.avg_pool1d nn.avg_pool2d", "avg_pool", "x", _POOL, _mean_window),
    ("nn.batch_norm", "{}", "x gamma beta mean variance", "epsilon", _channels),
    ("nn.layer_norm", "{}", "x gamma beta", "epsilon", _normalized),
    ("nn.leaky_relu", "{}", "x", "alpha"),
    ("nn.gelu", "{}", "x", "", lambda node: {"mode": _GELU[node.attrs.approximate]}),
    ("nn.softmax", "{}", "x", "axis"),
    ("clip", "{}", "x", "", _clip),
    ("reshape squeeze expand_dims", "reshape", "x", "", lambda n: {"shape": extents(n.output)}),
    ("transpose", "{}", "x", "", lambda n: {"perm": transpose_order(n.attrs, _rank(n))}),
    ("strided_slice", "slice_by_index", "x", "", _slice),
    ("nn.pad", "{}", "x", "constant_val=fill", _pad),
)
EMITTERS: dict[str, Emitter] = {
    name: _form(operator.format(name.removeprefix("nn.")), *others)
    for names, operator, *others in _FAMILIES
    for name in names.split()
} | {
    **dict.fromkeys(("nn.dense", "nn.batch_matmul"), _matmul),
    "nn.bias_add": _bias_add,
    "concatenate": lambda node, *parts: ("concat", {"values": parts, "axis": node.attrs.axis}),
    "resize": _resize,
}
