"""Operators that ONNX has taken over since, or has in all but name; the tokenizer."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import (
    lowers_alike,
    lowers_microsoft,
    main,
    main_alike,
)
from graft.ir.graph import Value

lowers_alike("Trilu", "X k?", "upper")
lowers_alike("GatherND", "data indices")
lowers_alike("GridSample", "X Grid", "align_corners mode padding_mode")
lowers_alike("QuantizeLinear", "x y_scale y_zero_point?", "axis")
lowers_alike("DequantizeLinear", "x x_scale x_zero_point?", "axis")

_CROP_METHODS = {"bilinear": "linear", "nearest": "nearest"}


@lowers_microsoft("Pad", "data pads value?", "mode")
def _pad(call: Call) -> Value:
    """The amounts may have a first axis of extent 1, the value an axis of its own."""
    pads, value = call.op("reshape", call.input(1), shape=(-1,)), call.optional(2)
    fill = None if value is None else call.op("reshape", value, shape=())
    return main_alike(call, "Pad", call.input(0), pads, fill)[0]


@lowers_microsoft("Range", "start limit delta?")
def _range(call: Call) -> Value:
    start, limit, delta = call.input(0), call.input(1), call.optional(2)
    step = call.scalar(1, start) if delta is None else delta
    operands = (call.op("reshape", value, shape=()) for value in (start, limit, step))
    return main(call, "Range", *operands)


@lowers_microsoft("ExpandDims", "X axis")
def _expand_dims(call: Call) -> Value:
    axis = call.concrete(call.input(1))
    if axis is None or axis.size != 1:
        call.unsupported("ExpandDims wants to know its axis")
    return call.op("expand_dims", call.input(0), axes=(int(axis.reshape(-1)[0]),))


@lowers_microsoft("CDist", "A B", "metric")
def _cdist(call: Call) -> Value:
    """Distances of all rows of one matrix from all rows of another."""
    metric = call.string("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        call.unsupported(f"CDist by the metric '{metric}'")
    squares = call.op("ml.squared_distance", call.input(0), call.input(1))
    return squares if metric == "sqeuclidean" else call.op("sqrt", squares)


@lowers_microsoft("CropAndResize", "X rois batch_indices crop_size", "mode extrapolation_value")
def _crop_and_resize(call: Call) -> Value:
    mode = call.string("mode", "bilinear").lower()
    if mode not in _CROP_METHODS:
        call.fail(f"CropAndResize has the mode '{mode}', neither bilinear nor nearest")
    return call.op(
        "vision.crop_and_resize",
        *(call.input(0), call.input(1), call.input(2)),
        call.op("reshape", call.input(3), shape=(2,)),  # where the model leaves its length open
        method=_CROP_METHODS[mode],
        extrapolation_value=call.float("extrapolation_value", 0.0),
    )


@lowers_microsoft("Tokenizer", "X", "mark mincharnum pad_value separators tokenexp")
def _tokenizer(call: Call) -> Value:
    """One empty separator, or any character as a token, is the same: each character is one."""
    separators, pattern = call.ints("separators", ()), call.string("tokenexp", "")
    if call.has("separators"):
        pattern = ""
        if not separators:
            call.fail("Tokenizer has no separators")
    elif not pattern:
        call.fail("Tokenizer wants either separators or tokenexp")
    least = call.int("mincharnum")
    if separators == ("",) or pattern == ".":
        separators, pattern = (), ""
        if least > 1:
            call.fail(f"Tokenizer wants tokens of {least} characters, and makes some of one")
    return call.op(
        "string.tokenize",
        call.input(0),
        separators=separators,
        pattern=pattern,
        min_length=least,
        mark=call.int("mark") != 0,
        pad=call.string("pad_value"),
    )
