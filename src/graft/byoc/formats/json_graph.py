"""Regions as JSON graphs: a region in, a blob out that `runtime/json_graph.py` interprets."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.types import TensorType
from graft.runtime.json_graph import Interpreter, pack


class JsonBackend(Backend):
    """A backend whose code is a graph, and whose run time is an interpreter of it."""

    interpreter: type[Interpreter] = Interpreter

    def compile(self, region: Graph) -> bytes:
        return json_blob(region)

    def load(self, blob: bytes) -> Interpreter:
        return self.interpreter(blob)


def json_blob(region: Graph) -> bytes:
    """A region with static shapes as a JSON graph."""
    constants = {n.output.name: n.attrs.value.array for n in region.nodes if _is_constant(n)}
    description = {
        "inputs": [_tensor(value) for value in region.inputs],
        "nodes": [_node(node) for node in region.nodes if not _is_constant(node)],
        "outputs": [value.name for value in region.outputs],
    }
    return pack(description, constants)


def _is_constant(node: Node) -> bool:
    return node.op.name == "constant"


def _tensor(value: Value) -> dict[str, Any]:
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.is_static or type_.shape is None:
        raise UnsupportedError(f"%{value.name} is {type_}; a JSON graph wants static tensors")
    return {"name": value.name, "dtype": str(type_.dtype), "shape": list(type_.shape)}


def _node(node: Node) -> dict[str, Any]:
    return {
        "op": node.op.name,
        "inputs": [None if value is None else value.name for value in node.inputs],
        "attrs": plain_attrs(node.attrs, node),
        "outputs": [_tensor(value) for value in node.outputs],
    }


def plain_attrs(attrs: Attrs, node: Node) -> dict[str, Any]:
    """Attributes as JSON has them."""
    return {field.name: _plain(getattr(attrs, field.name), node) for field in fields(attrs)}


def _plain(value: Any, node: Node) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, node) for item in value]
    if isinstance(value, Literal):
        return value.array.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(
        f"an attribute of {node.op.name} is {type(value).__name__}, which JSON has not", node.place
    )
