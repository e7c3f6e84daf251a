"""How operators are written in MIL, Core ML's intermediate language: families of emitters.

An emitter is given a node and its operands (MIL's variables; constants are arrays), and gives MIL's
operator and its arguments. Most are rows of a table: names of operators and operands, and options.
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


def _window(node: Node) -> Options:
    """Strides and padding, which MIL has axis by axis: before, behind, before, behind."""
    pad = np.reshape(node.attrs.padding, (2, -1)).T.ravel()
    return {"strides": node.attrs.strides, "pad_type": "custom", "pad": pad}


def _conv(node: Node) -> Options:
    return {"dilations": node.attrs.dilation, "groups": node.attrs.groups, **_window(node)}


def _max_pool(node: Node) -> Options:
    _require(set(node.attrs.dilation) == {1}, "MIL dilates no pooling")
    return {"kernel_sizes": node.attrs.pool_size, **_window(node)}


def _avg_pool(node: Node) -> Options:
    return _max_pool(node) | {"exclude_padding_from_average": not node.attrs.count_include_pad}


def _batch_norm(node: Node) -> Options:
    _require(node.attrs.axis == 1, "MIL normalises batches along axis 1")
    return {"epsilon": _number(node, node.attrs.epsilon)}


def _layer_norm(node: Node) -> Options:
    axes = list(range(len(extents(node.output))))[node.attrs.axis :]
    return {"axes": axes, "epsilon": _number(node, node.attrs.epsilon)}


def _clip(node: Node) -> Options:
    """A bound that is not there is infinite: MIL's operator has both."""
    low, high = node.attrs.a_min, node.attrs.a_max
    bounds = -np.inf if low is None else low, np.inf if high is None else high
    return dict(zip(("alpha", "beta"), (_number(node, bound) for bound in bounds), strict=True))


def _reduce(node: Node) -> Options:
    axes = range(len(extents(node.args[0]))) if node.attrs.axes is None else node.attrs.axes
    return {"axes": list(axes), "keep_dims": node.attrs.keepdims}


def _transpose(node: Node) -> Options:
    return {"perm": transpose_order(node.attrs, len(extents(node.output)))}


def _slice(node: Node) -> Options:
    steps: Any = slice_steps(node.attrs, extents(node.args[0]))
    result = list(enumerate(extents(node.output)))
    begins, strides = zip(*(steps.get(axis, (0, 1)) for axis, _ in result), strict=True)
    ends = [begins[axis] + (extent - 1) * strides[axis] + 1 for axis, extent in result]
    return {"begin": begins, "end": ends, "stride": strides}


def _pad(node: Node) -> Options:
    widths, rank = pad_widths(node.attrs, len(extents(node.output))), len(extents(node.output))
    flat = [width for axis in range(rank) for width in widths.get(axis, (0, 0))]
    _require(node.attrs.mode == "constant", "MIL's other modes are for the last two axes")
    _require(min(flat) >= 0, "MIL does not crop by padding")
    return {"pad": flat, "constant_val": _number(node, node.attrs.fill)}


def _matmul(node: Node, x: Any, y: Any) -> tuple[str, Options]:
    """Of a dense layer too, whose weights are transposed; MIL has a word for constant ones."""
    is_dense, is_constant = node.op.name == "nn.dense", isinstance(y, np.ndarray)
    if is_dense and is_constant and len(extents(node.output)) <= 3:
        return "linear", {"x": x, "weight": y}
    first, second = (getattr(node.attrs, f"transpose_{one}", one == "b") for one in "ab")
    return "matmul", {"x": x, "y": y, "transpose_x": first, "transpose_y": second}


def _bias_add(node: Node, x: Any, bias: Any) -> tuple[str, Options]:
    axes = range(len(extents(node.output)))
    return "add", {
        "x": x,
        "y": bias.reshape([-1 if n == axes[node.attrs.axis] else 1 for n in axes]),
    }


def _resize(node: Node, x: Any) -> tuple[str, Options]:
    attrs, mode = node.attrs, node.attrs.coordinate_transformation_mode
    _require(len(extents(node.output)) == 4, "MIL resizes images")
    _require(not (attrs.antialias or attrs.exclude_outside), "MIL interpolates plainly")
    sizes = zip(extents(node.args[0]), extents(node.output), strict=True)
    _, _, height, width = (new // old for old, new in sizes)
    factors = {"scale_factor_height": height, "scale_factor_width": width}
    if attrs.method == "nearest_neighbor" and (mode, attrs.rounding_method) in _NEAREST:
        return "upsample_nearest_neighbor", {"x": x, **factors}
    _require(attrs.method == "linear" and mode in _LINEAR, f"MIL has no {attrs.method}, {mode}")
    options = {"align_corners": mode == _LINEAR[1], "half_pixel_centers": mode == _LINEAR[0]}
    return "upsample_bilinear", {"x": x, **factors, **options}


def _form(operator: str, names: str, options: Callable[[Node], Options]) -> Emitter:
    """The emitter of a family; coremltools leaves out operands that are None."""

    def emitter(node: Node, *operands: Any) -> tuple[str, Options]:
        return operator, dict(zip(names.split(), operands, strict=False)) | options(node)

    return emitter


# Operators of the graph, MIL's ({}: of the same name), the names of its operands, and its options.
_FAMILIES: tuple[tuple[str, str, str, Callable[[Node], Options]], ...] = (
    ("abs ceil cos erf exp floor sigmoid sign sin sqrt tanh nn.relu", "{}", "x", lambda _: {}),
    ("add maximum minimum", "{}", "x y", lambda _: {}),
    ("subtract", "sub", "x y", lambda _: {}),
    ("multiply", "mul", "x y", lambda _: {}),
    ("divide", "real_div", "x y", lambda _: {}),
    ("sum mean max min prod", "reduce_{}", "x", _reduce),
    ("nn.conv1d nn.conv2d", "conv", "x weight", _conv),
    ("nn.conv1d_transpose nn.conv2d_transpose", "conv_transpose", "x weight", _conv),
    ("nn.max_pool1d nn.max_pool2d", "max_pool", "x", _max_pool),
    ("nn.avg_pool1d nn.avg_pool2d", "avg_pool", "x", _avg_pool),
    ("nn.batch_norm", "{}", "x gamma beta mean variance", _batch_norm),
    ("nn.layer_norm", "{}", "x gamma beta", _layer_norm),
    ("nn.leaky_relu", "{}", "x", lambda node: {"alpha": _number(node, node.attrs.alpha)}),
    ("nn.gelu", "{}", "x", lambda node: {"mode": _GELU[node.attrs.approximate]}),
    ("nn.softmax", "{}", "x", lambda node: {"axis": node.attrs.axis}),
    ("clip", "{}", "x", _clip),
    ("reshape squeeze expand_dims", "reshape", "x", lambda node: {"shape": extents(node.output)}),
    ("transpose", "{}", "x", _transpose),
    ("strided_slice", "slice_by_index", "x", _slice),
    ("nn.pad", "{}", "x", _pad),
)
EMITTERS: dict[str, Emitter] = {
    name: _form(operator.format(name.removeprefix("nn.")), operands, options)
    for names, operator, operands, options in _FAMILIES
    for name in names.split()
} | {
    **dict.fromkeys(("nn.dense", "nn.batch_matmul"), _matmul),
    "nn.bias_add": _bias_add,
    "concatenate": lambda node, *parts: ("concat", {"values": parts, "axis": node.attrs.axis}),
    "resize": _resize,
}
