"""The oneDNN backend: what it runs and why not, and regions compiled to plans of primitives."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int

from graft.backends.onednn import runtime
from graft.backends.onednn.lower import BINARY, ELTWISE, LOWER, POOLS, extents, overhang, plan_of
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.byoc.contract import Backend, Match, PatternTable
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.rewrite.pattern import Pattern, is_op, wildcard
from graft.rewrite.rule import Refusal

_PRODUCTS = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.dense", "nn.batch_matmul")
_LARGEST_RANK = 6
_ABSENT = "not installed"


def _activated(inner: Pattern) -> Pattern:
    return inner.optional(lambda x: is_op(*ELTWISE)(x))


def _fused() -> Pattern:
    """A convolution or product, and what is computed before its results are stored."""
    product = is_op(*_PRODUCTS)(wildcard(), wildcard())
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
    return _activated(_activated(biased).optional(lambda x: is_op(*BINARY)(x, wildcard())))


class OneDnn(Backend):
    """Runs regions of float32 tensors with static shapes."""

    name = "onednn"

    @property
    def version(self) -> str:  # type: ignore[override]
        try:
            return ".".join(map(str, (c_int * 3).from_address(runtime.library().dnnl_version())))
        except UserError:
            return _ABSENT

    def missing(self) -> str:
        return runtime.INSTALL if self.version == _ABSENT else ""

    def patterns(self) -> PatternTable:
        return [("fused", _fused), *((name, is_op(name)) for name in LOWER)]

    def supports(self, match: Match) -> Refusal | None:
        for node in match.nodes:
            reasons = [_why_not(value) for value in (*node.args, *node.outputs)]
            if not any(reasons) and node.op.name in _CHECKS:
                reasons.append(_CHECKS[node.op.name](node))
            if any(reasons):
                return Refusal(next(filter(None, reasons)), node)
        return None

    def compile(self, region: Graph) -> bytes:
        return plan_of(region)

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)


def _why_not(value: Value) -> str:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or not type_.is_static:
        return f"%{value.name} is {type_}, not a tensor of static shape"
    if type_.dtype is not DType.FLOAT32:
        return f"%{value.name} is {type_.dtype}, not float32"
    fits = 0 not in type_.shape and len(type_.shape) <= _LARGEST_RANK
    return "" if fits else f"%{value.name} is {type_}: empty, or of rank above {_LARGEST_RANK}"


def _binary(node: Node) -> str:
    firsts = node.args if node.op.commutative else node.args[:1]
    whole = any(extents(value) == extents(node.output) for value in firsts)
    return "" if whole else "oneDNN broadcasts the second operand alone"


def _pool(node: Node) -> str:
    attrs = node.attrs
    for axis, size in enumerate(attrs.pool_size):
        extent, before = extents(node.args[0])[2 + axis], attrs.padding[axis]
        last = (extents(node.output)[2 + axis] - 1) * attrs.strides[axis] - before
        if before >= size or last >= extent:
            return "a window lies in the padding alone"
        if getattr(attrs, "count_include_pad", False) and overhang(node, axis):
            return "a window reaches beyond the padding that it counts"
    return "its windows have gaps" if max(attrs.dilation) > 1 else ""


def _layer_norm(node: Node) -> str:
    rank, size = len(extents(node.output)), extents(node.output)[-1]
    if node.attrs.axis % rank != rank - 1 or not 2 <= rank <= 5:
        return "it is not over the last of two to five axes"
    fits = all(extents(v)[-1] == v.tensor.size == size for v in node.args[1:])
    return "" if fits else "its scale or shift is not one number per element of the last axis"


def _attention(node: Node) -> str:
    plain = type(node.attrs)(scale=node.attrs.scale) == node.attrs and len(node.inputs) == 3
    same = extents(node.args[0])[1] == extents(node.args[1])[1]
    return "" if plain and same else "it has a mask, a window, shared heads or other extras"


def _mean(node: Node) -> str:
    rank = len(extents(node.args[0]))
    spatial = sorted(axis % rank for axis in node.attrs.axes or ()) == list(range(2, rank))
    return "" if spatial and 3 <= rank <= 5 else "it is not over all spatial axes"


_CHECKS: dict[str, Callable[[Node], str]] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(POOLS, _pool),
    "nn.layer_norm": _layer_norm,
    "nn.attention": _attention,
    "mean": _mean,
    "nn.dense": lambda node: "" if len(extents(node.args[0])) > 1 else "its data is one row",
    "clip": lambda node: "" if len(node.inputs) == 1 else "its bounds are operands",
}
