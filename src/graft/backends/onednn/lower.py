"""Regions as plans of oneDNN's primitives: a graph in, steps out, with what follows fused in.

A step is the call that makes a primitive, or a view: the same memory as another tensor. Operators
behind a convolution or product become part of it where nobody else waits for its result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from graft.base.dtypes import DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.runtime.json_graph import pack

# Numbers of oneDNN's C interface: algorithms, settings, arguments of primitives.
ELTWISE = {"nn.relu": 0x20, "nn.leaky_relu": 0x20, "tanh": 0x21, "abs": 0x24, "sqrt": 0x25}
ELTWISE |= {"sigmoid": 0x29, "exp": 0x2A, "log": 0x2D, "clip": 0x2F, "nn.gelu": 0x31, "round": 0x32}
BINARY = {"add": 0x1FFF0, "multiply": 0x1FFF1, "maximum": 0x1FFF2, "minimum": 0x1FFF3}
BINARY |= {"divide": 0x1FFF4, "subtract": 0x1FFF5}
_SOFTMAX = {"nn.softmax": 0x30000, "nn.log_softmax": 0x30001}
_LINEAR, _GELU_BY_TANH, _MAXIMUM, _MEAN_WITH_PADS, _MEAN = 0x26, 0x2B, 0x1FF, 0x2FF, 0x3FF
_INFERENCE, _DIRECT, _USE_SCALE, _USE_SHIFT = 96, 1, 2, 4
_SOURCE, _SECOND, _WEIGHTS, _SCALE, _SHIFT, _MULTIPLE, _POST = 1, 2, 33, 51, 52, 1024, 32768
_ANCHORS = ("convolution_forward", "matmul", "binary")


def extents(value: Value) -> tuple[int, ...]:
    """A static shape; a scalar is a list of one number."""
    shape: Any = value.shape
    return tuple(shape) or (1,)


def _tensor(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": "float32", "shape": extents(value)}


class Plan:
    """The steps so far, in the form of JSON. A result is a value of the graph, or a new one."""

    def __init__(self, region: Graph) -> None:
        self.steps: list[dict[str, Any]] = []
        self.made: dict[Value, dict[str, Any]] = {}
        read = [value for node in region.nodes for value in node.args]
        self.reads = Counter([*read, *region.outputs])
        for node in region.nodes:
            if node.op.name != "constant":
                LOWER[node.op.name](self, node)

    def step(self, op: str, inputs: Sequence[Value], to: Any, call: Any, *numbers: int) -> Value:
        if not isinstance(to, Value):
            to = Value(f"step {len(self.made)}", TensorType(DType.FLOAT32, tuple(to)))
        attrs = {"call": call, "numbers": list(numbers or (_SOURCE,)), "post": []}
        names = [value.name for value in inputs]
        self.made[to] = {"op": op, "inputs": names, "attrs": attrs, "outputs": [_tensor(to)]}
        self.steps.append(self.made[to])
        return to

    def shaped(self, value: Value, to: Any) -> Value:
        shape = extents(to) if isinstance(to, Value) else to
        known = not isinstance(to, Value) and shape == extents(value)
        call = [len(shape), shape]
        return value if known else self.step("memory_desc_reshape", [value], to, call)

    def permuted(self, value: Value, axes: Sequence[int], to: Value | None = None) -> Value:
        call = ["axes " + " ".join(str(axes.index(axis)) for axis in range(len(axes)))]
        shape = [extents(value)[axis] for axis in axes]
        return self.step("memory_desc_permute_axes", [value], to or shape, call)

    def lifted(self, value: Value, rank: int, turn: bool = False) -> Value:
        """A value with more axes in front, its matrices turned if need be."""
        value = self.shaped(value, (1,) * (rank - len(extents(value))) + extents(value))
        return self.permuted(value, [*range(rank - 2), rank - 1, rank - 2]) if turn else value

    def fuse(self, value: Value, to: Value, post: list[Any], operand: Value | None = None) -> bool:
        """Do more in the step that makes a value, if nobody else waits for that."""
        step = self.made.get(value, {"op": ""})
        if step["op"] not in _ANCHORS or self.reads[value] > 1 or extents(value) != extents(to):
            return False
        attrs = step["attrs"]
        attrs["post"].append(post)
        if operand is not None:
            post.append(len(step["inputs"]))
            step["inputs"].append(operand.name)
            attrs["numbers"].append(_POST * len(attrs["post"]) | _SECOND)
        self.steps.remove(step)  # it comes last: by then all that it reads has been made
        self.steps.append(step)
        step["outputs"] = [_tensor(to)]
        self.made[to] = step
        return True

    def combine(self, pairs: Sequence[tuple[Value, Value]], alg: int, to: Value) -> None:
        """Combine two values, in the step that makes the first of a pair if possible."""
        if not any(self.fuse(first, to, [alg], second) for first, second in pairs):
            call = [alg, "own 0", "any 1", "target"]
            self.step("binary", pairs[0], to, call, _SOURCE, _SECOND)


def _eltwise(plan: Plan, node: Node) -> None:
    attrs, alpha, beta = node.attrs, getattr(node.attrs, "alpha", 0.0), 0.0
    alg = _GELU_BY_TANH if getattr(attrs, "approximate", False) else ELTWISE[node.op.name]
    if node.op.name == "clip":
        alpha = -math.inf if attrs.a_min is None else float(attrs.a_min)
        beta = math.inf if attrs.a_max is None else float(attrs.a_max)
    if not plan.fuse(node.args[0], node.output, [alg, alpha, beta]):
        call = [_INFERENCE, alg, "own 0", "target", alpha, beta]
        plan.step("eltwise_forward", node.args, node.output, call)


def _binary(plan: Plan, node: Node) -> None:
    (a, b), shape = node.args, extents(node.output)
    pairs = [(a, b), (b, a)] if node.op.commutative else [(a, b)]
    pairs = [(x, plan.lifted(y, len(shape))) for x, y in pairs if extents(x) == shape]
    plan.combine(pairs, BINARY[node.op.name], node.output)


def _bias_add(plan: Plan, node: Node) -> None:
    (data, bias), spread = node.args, [1] * len(extents(node.output))
    spread[node.attrs.axis] = extents(bias)[0]
    plan.combine([(data, plan.shaped(bias, tuple(spread)))], BINARY["add"], node.output)


def _window(attrs: Any) -> list[Any]:
    rank, gaps = len(attrs.strides), [step - 1 for step in attrs.dilation]
    return [attrs.strides, gaps, attrs.padding[:rank], attrs.padding[rank:]]


def _convolution(plan: Plan, node: Node) -> None:
    (data, weight), groups = node.args, node.attrs.groups
    outputs, *rest = extents(weight)
    weight = plan.shaped(weight, (groups, outputs // groups, *rest)) if groups > 1 else weight
    call = [_INFERENCE, _DIRECT, "any 0", "any 1", None, "target", *_window(node.attrs)]
    plan.step("convolution_forward", [data, weight], node.output, call, _SOURCE, _WEIGHTS)


def _product(plan: Plan, operands: Sequence[Value], to: Any, *turns: bool) -> Value:
    rank = max(len(extents(value)) for value in operands)
    lifted = [plan.lifted(v, rank, turn) for v, turn in zip(operands, turns, strict=True)]
    call = ["any 0", "any 1", None, "target"]
    return plan.step("matmul", lifted, to, call, _SOURCE, _WEIGHTS)


def _attention(plan: Plan, node: Node) -> None:
    query, key, value = node.args
    shape = (*extents(query)[:3], extents(key)[2])
    scores = _product(plan, [query, key], shape, False, True)
    scale = extents(query)[3] ** -0.5 if node.attrs.scale is None else node.attrs.scale
    plan.made[scores]["attrs"]["post"].append([_LINEAR, float(scale), 0.0])
    call = [_INFERENCE, _SOFTMAX["nn.softmax"], "own 0", "target", 3]
    weights = plan.step("softmax_forward", [scores], shape, call)
    _product(plan, [weights, value], node.output, False, False)


def overhang(node: Node, axis: int) -> int:
    """How far the last window of a pooling reaches beyond the padded data."""
    attrs, extent = node.attrs, extents(node.args[0])[2 + axis]
    start = (extents(node.output)[2 + axis] - 1) * attrs.strides[axis] - attrs.padding[axis]
    return max(0, start + attrs.pool_size[axis] - extent - attrs.padding[axis + len(attrs.strides)])


def _pool(plan: Plan, node: Node) -> None:
    mean = _MEAN_WITH_PADS if getattr(node.attrs, "count_include_pad", False) else _MEAN
    alg = _MAXIMUM if node.op.name.startswith("nn.max") else mean
    strides, gaps, before, after = _window(node.attrs)
    after = [pad + overhang(node, axis) for axis, pad in enumerate(after)]
    call = [_INFERENCE, alg, "own 0", "target", strides, node.attrs.pool_size, gaps, before, after]
    plan.step("pooling_forward", node.args, node.output, call)


def _spatial_mean(plan: Plan, node: Node) -> None:
    batch, channels, *size = extents(node.args[0])
    no = [0] * len(size)
    call = [_INFERENCE, _MEAN, "own 0", "target", size, size, no, no, no]
    left = [batch, channels, *(1 for _ in size)]
    plan.shaped(plan.step("pooling_forward", node.args, left, call), node.output)


def _softmax(plan: Plan, node: Node) -> None:
    axis = node.attrs.axis % len(extents(node.output))
    call = [_INFERENCE, _SOFTMAX[node.op.name], "own 0", "target", axis]
    plan.step("softmax_forward", node.args, node.output, call)


def _layer_norm(plan: Plan, node: Node) -> None:
    size, kinds = extents(node.output)[-1:], ((_SCALE, _USE_SCALE), (_SHIFT, _USE_SHIFT))
    given = [pair for pair in zip(node.inputs[1:], kinds, strict=False) if pair[0] is not None]
    flags = sum(flag for _, (_, flag) in given)
    call = [_INFERENCE, "own 0", "target", None, float(node.attrs.epsilon), flags]
    inputs = [node.args[0], *(plan.shaped(value, size) for value in node.args[1:])]
    numbers = _SOURCE, *(number for _, (number, _) in given)
    plan.step("layer_normalization_forward", inputs, node.output, call, *numbers)


def _concatenate(plan: Plan, node: Node) -> None:
    count, axis = len(node.args), node.attrs.axis % len(extents(node.output))
    numbers = range(_MULTIPLE, _MULTIPLE + count)
    plan.step("concat", node.args, node.output, ["target", count, axis, "all"], *numbers)


def _transpose(plan: Plan, node: Node) -> None:
    rank = len(extents(node.output))
    axes = [axis % rank for axis in node.attrs.axes or range(rank - 1, -1, -1)]
    plan.permuted(node.args[0], axes, node.output)


def _split(plan: Plan, node: Node) -> None:
    start = [0] * len(extents(node.args[0]))
    for part in node.outputs:
        call = [extents(part), list(start)]
        plan.step("memory_desc_create_submemory", node.args, part, call)
        start[node.attrs.axis] += extents(part)[node.attrs.axis]


def _reshape(plan: Plan, node: Node) -> None:
    plan.shaped(node.args[0], node.output)


POOLS = tuple(f"nn.{kind}_pool{rank}d" for rank in (1, 2, 3) for kind in ("max", "avg"))
LOWER: dict[str, Callable[[Plan, Node], Any]] = {
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _convolution),
    "nn.dense": lambda plan, n: _product(plan, n.args, n.output, False, True),
    "nn.batch_matmul": lambda plan, n: _product(
        plan, n.args, n.output, n.attrs.transpose_a, n.attrs.transpose_b
    ),
    "nn.attention": _attention,
    "nn.bias_add": _bias_add,
    **dict.fromkeys(ELTWISE, _eltwise),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(POOLS, _pool),
    "mean": _spatial_mean,
    **dict.fromkeys(_SOFTMAX, _softmax),
    "nn.layer_norm": _layer_norm,
    "concatenate": _concatenate,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "split": _split,
}


def plan_of(region: Graph) -> bytes:
    """A region as a plan, with its constants."""
    constants = [node for node in region.nodes if node.op.name == "constant"]
    arrays = {n.output.name: n.attrs.value.array.reshape(extents(n.output)) for n in constants}
    inputs, outputs = list(map(_tensor, region.inputs)), [value.name for value in region.outputs]
    return pack({"inputs": inputs, "nodes": Plan(region).steps, "outputs": outputs}, arrays)
