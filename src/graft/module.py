"""What `graft.compile` returns: a model that runs, and the answer to what runs where.

The interface is the one that users of ONNX Runtime have in their fingers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from graft.base.dtypes import DType, dtype_of
from graft.base.errors import UserError
from graft.ir.evaluate import Data
from graft.ir.graph import Graph, Value
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type


class Program(Protocol):
    """Inputs in order in, outputs in order out."""

    def __call__(self, inputs: Sequence[Data]) -> list[Data]: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output: name, shape (symbolic extents as strings) and type in ONNX's words."""

    name: str
    shape: list[int | str | None] | None
    type: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Which backend runs how many nodes, and why some run on the reference evaluator."""

    nodes: Mapping[str, int]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "; ".join(f"{backend}: {count} nodes" for backend, count in self.nodes.items())

    def to_json(self) -> str:
        return json.dumps({"nodes": dict(self.nodes), "reference": dict(self.reasons)})


@dataclass(frozen=True)
class Module:
    """A compiled model."""

    graph: Graph
    placement: Placement
    program: Program

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return [_argument(value.name, value.type) for value in self.graph.inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        pairs = zip(self.graph.output_names, self.graph.outputs, strict=True)
        return [_argument(name, value.type) for name, value in pairs]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Data]:
        """Run on named inputs; gives the named outputs, or all of them for None."""
        wanted = self._wanted(output_names)
        results = self.program(self._ordered(feeds))
        return [results[position] for position in wanted]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to a `.graft` file, which `graft.load` reads."""
        self.program.save(path)

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        known = list(self.graph.output_names)
        if names is None:
            return list(range(len(known)))
        for name in names:
            if name not in known:
                raise UserError(f"there is no output '{name}'", hint=f"outputs: {_listed(known)}")
        return [known.index(name) for name in names]

    def _ordered(self, feeds: Mapping[str, Any]) -> list[Data]:
        known = [value.name for value in self.graph.inputs]
        for name in feeds:
            if name not in known:
                raise UserError(f"there is no input '{name}'", hint=f"inputs: {_listed(known)}")
        missing = [name for name in known if name not in feeds]
        if missing:
            raise UserError(
                f"the input '{missing[0]}' is missing", hint=f"inputs: {_listed(known)}"
            )
        return [_fed(value, feeds[value.name]) for value in self.graph.inputs]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _fed(value: Value, data: Any) -> Data:
    """The data for an input, refused where its type does not fit."""
    type_ = value.type
    if isinstance(type_, OptionalType) and data is None:
        return None
    element = type_.element if isinstance(type_, OptionalType) else type_
    if not isinstance(element, TensorType):
        return data
    array = np.asarray(data)
    if array.dtype.kind in "US":
        array = array.astype(object)
    actual = TensorType(dtype_of(array.dtype), tuple(array.shape))
    if actual.dtype != element.dtype:
        hint = f"convert it with .astype('{element.dtype}')"
        raise UserError(f"the input '{value.name}' wants {element}, not {actual}", hint=hint)
    if not _fits(element, actual):
        raise UserError(f"the input '{value.name}' wants {element}, not {actual}")
    return array


def _fits(wanted: TensorType, actual: TensorType) -> bool:
    if wanted.shape is None:
        return True
    if actual.shape is None or len(wanted.shape) != len(actual.shape):
        return False
    pairs = zip(wanted.shape, actual.shape, strict=True)
    return all(dim == extent or not isinstance(dim, int) for dim, extent in pairs)


_ONNX_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


def _argument(name: str, type_: Type) -> Argument:
    shape: list[int | str | None] | None = None
    if isinstance(type_, TensorType) and type_.shape is not None:
        shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return Argument(name, shape, _onnx_type(type_))


def _onnx_type(type_: Type) -> str:
    if isinstance(type_, TensorType):
        return f"tensor({_ONNX_NAMES.get(type_.dtype, type_.dtype)})"
    if isinstance(type_, SequenceType):
        return f"seq({_onnx_type(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({_onnx_type(type_.element)})"
    assert isinstance(type_, MapType)
    return f"map({_ONNX_NAMES.get(type_.key, type_.key)},{_onnx_type(type_.value)})"
