"""Regions as JSON graphs, at run time: a blob in, an interpreter that walks it out.

The blob is a JSON description followed by the constants' bytes, aligned, so that they are used
where they lie. A backend derives from `Interpreter` and says what each operator does; everything
that depends on constants and shapes alone can be prepared once, in `prepare`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import UserError
from graft.runtime.memory import aligned_size

MAGIC = b"graft-json-graph 1\n"


@dataclass(frozen=True, slots=True)
class JsonTensor:
    """A value of the graph: its name, element type and shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A call of an operator. `inputs` are names of values, None where an operand is absent."""

    op: str
    inputs: tuple[str | None, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[JsonTensor, ...]


@dataclass(frozen=True)
class JsonGraph:
    """A region: what it reads, what it does, what it gives; constants by name."""

    inputs: tuple[JsonTensor, ...]
    nodes: tuple[JsonNode, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]


def pack(description: Mapping[str, Any], constants: Mapping[str, Array]) -> bytes:
    """A description and constants as one blob."""
    places: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in constants.items():
        shape = list(array.shape)
        places[name] = {"dtype": dtype_of(array.dtype), "shape": shape, "offset": offset}
        offset = aligned_size(offset + array.nbytes)
    text = json.dumps({**description, "constants": places}).encode()
    start = aligned_size(len(MAGIC) + 8 + len(text))
    blob = bytearray(start + offset)
    blob[: len(MAGIC)] = MAGIC
    blob[len(MAGIC) : len(MAGIC) + 8] = len(text).to_bytes(8, "little")
    blob[len(MAGIC) + 8 : len(MAGIC) + 8 + len(text)] = text
    for name, array in constants.items():
        at = start + places[name]["offset"]
        blob[at : at + array.nbytes] = np.ascontiguousarray(array).tobytes()
    return bytes(blob)


def unpack(blob: bytes | memoryview) -> JsonGraph:
    """The graph of a blob, with constants that are views of it."""
    view = memoryview(blob)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise UserError("this is no JSON graph of a region")
    body = len(MAGIC) + 8
    length = int.from_bytes(view[len(MAGIC) : body], "little")
    described = json.loads(bytes(view[body : body + length]))
    start = aligned_size(body + length)
    constants = {
        name: _constant(view[start:], place) for name, place in described["constants"].items()
    }
    return JsonGraph(
        tuple(_tensor(item) for item in described["inputs"]),
        tuple(_node(item) for item in described["nodes"]),
        tuple(described["outputs"]),
        constants,
    )


def _constant(data: memoryview, place: Mapping[str, Any]) -> Array:
    dtype, shape = DType(place["dtype"]).numpy, tuple(place["shape"])
    count = math.prod(shape)
    array = np.frombuffer(data, dtype, count, place["offset"]) if count else np.empty(0, dtype)
    return array.reshape(shape)


def _tensor(item: Mapping[str, Any]) -> JsonTensor:
    return JsonTensor(item["name"], DType(item["dtype"]), tuple(item["shape"]))


def _node(item: Mapping[str, Any]) -> JsonNode:
    outputs = tuple(_tensor(output) for output in item["outputs"])
    return JsonNode(item["op"], tuple(item["inputs"]), item["attrs"], outputs)


Action = Callable[[Sequence["Array | None"]], "Array | Sequence[Array]"]


class Interpreter:
    """Runs a JSON graph node by node. Derive from it and define `prepare`."""

    def __init__(self, blob: bytes | memoryview) -> None:
        self.graph = unpack(blob)
        self._actions = [(node, self.prepare(node)) for node in self.graph.nodes]

    def prepare(self, node: JsonNode) -> Action:
        """What runs a node: a function of its operands (None where absent) to its results.

        Called once, when the region is loaded. Constants among the operands are in
        `self.graph.constants` already.
        """
        raise NotImplementedError(f"{type(self).__name__} does not run {node.op}")

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        values: dict[str, Array] = dict(self.graph.constants)
        for tensor, array in zip(self.graph.inputs, inputs, strict=True):
            values[tensor.name] = array
        for node, action in self._actions:
            results = action([None if name is None else values[name] for name in node.inputs])
            found = (results,) if isinstance(results, np.ndarray) else results
            for tensor, result in zip(node.outputs, found, strict=True):
                values[tensor.name] = result
        return [values[name] for name in self.graph.outputs]
