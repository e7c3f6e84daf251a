"""Regions as JSON graphs: a region in, a blob out that `runtime/json_graph.py` interprets.

With a table of kernels by pattern name, every match is one node of the graph, and one call of its
kernel.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, fields, replace
from types import MappingProxyType
from typing import Any

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.annotate import tables_of
from graft.byoc.boundary import in_wished_form
from graft.byoc.candidates import Candidate, placeable
from graft.byoc.contract import Backend, Match, PatternTable
from graft.byoc.formats.operands import unfit
from graft.byoc.region import region_graph
from graft.byoc.split import pieces_of
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.literal import Literal
from graft.ir.types import TensorType
from graft.ops import OPS
from graft.rewrite.pattern import fixed_attrs, is_op
from graft.rewrite.rule import Refusal
from graft.runtime.json_graph import ALL, Interpreter, Kernel, Kernels, attributes_of, pack


class JsonBackend(Backend):
    """A backend whose code is a graph, and whose run time is an interpreter of it.

    `kernels` are functions by pattern name, called once per match: positional arguments are arrays
    for the pattern's wildcards (constants included, None if absent), keyword arguments are the
    attributes that the kernel has parameters for. By default, each operator with a kernel is a
    pattern. Define `interpreter` to prepare nodes once, or to run operators without a table."""

    kernels: Kernels = MappingProxyType({})
    interpreter: type[Interpreter] = Interpreter
    dtypes: Sequence[DType | str] = (DType.FLOAT32,)  # that the kernels compute in

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in self.kernels if name in OPS]

    def check_patterns(self, names: Sequence[str]) -> None:
        """Refuse a kernel that nothing would call, most likely a misspelt one."""
        for kernel in self.kernels:
            if kernel not in names and kernel not in OPS:
                close = _nearest(kernel, (*names, *OPS))
                suggestion = f"; did you mean {close}?" if close else ""
                raise UserError(
                    f"the kernel '{kernel}' is neither a pattern of {self.name} nor an"
                    f" operator{suggestion}"
                )

    def supports(self, match: Match) -> Refusal | None:
        """Refuse other dtypes, and attributes that the kernel has no parameter for, unless they
        have their default. Extents may be symbolic."""
        if not self.kernels:
            return None
        kernel = self.kernels.get(match.pattern)
        if kernel is None:
            raise UserError(f"the pattern '{match.pattern}' has no kernel")
        values = (*match.inputs, *match.outputs, *match.constants)
        reason = unfit(values, [DType(dtype) for dtype in self.dtypes], symbolic=True)
        if reason:
            return Refusal(reason)
        fixed = [fixed_attrs(e.formula.pattern) for e in tables_of(self) if e.name == match.pattern]
        return _unheard(match, kernel, frozenset().union(*fixed))

    def compile(self, region: Graph) -> bytes:
        if not self.kernels:
            return json_blob(region)
        calls = with_calls(region, self)
        return json_blob(in_wished_form(calls, self.limits, ("composite",)))

    def load(self, blob: bytes, threads: int | None = None) -> Interpreter:
        return self.interpreter(blob, self.kernels, threads)


def _nearest(name: str, candidates: Sequence[str]) -> str:
    """The most similar name, or nothing. Case and the prefix of an operator do not count, so that
    ONNX's `Relu` leads to `nn.relu`."""
    # of `nn.dense`, `mixed.dense` and `qnn.dense`, which their prefixes tell apart, the first
    special = sorted(candidates, key=lambda one: "." in one and not one.startswith("nn."))
    plain = {one.rpartition(".")[2].lower(): one for one in reversed(special)}
    plain.update((candidate.lower(), candidate) for candidate in candidates)
    close = difflib.get_close_matches(name.lower(), plain, n=1)
    return plain[close[0]] if close else ""


