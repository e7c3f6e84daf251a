"""The oneDNN backend: what it runs, and regions compiled to plans of primitives."""
# A step of a plan is the call that makes a primitive, or a view: the same memory as another tensor.
# Operators behind a convolution or product become part of it where nobody else waits for its
# result. What cannot be put into steps is refused, with the reason.

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import Any

from graft.backends.onednn import runtime
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.contract import Backend, Match, PatternTable
from graft.byoc.formats.operands import unfit
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.rewrite.pattern import Pattern, is_op, wildcard
from graft.rewrite.rule import Refusal
from graft.runtime.json_graph import pack

# Numbers of oneDNN's C interface: algorithms, settings, arguments of primitives.
_UNARY = {"nn.relu": 0x20, "nn.leaky_relu": 0x20, "tanh": 0x21, "abs": 0x24, "sqrt": 0x25}
_UNARY |= {"sigmoid": 0x29, "exp": 0x2A, "log": 0x2D, "clip": 0x2F, "nn.gelu": 0x31, "round": 0x32}
_BINARY = {"add": 0x1FFF0, "multiply": 0x1FFF1, "maximum": 0x1FFF2, "minimum": 0x1FFF3}
_BINARY |= {"divide": 0x1FFF4, "subtract": 0x1FFF5}
_SOFTMAX = {"nn.softmax": 0x30000, "nn.log_softmax": 0x30001}
_LINEAR, _GELU_BY_TANH, _MAXIMUM, _MEAN_WITH_PADS, _MEAN = 0x26, 0x2B, 0x1FF, 0x2FF, 0x3FF
_INFERENCE, _DIRECT, _SCALE_AND_SHIFT, _SOURCE, _SECOND, _WEIGHTS = 96, 1, 6, 1, 2, 33
_SCALE, _SHIFT, _MULTIPLE, _POST = 51, 52, 1024, 32768

_CONVOLUTIONS, _PRODUCTS = ("nn.conv1d", "nn.conv2d", "nn.conv3d"), ("nn.dense", "nn.batch_matmul")
_POOLS = tuple(f"nn.{kind}_pool{rank}d" for rank in (1, 2, 3) for kind in ("max", "avg"))
_VIEWS, _LARGEST_RANK = ("reshape", "squeeze", "expand_dims"), 6
_ANCHORS = ("convolution_forward", "matmul", "binary")


_To = Value | Sequence[Any]  # a result: a value of the graph, or a new one of that shape


# A static shape; a scalar is a list of one number.
def _extents(value: Value) -> tuple[Any, ...]:
    return value.shape or (1,)


