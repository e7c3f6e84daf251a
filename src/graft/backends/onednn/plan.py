"""Plans: nodes of a graph put into calls of oneDNN's, one after the other, in the form of JSON."""
# A step is the call that makes a primitive, or a view: the same memory as another tensor. Operators
# behind a convolution or product become part of it where nobody else waits for its result.
# Dequantised values are kept as integers as long as they are read as such.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.backends.onednn.runtime import SCALES, ZERO_POINTS, multiplies
from graft.base.dims import IndexExpr
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import UnsupportedError
from graft.byoc.formats.operands import require
from graft.ir.graph import Node, Value
from graft.ir.types import TensorType
from graft.runtime.json_graph import pack

SOURCE, SECOND, WEIGHTS, TARGET, POST = 1, 2, 33, 17, 32768
FLOATS, BYTES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16), (DType.INT8, DType.UINT8)
_PRODUCTS = ("convolution_forward", "matmul")
_ANCHORS = (*_PRODUCTS, "binary")
_BY_CHANNEL = "its data has a scale or zero point per channel"
_To = Value | Sequence[Any]  # a result: a value of the graph, or a new one of that shape


def extents(value: Value) -> tuple[Any, ...]:
    """A shape; a scalar is a list of one number."""
    return value.shape or (1,)


@dataclass(frozen=True)
class Codes:
    """Integers that stand for floats: `scale * (integers - zero)`, along an axis where there are
    several scales or zero points."""

    integers: Value
    scale: Array
    zero: Array
    axis: int

    @property
    def is_uniform(self) -> bool:
        return self.scale.size == 1 == self.zero.size


