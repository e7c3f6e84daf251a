"""The oneDNN backend: what it runs, and regions compiled to plans of primitives."""
# Each operator has a function that puts it into steps of a plan. What cannot be put into steps is
# refused, with the reason; so is what the library has no primitive for in a narrow dtype.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int
from typing import Any

from graft.backends.onednn import runtime
from graft.backends.onednn.plan import (
    BYTES,
    FLOATS,
    SOURCE,
    WEIGHTS,
    Plan,
    extents,
)
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, UnsupportedError, UserError
from graft.byoc.contract import Backend, Limits, Match, PatternTable
from graft.byoc.executable import Settings
from graft.byoc.formats.operands import require, unbound, unfit
from graft.byoc.formats.quantized import LAYERS, UNARY, dequantized, quantized, quantized_units
from graft.byoc.region import for_backend
from graft.byoc.sizes import number
from graft.ir.graph import Graph, Node, Value
from graft.rewrite.pattern import Pattern, is_constant, is_op, wildcard
from graft.rewrite.rule import Refusal
from graft.runtime.json_graph import unpack

# Numbers of oneDNN's C interface: algorithms, settings, arguments of primitives.
_UNARY = {"nn.relu": 0x20, "nn.leaky_relu": 0x20, "tanh": 0x21, "abs": 0x24, "sqrt": 0x25}
_UNARY |= {"sigmoid": 0x29, "exp": 0x2A, "log": 0x2D, "clip": 0x2F, "nn.gelu": 0x31, "round": 0x32}
_BINARY = {"add": 0x1FFF0, "multiply": 0x1FFF1, "maximum": 0x1FFF2, "minimum": 0x1FFF3}
_BINARY |= {"divide": 0x1FFF4, "subtract": 0x1FFF5}
_SOFTMAX = {"nn.softmax": 0x30000, "nn.log_softmax": 0x30001}
_LINEAR, _GELU_BY_TANH, _MAXIMUM, _MEAN_WITH_PADS, _MEAN = 0x26, 0x2B, 0x1FF, 0x2FF, 0x3FF
_INFERENCE, _DIRECT, _SCALE_AND_SHIFT, _SCALE, _SHIFT, _MULTIPLE = 96, 1, 6, 51, 52, 1024

_CONVOLUTIONS, _PRODUCTS = ("nn.conv1d", "nn.conv2d", "nn.conv3d"), ("nn.dense", "nn.batch_matmul")
_POOLS = tuple(f"nn.{kind}_pool{rank}d" for rank in (1, 2, 3) for kind in ("max", "avg"))
_VIEWS, _RANKS = ("reshape", "squeeze", "expand_dims"), range(7)
_LAYERS = [f"quantized {name}" for name in LAYERS]


def _unary(plan: Plan, node: Node) -> None:
    require(len(node.inputs) == 1, f"the bounds of {node.op.name} are operands")
    attrs, alpha, beta = node.attrs, getattr(node.attrs, "alpha", 0.0), 0.0
    alg = _GELU_BY_TANH if getattr(attrs, "approximate", False) else _UNARY[node.op.name]
    if node.op.name == "clip":
        alpha, beta = attrs.low, attrs.high
        require(alpha <= beta, "the lower bound of clip is above the upper one")
    if not plan.fuse(node.args[0], node.output, [alg, alpha, beta]):
        call = [_INFERENCE, alg, {"own": 0}, {}, alpha, beta]
        plan.step("eltwise_forward", node.args, node.output, call)


def _binary(plan: Plan, node: Node) -> None:
    (a, b), shape = node.args, extents(node.output)
    pairs = [(a, b), (b, a)] if node.op.commutative else [(a, b)]
    pairs = [(x, plan.lifted(y, len(shape))) for x, y in pairs if extents(x) == shape]
    require(bool(pairs), f"the first operand of {node.op.name} is broadcast")
    plan.combine(pairs, _BINARY[node.op.name], node.output)