def _unheard(match: Match, kernel: Kernel, fixed: frozenset[str]) -> Refusal | None:
    """Refuse an attribute that is neither a parameter of the kernel, nor at its default, nor fixed
    by the pattern."""
    heard = attributes_of(kernel, len(match.operands)) | fixed
    for node in match.nodes:
        try:
            plain_attrs(node.attrs, node)
        except UnsupportedError as error:
            return Refusal(error.message, node)
    if ALL in heard:
        return None
    disputed = _conflicting_attrs(match.nodes) - fixed
    for node in match.nodes:
        for field in fields(node.attrs):
            value = getattr(node.attrs, field.name)
            if field.name in disputed:
                return Refusal(f"parts of {match.pattern} differ in '{field.name}'", node)
            if field.name not in heard and not _is_default(field, value, node):
                reason = f"the kernel has no parameter '{field.name}', which is {value}"
                return Refusal(reason, node)
    return None


def _conflicting_attrs(nodes: Iterable[Node]) -> set[str]:
    """Attributes with different values among the nodes of one match."""
    values: dict[str, Any] = {}
    pairs = [
        (one.name, getattr(node.attrs, one.name)) for node in nodes for one in fields(node.attrs)
    ]
    return {name for name, value in pairs if values.setdefault(name, value) != value}


def _is_default(field: Field[Any], value: Any, node: Node) -> bool:
    """Whether an attribute has its default; axes may be counted from the end."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    rank = len(node.args[0].shape or ()) if node.args else 0
    if field.name == "axis" and rank and isinstance(value, int) and isinstance(default, int):
        return value % rank == default % rank
    return bool(value == default)


def with_calls(region: Graph, backend: Backend) -> Graph:
    """A region with each match of the backend's patterns as one `composite` node.

    Its operands are those of the match, in order, and its label is the pattern's name."""
    calls = pieces_of(region, placeable(region), backend)
    composites = {call.nodes[-1]: _composite(call, region) for call in calls}
    inside = {node for call in calls for node in call.nodes}
    # A call stands where its last node does, which makes all that others read of it.
    kept = [
        composites.get(node, node)
        for node in region.nodes
        if node in composites or node not in inside
    ]
    return replace(region, nodes=tuple(kept))


def _composite(call: Candidate, region: Graph) -> Node:
    body, last = region_graph(call.nodes, region, call.pattern), call.nodes[-1]
    attrs = {"body": body, "label": call.pattern}
    return make_node("composite", call.operands, last.outputs, last.location, **attrs)


def json_blob(region: Graph) -> bytes:
    """A region as a JSON graph, in which a `composite` is a node of its label's name."""
    constants = {value.name: literal.array for value, literal in region.constants.items()}
    description = {
        "inputs": [_tensor(value) for value in region.inputs],
        "nodes": [_node(node) for node in placeable(region)],
        "outputs": [value.name for value in region.outputs],
    }
    return pack(description, constants)


def _tensor(value: Value) -> dict[str, Any]:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        raise UnsupportedError(
            f"%{value.name} is {type_}; a JSON graph wants tensors of known rank"
        )
    shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return {"name": value.name, "dtype": str(type_.dtype), "shape": shape}


def _node(node: Node) -> dict[str, Any]:
    is_call = node.op.name == "composite"
    return {
        "op": node.attrs.label if is_call else node.op.name,
        "inputs": [None if value is None else value.name for value in node.inputs],
        "outputs": [_tensor(value) for value in node.outputs],
        **(_parts(node.attrs.body) if is_call else {"attrs": plain_attrs(node.attrs, node)}),
    }


def _parts(body: Graph) -> dict[str, Any]:
    """The nodes of a call, and the attributes on which they agree."""
    parts = [_node(node) for node in placeable(body)]
    disputed = _conflicting_attrs(placeable(body))
    every = [(name, value) for part in parts for name, value in part["attrs"].items()]
    return {"attrs": dict(one for one in every if one[0] not in disputed), "parts": parts}


def plain_attrs(attrs: Attrs, node: Node) -> dict[str, Any]:
    """Attributes as JSON values."""
    return {field.name: _plain(getattr(attrs, field.name), node) for field in fields(attrs)}


def _plain(value: Any, node: Node) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, node) for item in value]
    if isinstance(value, Literal):
        return value.array.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(
        f"an attribute of {node.op.name} is {type(value).__name__}, which JSON has not",
        node.location,
    )