def _tensor(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": "float32", "shape": _extents(value)}


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise UnsupportedError(reason)


# The steps of some nodes, in the form of JSON.
class _Plan:
    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        self.steps, self.made = list[dict[str, Any]](), dict[Value, dict[str, Any]]()
        self.reads = [*(value for node in nodes for value in node.args), *outputs]
        for node in nodes:
            reason = unfit((*node.args, *node.outputs), largest_rank=_LARGEST_RANK)
            _require(not reason, reason)
            _LOWER[node.op.name](self, node)

    def step(self, op: str, inputs: Sequence[Value], to: _To, call: Any, *numbers: int) -> Value:
        if not isinstance(to, Value):
            to = Value(f"step {len(self.made)}", TensorType(DType.FLOAT32, tuple(to)))
        attrs = {"call": call, "numbers": numbers or (_SOURCE,), "post": []}
        names = [value.name for value in inputs]
        self.steps.append({"op": op, "inputs": names, "attrs": attrs, "outputs": [_tensor(to)]})
        self.made[to] = self.steps[-1]
        return to

    def shaped(self, value: Value, to: _To) -> Value:
        if to == _extents(value):
            return value
        shape = _extents(to) if isinstance(to, Value) else to
        return self.step("memory_desc_reshape", [value], to, [len(shape), shape])

    def permuted(self, value: Value, axes: Sequence[int], to: Value | None = None) -> Value:
        inverse = [axes.index(axis) for axis in range(len(axes))]
        shape = [_extents(value)[axis] for axis in axes]
        return self.step("memory_desc_permute_axes", [value], to or shape, [{"axes": inverse}])

    # A value with more axes in front, its matrices turned if need be.
    def lifted(self, value: Value, rank: int, turn: bool = False) -> Value:
        value = self.shaped(value, (1,) * (rank - len(_extents(value))) + _extents(value))
        return self.permuted(value, [*range(rank - 2), rank - 1, rank - 2]) if turn else value

    # Do more in the step that makes a value, if nobody else waits for that.
    def fuse(self, value: Value, to: Value, post: list[Any], *operands: Value) -> bool:
        step, shape = self.made.get(value, {"op": ""}), _extents(to)
        spread = any(_extents(operand) != shape for operand in operands)
        if (
            step["op"] not in _ANCHORS
            or self.reads.count(value) > 1
            or _extents(value) != shape
            or (step["op"] == "binary" and spread)  # wrong where pixels are single
        ):
            return False
        attrs = step["attrs"]
        attrs["post"].append([*post, len(step["inputs"])] if operands else post)
        attrs["numbers"] += (_POST * len(attrs["post"]) | _SECOND,) * len(operands)
        step["inputs"] += [operand.name for operand in operands]
        step["outputs"] = [_tensor(to)]
        self.made[to] = step
        self.steps.remove(step)  # it comes last: by then all that it reads has been made
        self.steps.append(step)
        return True

    # Combine two values, in the step that makes the first of a pair if possible.
    def combine(self, pairs: Sequence[tuple[Value, Value]], alg: int, to: Value) -> None:
        if not any(self.fuse(first, to, [alg], second) for first, second in pairs):
            call = [alg, {"own": 0}, {"any": 1}, {}]
            self.step("binary", pairs[0], to, call, _SOURCE, _SECOND)


def _unary(plan: _Plan, node: Node) -> None:
    _require(len(node.inputs) == 1, f"the bounds of {node.op.name} are operands")
    attrs, alpha, beta = node.attrs, getattr(node.attrs, "alpha", 0.0), 0.0
    alg = _GELU_BY_TANH if getattr(attrs, "approximate", False) else _UNARY[node.op.name]
    if node.op.name == "clip":
        alpha = float("-inf" if attrs.a_min is None else attrs.a_min)
        beta = float("inf" if attrs.a_max is None else attrs.a_max)
        _require(alpha <= beta, "the lower bound of clip is above the upper one")
    if not plan.fuse(node.args[0], node.output, [alg, alpha, beta]):
        call = [_INFERENCE, alg, {"own": 0}, {}, alpha, beta]
        plan.step("eltwise_forward", node.args, node.output, call)


def _binary(plan: _Plan, node: Node) -> None:
    (a, b), shape = node.args, _extents(node.output)
    pairs = [(a, b), (b, a)] if node.op.commutative else [(a, b)]
    pairs = [(x, plan.lifted(y, len(shape))) for x, y in pairs if _extents(x) == shape]
    _require(bool(pairs), f"the first operand of {node.op.name} is broadcast")
    plan.combine(pairs, _BINARY[node.op.name], node.output)


def _bias_add(plan: _Plan, node: Node) -> None:
    (data, bias), spread = node.args, [1] * len(_extents(node.output))
    spread[node.attrs.axis] = _extents(bias)[0]
    plan.combine([(data, plan.shaped(bias, tuple(spread)))], _BINARY["add"], node.output)


def _window(attrs: Any) -> list[Any]:
    rank, gaps = len(attrs.strides), [step - 1 for step in attrs.dilation]
    return [attrs.strides, gaps, attrs.padding[:rank], attrs.padding[rank:]]


def _convolution(plan: _Plan, node: Node) -> None:
    (data, weight), groups = node.args, node.attrs.groups
    outputs, *rest = _extents(weight)
    weight = plan.shaped(weight, (groups, outputs // groups, *rest)) if groups > 1 else weight
    call = [_INFERENCE, _DIRECT, {"any": 0}, {"any": 1}, None, {}, *_window(node.attrs)]
    plan.step("convolution_forward", [data, weight], node.output, call, _SOURCE, _WEIGHTS)


def _multiply(plan: _Plan, operands: Sequence[Value], to: _To, *turns: bool) -> Value:
    rank = max(len(_extents(value)) for value in operands)
    _require(len(_extents(operands[0])) > 1, "the first operand of the product is one row")
    lifted = [plan.lifted(v, rank, turn) for v, turn in zip(operands, turns, strict=True)]
    call = [{"any": 0}, {"any": 1}, None, {}]
    return plan.step("matmul", lifted, to, call, _SOURCE, _WEIGHTS)


def _product(plan: _Plan, node: Node) -> None:
    turns = [getattr(node.attrs, f"transpose_{which}", which == "b") for which in "ab"]
    _multiply(plan, node.args, node.output, *turns)  # the weight of a dense layer always is turned


def _attention(plan: _Plan, node: Node) -> None:
    attrs, (query, key, value, *extras) = node.attrs, node.args
    plain = type(attrs)(scale=attrs.scale) == attrs and _extents(query)[1] == _extents(key)[1]
    _require(plain and not extras, "the attention has a mask, a window, shared heads or the like")
    shape = (*_extents(query)[:3], _extents(key)[2])
    scores = _multiply(plan, [query, key], shape, False, True)
    scale = _extents(query)[3] ** -0.5 if attrs.scale is None else attrs.scale
    plan.made[scores]["attrs"]["post"].append([_LINEAR, float(scale), 0.0])
    call = [_INFERENCE, _SOFTMAX["nn.softmax"], {"own": 0}, {}, 3]
    weights = plan.step("softmax_forward", [scores], shape, call)
    _multiply(plan, [weights, value], node.output, False, False)


def _softmax(plan: _Plan, node: Node) -> None:
    axis = node.attrs.axis % len(_extents(node.output))
    call = [_INFERENCE, _SOFTMAX[node.op.name], {"own": 0}, {}, axis]
    plan.step("softmax_forward", node.args, node.output, call)


def _pool(plan: _Plan, node: Node) -> None:
    attrs, size, after = node.attrs, node.attrs.pool_size, []
    strides, gaps, before, given = _window(attrs)
    with_pads = getattr(attrs, "count_include_pad", False)
    for i, extent in enumerate(_extents(node.args[0])[2:]):
        last = (_extents(node.output)[2 + i] - 1) * strides[i] - before[i]
        after.append(max(0, last + size[i] - extent))
        _require(before[i] < size[i] and last < extent, "a window lies in the padding alone")
        _require(after[i] <= given[i] or not with_pads, "a window reaches beyond what it counts")
    _require(not any(gaps), "the windows have gaps")
    alg = _MAXIMUM if "max" in node.op.name else _MEAN_WITH_PADS if with_pads else _MEAN
    call = [_INFERENCE, alg, {"own": 0}, {}, strides, size, gaps, before, after]
    plan.step("pooling_forward", node.args, node.output, call)


def _mean(plan: _Plan, node: Node) -> None:
    shape, rank = _extents(node.args[0]), len(_extents(node.args[0]))
    axes = sorted(axis % rank for axis in node.attrs.axes or ())
    _require(axes == list(range(2, rank)) and 3 <= rank <= 5, "the mean is not over all pixels")
    call = [_INFERENCE, _MEAN, {"own": 0}, {}, shape[2:], shape[2:], *[[0] * len(axes)] * 3]
    pooled = plan.step("pooling_forward", node.args, [*shape[:2], *(1 for _ in axes)], call)
    plan.shaped(pooled, node.output)


def _layer_norm(plan: _Plan, node: Node) -> None:
    (data, *rest), shape = node.args, _extents(node.output)
    last = node.attrs.axis % len(shape) == len(shape) - 1 and 2 <= len(shape) <= 5
    fits = [_extents(value)[-1] == value.tensor.size == shape[-1] for value in rest]
    _require(last and fits == [True, True], "it is not over the last axis, scaled and shifted")
    inputs = [data, *(plan.shaped(value, shape[-1:]) for value in rest)]
    call = [_INFERENCE, {"own": 0}, {}, None, float(node.attrs.epsilon), _SCALE_AND_SHIFT]
    plan.step("layer_normalization_forward", inputs, node.output, call, _SOURCE, _SCALE, _SHIFT)


def _concatenate(plan: _Plan, node: Node) -> None:
    count, axis = len(node.args), node.attrs.axis % len(_extents(node.output))
    call, numbers = [{}, count, axis, {"all": 0}], range(_MULTIPLE, _MULTIPLE + count)
    plan.step("concat", node.args, node.output, call, *numbers)


def _transpose(plan: _Plan, node: Node) -> None:
    axes = node.attrs.axes or range(len(_extents(node.output)) - 1, -1, -1)
    plan.permuted(node.args[0], [axis % len(axes) for axis in axes], node.output)


def _split(plan: _Plan, node: Node) -> None:
    start = [0] * len(_extents(node.args[0]))
    for part in node.outputs:
        plan.step("memory_desc_create_submemory", node.args, part, [_extents(part), [*start]])
        start[node.attrs.axis] += _extents(part)[node.attrs.axis]


_LOWER: dict[str, Callable[[_Plan, Node], Any]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_SOFTMAX, _softmax),
    **dict.fromkeys(_VIEWS, lambda plan, node: plan.shaped(node.args[0], node.output)),
}
_LOWER |= {"nn.attention": _attention, "nn.bias_add": _bias_add, "nn.layer_norm": _layer_norm}
_LOWER |= {"mean": _mean, "concatenate": _concatenate, "transpose": _transpose, "split": _split}


# A convolution or product, and what is computed before its results are stored.
def _fused() -> Pattern:
    product = is_op(*_CONVOLUTIONS, *_PRODUCTS)(wildcard(), wildcard())
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
    activated = biased.optional(is_op(*_UNARY))
    combined = activated.optional(lambda x: is_op(*_BINARY)(x, wildcard()))
    return combined.optional(is_op(*_UNARY))


class OneDnn(Backend):
    """Runs regions of float32 tensors with static shapes."""

    name = "onednn"

    @property
    def version(self) -> str:  # type: ignore[override]
        try:
            return ".".join(map(str, (c_int * 3).from_address(runtime.library().dnnl_version())))
        except UserError:
            return "not installed"

    def missing(self) -> str:
        return "" if self.version[0].isdigit() else runtime.INSTALL

    def patterns(self) -> PatternTable:
        return [("fused", _fused), *((name, is_op(name)) for name in _LOWER)]

    def supports(self, match: Match) -> Refusal | None:
        try:
            _Plan(match.nodes, match.outputs)
        except UnsupportedError as error:
            return Refusal(error.message)
        return None

    def compile(self, region: Graph) -> bytes:
        constants = [node for node in region.nodes if node.op.name == "constant"]
        nodes = [node for node in region.nodes if node.op.name != "constant"]
        arrays = {n.output.name: n.attrs.value.array.reshape(_extents(n.output)) for n in constants}
        inputs, outputs = [_tensor(v) for v in region.inputs], [v.name for v in region.outputs]
        steps = _Plan(nodes, region.outputs).steps
        return pack({"inputs": inputs, "nodes": steps, "outputs": outputs}, arrays)

    def load(self, blob: bytes, threads: int | None = None) -> runtime.Region:
        return runtime.load(blob, threads)
