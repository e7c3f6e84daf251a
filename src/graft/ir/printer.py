"""Graph -> text. The grammar is in `docs/ir.md`; `graft.ir.parser` reads it back.

Large constants are printed as references; `to_text` returns the arrays beside the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from graft.base.dims import IndexExpr
from graft.base.dtypes import Array, DType
from graft.base.errors import InternalError, Location
from graft.base.names import quoted
from graft.ir.attrs import per_class
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType

# Constants with more elements are printed by reference.
INLINE_LIMIT = 16

_BARE = re.compile(r"[A-Za-z0-9_./]+\Z")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_TYPES = (TensorType, SequenceType, OptionalType, MapType)


@dataclass(frozen=True, slots=True)
class Text:
    """A printed graph and the constants that it refers to by name."""

    text: str
    constants: dict[str, Array]

    def __str__(self) -> str:
        return self.text


def to_text(graph: Graph, with_defaults: bool = False) -> Text:
    """Print a graph; attributes that are as they are by default only if that is asked for."""
    sources = {node.location.source for node in graph.walk() if node.location is not None}
    printer = _Printer(next(iter(sources)) if len(sources) == 1 else "", with_defaults)
    printer.graph(graph, "")
    return Text("".join(printer.parts) + "\n", printer.constants)


@cache
def quoted_name(name: str) -> str:
    """A name as the text form writes it: bare where it can be."""
    return name if _BARE.match(name) else quoted(name)


@per_class
def _defaults(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, _default(field)) for field in fields(cls))


def _differs(value: Any, default: Any) -> bool:
    """Whether an attribute has to be written: -0.0 is not 0.0."""
    return value != default or (isinstance(value, float) and repr(value) != repr(default))


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


class _Printer:
    def __init__(self, source: str, with_defaults: bool) -> None:
        self.source = source  # of all nodes, where it is the same
        self.with_defaults = with_defaults
        self.parts: list[str] = []
        self.constants: dict[str, Array] = {}

    def graph(self, graph: Graph, indent: str) -> None:
        inner = indent + "  "
        inputs = ", ".join(_typed(value) for value in graph.inputs)
        source = f" in {quoted(self.source)}" if self.source and not indent else ""
        self.parts.append(f"graph @{quoted_name(graph.name)}({inputs}){source} {{\n")
        for node in graph.nodes:
            self.node(node, inner)
        outputs = ", ".join(
            _returned(value, name)
            for value, name in zip(graph.outputs, graph.output_names, strict=True)
        )
        self.parts.append(f"{inner}return {outputs}\n{indent}}}")

    def node(self, node: Node, indent: str) -> None:
        results = ", ".join([_typed(value) for value in node.outputs])
        operands = ", ".join(
            ["none" if value is None else f"%{quoted_name(value.name)}" for value in node.inputs]
        )
        self.parts.append(f"{indent}{results} = {node.op.name}({operands})")
        self.attributes(node, indent)
        if node.location is not None:
            self.parts.append(_location(node.location, self.source))
        self.parts.append("\n")

    def attributes(self, node: Node, indent: str) -> None:
        attrs = node.attrs
        explicit = [
            (name, value)
            for name, default in _defaults(type(attrs))
            if ((value := getattr(attrs, name)) is not default and _differs(value, default))
            or self.with_defaults
        ]
        if not explicit:
            return
        opening = " {"
        for name, value in explicit:
            self.parts.append(f"{opening}{name}=")
            self.value(value, node, indent)
            opening = ", "
        self.parts.append("}")

    def value(self, value: Any, node: Node, indent: str) -> None:
        if isinstance(value, Graph):
            self.graph(value, indent)
        elif isinstance(value, Literal):
            self.parts.append(self.literal(value, node.output.name if node.outputs else "c"))
        elif isinstance(value, tuple):
            opening = "["
            for item in value:
                self.parts.append(opening)
                self.value(item, node, indent)
                opening = ", "
            self.parts.append("]" if value else "[]")
        else:
            self.parts.append(scalar_text(value))

    def literal(self, literal: Literal, name: str) -> str:
        array = literal.array
        if array.size <= INLINE_LIMIT and _prints_exactly(array):
            items = ", ".join(scalar_text(_python(item)) for item in array.flat)
            return f"dense<{literal.type}: {items}>" if items else f"dense<{literal.type}>"
        key = name
        number = 0
        while key in self.constants and self.constants[key] is not array:
            number += 1
            key = f"{name}_{number}"
        self.constants[key] = array
        return f"dense<{literal.type} @{quoted_name(key)}>"


def _python(item: Any) -> Any:
    if isinstance(item, (str, bool, int)):
        return item
    if isinstance(item, np.generic) and item.dtype.kind in "buif":
        return item.item()
    # ml_dtypes: integers narrower than a byte and small floats convert by value
    return int(item) if "int" in item.dtype.name else float(item)


def _prints_exactly(array: Array) -> bool:
    if array.dtype.kind == "c":
        return False
    if array.dtype.kind in "biuO" or "int" in array.dtype.name:
        return True
    return not np.isnan(array.astype(np.float64)).any()


def _typed(value: Value) -> str:
    return f"%{quoted_name(value.name)}: {value.type}"


def _returned(value: Value, name: str) -> str:
    alias = "" if value.name == name else f" as {quoted(name)}"
    return f"%{quoted_name(value.name)}{alias}"


def _location(location: Location, common: str) -> str:
    source = f" in {quoted(location.source)}" if location.source != common else ""
    plain = _WORD.match(location.kind)
    kind = f" {location.kind if plain else quoted(location.kind)}" if location.kind else ""
    return f" at{kind} {quoted(location.node)}{source}"


def scalar_text(value: Any) -> str:
    """An attribute value that is not a list, a graph or a tensor."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return quoted(value.value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"{value}"
    if isinstance(value, IndexExpr):
        return f"`{value}`"
    if isinstance(value, _TYPES):
        return str(value)
    raise InternalError(f"cannot print a {type(value).__name__}: {value!r}")