def _bias_add(plan: Plan, node: Node) -> None:
    (data, bias), spread = node.args, [1] * len(extents(node.output))
    spread[node.attrs.axis] = extents(bias)[0]
    plan.combine([(data, plan.shaped(bias, tuple(spread)))], _BINARY["add"], node.output)


def _window(attrs: Any) -> list[Any]:
    rank, gaps = len(attrs.strides), [step - 1 for step in attrs.dilation]
    return [attrs.strides, gaps, attrs.padding[:rank], attrs.padding[rank:]]


def _convolution(plan: Plan, node: Node) -> None:
    (data, weight), groups = node.args, node.attrs.groups
    codes = plan.integers(data, weight)
    data, weight = (data, weight) if codes is None else (codes[0].integers, codes[1].integers)
    outputs, *rest = extents(weight)
    if groups > 1:
        require(isinstance(outputs, int), "the number of channels is symbolic")
        weight = plan.shaped(weight, (groups, outputs // groups, *rest))
    call = [_INFERENCE, _DIRECT, {"any": 0}, {"any": 1}, None, {}, *_window(node.attrs)]
    plan.step("convolution_forward", [data, weight], node.output, call, SOURCE, WEIGHTS)
    if codes is not None:
        plan.scale_operands(node.output, *codes, axes=0b11 if groups > 1 else 0b1)


def _multiply(plan: Plan, operands: Sequence[Value], to: Any, *transposed: bool) -> Value:
    rank = max(len(extents(value)) for value in operands)
    require(len(extents(operands[0])) > 1, "the first operand of the product is one row")
    pairs = zip(operands, transposed, strict=True)
    lifted = [plan.lifted(value, rank, is_transposed) for value, is_transposed in pairs]
    call = [{"any": 0}, {"any": 1}, None, {}]
    return plan.step("matmul", lifted, to, call, SOURCE, WEIGHTS)


def _dense(plan: Plan, node: Node) -> None:
    codes = plan.integers(*node.args)
    operands = node.args if codes is None else [each.integers for each in codes]
    result = _multiply(plan, operands, node.output, False, True)
    if codes is not None:
        plan.scale_operands(result, *codes, axes=1 << (len(extents(operands[0])) - 1))


def _product(plan: Plan, node: Node) -> None:
    _multiply(plan, node.args, node.output, node.attrs.transpose_a, node.attrs.transpose_b)


def _attention(plan: Plan, node: Node) -> None:
    attrs, (query, key, value, *extras) = node.attrs, node.args
    plain = type(attrs)(scale=attrs.scale) == attrs and extents(query)[1] == extents(key)[1]
    require(plain and not extras, "the attention has a mask, a window, shared heads or the like")
    shape = (*extents(query)[:3], extents(key)[2])
    scores = _multiply(plan, [query, key], shape, False, True)
    require(isinstance(extents(query)[3], int), "the size of a head is symbolic")
    scale = extents(query)[3] ** -0.5 if attrs.scale is None else attrs.scale
    plan.add_post(scores, [_LINEAR, float(scale), 0.0])
    call = [_INFERENCE, _SOFTMAX["nn.softmax"], {"own": 0}, {}, 3]
    weights = plan.step("softmax_forward", [scores], shape, call)
    _multiply(plan, [weights, value], node.output, False, False)


def _softmax(plan: Plan, node: Node) -> None:
    axis = node.attrs.axis % len(extents(node.output))
    call = [_INFERENCE, _SOFTMAX[node.op.name], {"own": 0}, {}, axis]
    plan.step("softmax_forward", node.args, node.output, call)


def _pool(plan: Plan, node: Node) -> None:
    attrs, size, after = node.attrs, node.attrs.pool_size, []
    strides, gaps, before, given = _window(attrs)
    with_pads = getattr(attrs, "count_include_pad", False)
    for i, extent in enumerate(extents(node.args[0])[2:]):
        if not isinstance(extent, int):
            require(not attrs.ceil_mode, "windows reach beyond a symbolic extent")
            after.append(given[i])
            require(before[i] < size[i] > given[i], "a window lies in the padding alone")
            continue
        last = (extents(node.output)[2 + i] - 1) * strides[i] - before[i]
        after.append(max(0, last + size[i] - extent))
        require(before[i] < size[i] and last < extent, "a window lies in the padding alone")
        require(after[i] <= given[i] or not with_pads, "a window reaches beyond what it counts")
    require(not any(gaps), "the windows have gaps")
    alg = _MAXIMUM if "max" in node.op.name else _MEAN_WITH_PADS if with_pads else _MEAN
    call = [_INFERENCE, alg, {"own": 0}, {}, strides, size, gaps, before, after]
    plan.step("pooling_forward", node.args, node.output, call)


def _mean(plan: Plan, node: Node) -> None:
    shape, rank = extents(node.args[0]), len(extents(node.args[0]))
    axes = sorted(axis % rank for axis in node.attrs.axes or ())
    require(axes == list(range(2, rank)) and 3 <= rank <= 5, "the mean is not over all pixels")
    call = [_INFERENCE, _MEAN, {"own": 0}, {}, shape[2:], shape[2:], *[[0] * len(axes)] * 3]
    pooled = plan.step("pooling_forward", node.args, [*shape[:2], *(1 for _ in axes)], call)
    plan.shaped(pooled, node.output)


def _layer_norm(plan: Plan, node: Node) -> None:
    (data, *rest), shape = node.args, extents(node.output)
    last = node.attrs.axis % len(shape) == len(shape) - 1 and 2 <= len(shape) <= 5
    fits = [extents(value)[-1] == value.tensor.size == shape[-1] for value in rest]
    require(last and fits == [True, True], "it is not over the last axis, scaled and shifted")
    inputs = [data, *(plan.shaped(value, shape[-1:]) for value in rest)]
    call = [_INFERENCE, {"own": 0}, {}, None, float(node.attrs.epsilon), _SCALE_AND_SHIFT]
    plan.step("layer_normalization_forward", inputs, node.output, call, SOURCE, _SCALE, _SHIFT)


def _concatenate(plan: Plan, node: Node) -> None:
    count, axis = len(node.args), node.attrs.axis % len(extents(node.output))
    call, numbers = [{}, count, axis, {"all": 0}], range(_MULTIPLE, _MULTIPLE + count)
    plan.step("concat", node.args, node.output, call, *numbers)


def _transpose(plan: Plan, node: Node) -> None:
    axes = node.attrs.axes or range(len(extents(node.output)) - 1, -1, -1)
    plan.permuted(node.args[0], [axis % len(axes) for axis in axes], node.output)


def _split(plan: Plan, node: Node) -> None:
    start = [0] * len(extents(node.args[0]))
    for part in node.outputs:
        plan.step("memory_desc_create_submemory", node.args, part, [extents(part), [*start]])
        start[node.attrs.axis] += extents(part)[node.attrs.axis]


def _cast(plan: Plan, node: Node) -> None:
    plan.step("reorder", node.args, node.output, [])


_LOWER: dict[str, Callable[[Plan, Node], Any]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_SOFTMAX, _softmax),
    **dict.fromkeys(_VIEWS, lambda plan, node: plan.shaped(node.args[0], node.output)),
}
_LOWER |= {"nn.attention": _attention, "nn.bias_add": _bias_add, "nn.layer_norm": _layer_norm}
_LOWER |= {"mean": _mean, "concatenate": _concatenate, "transpose": _transpose, "split": _split}
_LOWER |= {"nn.dense": _dense, "nn.batch_matmul": _product, "cast": _cast}
_LOWER |= {"qnn.quantize": Plan.quantize, "qnn.dequantize": Plan.dequantize}


# A convolution or product, and what is computed before its results are stored.
def _fused() -> Pattern:
    product = is_op(*_CONVOLUTIONS, *_PRODUCTS)(wildcard(), wildcard())
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
    activated = biased.optional(is_op(*_UNARY))
    combined = activated.optional(lambda x: is_op(*_BINARY)(x, wildcard()))
    return combined.optional(is_op(*_UNARY))


# The same on integers: a layer with constant weights, its bias, a sum and an activation. The last
# layer of a network leaves its result in floats.
def _quantized_layer() -> Pattern:
    layer = is_op(*_CONVOLUTIONS, "nn.dense")(dequantized(wildcard()), dequantized(is_constant()))
    bias = dequantized(is_constant().has_dtype("int32"))
    biased = layer.optional(lambda x: is_op("nn.bias_add")(x, bias))
    summed = biased.optional(lambda x: is_op("add")(x, dequantized(wildcard())))
    return summed.optional(is_op(*_UNARY)).optional(quantized)


class OneDnn(Backend):
    """Runs regions of float32, bfloat16 and float16 tensors and of quantised units, at any size.
    What is float32 is computed in `precision`."""

    name = "onednn"

    def __init__(self, precision: DType = DType.FLOAT32) -> None:
        self._precision = DType(precision)
        self.arguments = {"precision": precision}

    @property
    def version(self) -> str:
        try:
            return ".".join(map(str, (c_int * 3).from_address(runtime.library().dnnl_version())))
        except UserError:
            return "not installed"

    def missing(self) -> str:
        return "" if self.version[0].isdigit() else runtime.INSTALL

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        halves = () if self.missing() else filter(runtime.multiplies, FLOATS[1:])
        return Limits(rounding=self._precision, computes_in=(DType.FLOAT32, *halves))

    @property
    def options(self) -> dict[str, str]:
        is_plain = self._precision is DType.FLOAT32
        return {} if is_plain else {"precision": str(self._precision)}

    def configured(self, settings: Settings) -> OneDnn:
        return OneDnn(settings.precision)

    def patterns(self) -> PatternTable:
        unary = [name for name in UNARY if name in _LOWER]
        units = [entry for entry in quantized_units(unary) if entry[0] not in _LAYERS]
        single = [(name, is_op(name)) for name in _LOWER]
        return [("quantized layer", _quantized_layer), ("fused", _fused), *units, *single]

    def supports(self, match: Match) -> Refusal | None:
        try:
            plan = self._plan(match.nodes, match.inputs, match.outputs, match.constants)
            if plan.is_narrow:
                self._make(for_backend(match.region))
        except (UnsupportedError, EvaluationError) as error:
            return Refusal(error.message)
        return None

    def compile(self, region: Graph) -> bytes:
        constants = {n.output: n.attrs.value.array for n in region.nodes if n.op.name == "constant"}
        nodes = [node for node in region.nodes if node.op.name != "constant"]
        return self._plan(nodes, region.inputs, region.outputs, constants).packed()

    def load(self, blob: bytes, threads: int | None = None) -> runtime.Region:
        return runtime.load(blob, threads)

    def _plan(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        constants: Mapping[Value, Array],
    ) -> Plan:
        reads = [value for node in nodes for value in node.args]
        plan = Plan(inputs, outputs, constants, reads, self._precision)
        for node in nodes:
            quantizes = node.op.name.startswith("qnn.")
            dtypes = (*FLOATS, *BYTES, DType.INT32) if quantizes else FLOATS
            values = (*node.args, *node.outputs)
            reason = unfit(values, dtypes, ranks=_RANKS, symbolic=True)
            reason = reason or unbound(inputs, node.outputs)
            require(not reason, reason)
            _LOWER[node.op.name](plan, node)
        return plan

    # Find out whether there are primitives, which only the library knows.
    def _make(self, region: Graph) -> None:
        made = runtime.Region(unpack(self.compile(region)))
        made.primitives([[number(dim) for dim in extents(value)] for value in region.inputs])