class Plan:
    """The steps of some nodes, which are put there one by one. What is float32 is computed in
    `precision`, and is of that dtype between steps."""

    def __init__(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        constants: Mapping[Value, Array],
        reads: Sequence[Value],
        precision: DType = DType.FLOAT32,
    ) -> None:
        self.steps, self._made = list[dict[str, Any]](), dict[Value, dict[str, Any]]()
        self._inputs, self._outputs, self._precision = inputs, outputs, precision
        self._arrays = {v: a.reshape(extents(v)) for v, a in constants.items()}
        self._reads, self._codes = [*reads, *outputs], dict[Value, Codes]()

    @property
    def is_narrow(self) -> bool:
        """Whether there are other dtypes than float32, which the library or processor may lack."""
        dtypes = [step["outputs"][0]["dtype"] for step in self.steps]
        dtypes += [step["attrs"]["dtype"] for step in self.steps]
        return any(dtype is not DType.FLOAT32 for dtype in dtypes)

    def packed(self) -> bytes:
        """The plan as code."""
        read = {name for step in self.steps for name in step["inputs"]}
        read |= {value.name for value in self._outputs}
        arrays = {value.name: array for value, array in self._arrays.items() if value.name in read}
        inputs = [_tensor(value, value.dtype) for value in self._inputs]
        names = [value.name for value in self._outputs]
        return pack({"inputs": inputs, "nodes": self.steps, "outputs": names}, arrays)

    def step(self, op: str, inputs: Sequence[Value], to: _To, call: Any, *numbers: int) -> Value:
        """A call that makes a value of others, which have these numbers as its arguments."""
        operands = [self._readable(value) for value in inputs]
        own = operands[0].dtype
        to = to if isinstance(to, Value) else self._new(to, own)
        attrs = {"call": _written(call), "numbers": [*numbers] or [SOURCE], "post": [], "masks": []}
        attrs["dtype"] = self._precision if own is DType.FLOAT32 else own
        step = {"op": op, "inputs": [value.name for value in operands], "attrs": attrs}
        self._finish(step, to)
        return to

    def shaped(self, value: Value, to: _To) -> Value:
        """A value seen in another shape."""
        value, shape = self._readable(value), extents(to) if isinstance(to, Value) else tuple(to)
        if to == extents(value):
            return value
        if value in self._arrays and not isinstance(to, Value):
            return self._constant(self._arrays[value].reshape(shape))
        return self.step("memory_desc_reshape", [value], to, [len(shape), shape])

    def permuted(self, value: Value, axes: Sequence[int], to: Value | None = None) -> Value:
        """A value with its axes in another order."""
        value = self._readable(value)
        if value in self._arrays and to is None:
            return self._constant(self._arrays[value].transpose(axes))
        inverse = [axes.index(axis) for axis in range(len(axes))]
        shape = [extents(value)[axis] for axis in axes]
        return self.step("memory_desc_permute_axes", [value], to or shape, [{"axes": inverse}])

    def lifted(self, value: Value, rank: int, is_transposed: bool = False) -> Value:
        """A value with more axes in front, its matrices transposed if need be."""
        value = self.shaped(value, (1,) * (rank - len(extents(value))) + extents(value))
        if not is_transposed:
            return value
        return self.permuted(value, [*range(rank - 2), rank - 1, rank - 2])

    def fuse(self, value: Value, to: Value, post: list[Any], *operands: Value) -> bool:
        """Do more in the step that makes a value, if nobody else waits for that."""
        step, shape = self._made.get(value, {"op": ""}), extents(to)
        spread = any(extents(operand) != shape for operand in operands)
        if (
            step["op"] not in _ANCHORS
            or self._reads.count(value) > 1
            or extents(value) != shape
            or (step["op"] == "binary" and spread)  # wrong where pixels are single
        ):
            return False
        names, attrs = [self._readable(operand).name for operand in operands], step["attrs"]
        attrs["post"].append([*post, len(step["inputs"])] if operands else post)
        attrs["numbers"] += [POST * len(attrs["post"]) | SECOND] * len(operands)
        step["inputs"] += names
        self._finish(step, to)
        return True

    def add_post(self, value: Value, post: list[Any]) -> None:
        """Do more with what a step makes before that is stored."""
        self._made[value]["attrs"]["post"].append(post)

    def combine(self, pairs: Sequence[tuple[Value, Value]], alg: int, to: Value) -> None:
        """Combine two values, in the step that makes the first of a pair if possible."""
        if not any(self.fuse(first, to, [alg], second) for first, second in pairs):
            call = [alg, {"own": 0}, {"any": 1}, {}]
            self.step("binary", pairs[0], to, call, SOURCE, SECOND)

    def dequantize(self, node: Node) -> None:
        """Floats that stay integers until somebody reads them as floats."""
        codes = self._codes_of(node, node.args[0])
        require(node.output.dtype is DType.FLOAT32, f"it dequantises to {node.output.dtype}")
        require(codes.integers in self._arrays or codes.is_uniform, _BY_CHANNEL)
        self._codes[node.output] = codes
        if node.output in self._outputs:
            self._readable(node.output)

    def quantize(self, node: Node) -> None:
        """Integers, written by the step that makes the floats if that computes with integers."""
        codes, value = self._codes_of(node, node.output), node.args[0]
        precision = node.attrs.precision or DType.FLOAT32
        require(value.dtype is precision is DType.FLOAT32, f"it quantises {value.dtype}")
        require(codes.is_uniform, _BY_CHANNEL)
        step = self._made.get(value, {"attrs": {"masks": []}})
        if step["attrs"]["masks"] and step["op"] != "reorder" and self._reads.count(value) == 1:
            self._finish(step, node.output)
        else:
            self.step("reorder", [value], node.output, [])
        self._scale(node.output, TARGET, codes, 0)

    def integers(self, data: Value, weight: Value) -> tuple[Codes, Codes] | None:
        """Operands of a layer that computes with integers: data, and constant weights without a
        zero point, scaled along their first axis at most; None where they are floats."""
        if not (data in self._codes and weight in self._codes):
            return None
        codes, kernel = self._codes[data], self._codes[weight]
        if codes.integers in self._arrays or kernel.integers not in self._arrays:
            return None
        require(multiplies(DType.INT8), "the processor would add products of bytes in 16 bits")
        require(kernel.is_uniform or kernel.axis == 0, "its weights are not scaled by channel")
        array = self._arrays[kernel.integers].astype(np.int64)
        array = array - _spread(kernel.zero, array.ndim, kernel.axis)
        fits = bool((array >= -128).all() and (array <= 127).all())
        require(fits, "its weights do not fit int8 once their zero point is taken away")
        return codes, replace(kernel, integers=self._constant(array.astype(np.int8)))

    def scale_operands(self, result: Value, data: Codes, weight: Codes, axes: int) -> None:
        """Tell a layer on integers what these stand for; `axes` are those with a scale each."""
        self._scale(result, SOURCE, data, 0)
        self._scale(result, WEIGHTS, replace(weight, zero=np.zeros(1, np.int32)), axes)

    # Give the step that makes a value the scale of one of its arguments, and the zero point.
    def _scale(self, value: Value, argument: int, codes: Codes, axes: int) -> None:
        step, mask = self._made[value], axes if codes.scale.size > 1 else 0
        scaling = [(SCALES | argument, codes.scale.reshape(-1), mask)]
        if codes.zero.any():
            scaling += [(ZERO_POINTS | argument, codes.zero.reshape(-1).astype(np.int32), 0)]
        for number, array, axes_scaled in scaling:
            step["inputs"].append(self._constant(array).name)
            step["attrs"]["numbers"].append(number)
            step["attrs"]["masks"].append([number, axes_scaled])

    # What integers stand for, by the operands of the node that reads or writes them.
    def _codes_of(self, node: Node, integers: Value) -> Codes:
        parameters = [self._arrays.get(value) for value in node.args[1:]]
        require(not node.attrs.block_size, "it has a scale per block")
        scale, zero = [*parameters, np.zeros(1, np.int32)][:2]
        if scale is None or zero is None:
            raise UnsupportedError("its scale or zero point is no constant")
        narrow = integers.dtype in BYTES
        constant = integers in self._arrays and integers.dtype is DType.INT32
        require(narrow or constant, f"%{integers.name} is {integers.dtype}, not of 8 bits")
        require(scale.dtype == np.float32, f"its scale is {dtype_of(scale.dtype)}")
        return Codes(integers, scale, zero, node.attrs.axis % len(extents(integers)))

    # A value as steps read it: what stands for floats is made them.
    def _readable(self, value: Value) -> Value:
        codes = self._codes.pop(value, None)
        if codes is None:
            return value
        if codes.integers not in self._arrays:
            self.step("reorder", [codes.integers], value, [])
            self._scale(value, SOURCE, codes, 0)
            return value
        array, axis = self._arrays[codes.integers].astype(np.float32), codes.axis
        scale, zero = (_spread(each, array.ndim, axis) for each in (codes.scale, codes.zero))
        self._arrays[value] = (array - zero.astype(np.float32)) * scale
        return value

    # A step comes last once more is done in it: by then all that it reads has been made.
    def _finish(self, step: dict[str, Any], to: Value) -> None:
        keeps = to in self._outputs or to.dtype is not DType.FLOAT32
        dtype = to.dtype if keeps else self._precision
        if step["op"] not in _PRODUCTS:
            step["attrs"]["dtype"] = dtype
        step["outputs"] = [_tensor(to, dtype)]
        self.steps = [other for other in self.steps if other is not step] + [step]
        self._made[to] = step

    def _new(self, shape: Sequence[Any], dtype: DType) -> Value:
        return Value(f"step {len(self._made)}", TensorType(dtype, tuple(shape)))

    def _constant(self, array: Array) -> Value:
        type_ = TensorType(dtype_of(array.dtype), array.shape)
        value = Value(f"constant {len(self._arrays)}", type_)
        self._arrays[value] = array
        return value


def _tensor(value: Value, dtype: DType) -> dict[str, Any]:
    return {"name": value.name, "dtype": dtype, "shape": _written(extents(value))}


# Extents as JSON has them: symbolic ones are text, which a run evaluates.
def _written(item: Any) -> Any:
    if isinstance(item, list | tuple):
        return [_written(each) for each in item]
    return str(item) if isinstance(item, IndexExpr) else item


# A scale or zero point, ready to be broadcast along an axis.
def _spread(parameter: Array, rank: int, axis: int) -> Array:
    shape = [1] * rank
    shape[axis] = parameter.size
    return parameter.reshape(shape)
