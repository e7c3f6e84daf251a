"""Regions as JSON graphs, at run time: a blob in, an interpreter that walks it out.

The blob is a JSON description followed by the constants' bytes, aligned, so that they are used
where they lie. A node is an operator or a whole match of a pattern, and `Interpreter` calls the
kernel of that name, or what `prepare` of a class derived from it gives. Everything that depends on
constants and shapes alone can be done once, in `prepare`.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import numpy as np

from graft.base.callbacks import author_error
from graft.base.dtypes import Array, DType, array_types, dtype_of
from graft.base.errors import BackendError, CrashedError, UserError
from graft.runtime.memory import aligned_size
from graft.runtime.spaces import LostDeviceError

MAGIC = b"graft-json-graph 1\n"


@dataclass(frozen=True, slots=True)
class JsonTensor:
    """A value of the graph: its name, element type and shape; symbolic extents are text."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, of a tensor for which it is known before the run."""
        return tuple(map(int, self.shape))


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A call of an operator. `inputs` are names of values, None where an operand is absent.

    A whole match has its pattern's name for `op`, its operands in the order of the pattern's
    wildcards, and the nodes that it consists of as `parts`. Its attributes are those of all parts
    together, without those that parts of it disagree on."""

    op: str
    inputs: tuple[str | None, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[JsonTensor, ...]
    parts: tuple[JsonNode, ...] = ()

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators of a match, by which its optional parts are known."""
        return tuple(part.op for part in self.parts)


@dataclass(frozen=True)
class JsonGraph:
    """A region: what it reads, what it does, what it gives; constants by name."""

    inputs: tuple[JsonTensor, ...]
    nodes: tuple[JsonNode, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]


def pack(description: Mapping[str, Any], constants: Mapping[str, Array]) -> bytes:
    """A description and constants as one blob."""
    entries: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in constants.items():
        shape = list(array.shape)
        entries[name] = {"dtype": dtype_of(array.dtype), "shape": shape, "offset": offset}
        offset = aligned_size(offset + array.nbytes)
    text = json.dumps({**description, "constants": entries}).encode()
    start = aligned_size(len(MAGIC) + 8 + len(text))
    blob = bytearray(start + offset)
    blob[: len(MAGIC)] = MAGIC
    blob[len(MAGIC) : len(MAGIC) + 8] = len(text).to_bytes(8, "little")
    blob[len(MAGIC) + 8 : len(MAGIC) + 8 + len(text)] = text
    for name, array in constants.items():
        at = start + entries[name]["offset"]
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
        name: _constant(view[start:], entry) for name, entry in described["constants"].items()
    }
    return JsonGraph(
        tuple(_tensor(item) for item in described["inputs"]),
        tuple(_node(item) for item in described["nodes"]),
        tuple(described["outputs"]),
        constants,
    )


def _constant(data: memoryview, entry: Mapping[str, Any]) -> Array:
    dtype, shape = DType(entry["dtype"]).numpy, tuple(entry["shape"])
    count = math.prod(shape)
    array = np.frombuffer(data, dtype, count, entry["offset"]) if count else np.empty(0, dtype)
    return array.reshape(shape)


def _tensor(item: Mapping[str, Any]) -> JsonTensor:
    return JsonTensor(item["name"], DType(item["dtype"]), tuple(item["shape"]))


def _node(item: Mapping[str, Any]) -> JsonNode:
    outputs = tuple(_tensor(output) for output in item["outputs"])
    parts = tuple(_node(part) for part in item.get("parts", ()))
    return JsonNode(item["op"], tuple(item["inputs"]), item["attrs"], outputs, parts)


Action = Callable[[Sequence["Array | None"]], "Array | Sequence[Array]"]
Kernel = Callable[..., "Array | Sequence[Array]"]
Kernels = Mapping[str, Kernel]  # by the name of a pattern or operator

ALL = "**"  # what `attributes_of` gives for a kernel that takes whatever attributes there are


def attributes_of(kernel: Kernel, operands: int) -> frozenset[str]:
    """The names of the parameters that a kernel has beyond its operands: attributes that it takes.

    Functions that tell nothing about their parameters, as NumPy's `ufunc`s, take none."""
    further = _parameters(kernel, operands)
    return frozenset(ALL if one.kind is Parameter.VAR_KEYWORD else one.name for one in further)


def _parameters(kernel: Kernel, operands: int) -> list[Parameter]:
    """The parameters of a kernel beyond its operands."""
    try:
        types = (
            () if isinstance(kernel, np.ufunc) else inspect.signature(kernel).parameters.values()
        )
    except (TypeError, ValueError):
        types = ()
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    positional = [one for one in types if one.kind in by_position]
    named = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    return [*positional[operands:], *(one for one in types if one.kind in named)]


def cast(data: Array, dtype: str) -> Array:
    """The kernel of the conversion that floats go through at the border of a region."""
    return data.astype(DType(dtype).numpy)


def layout_transform(data: Array, src_layout: str, dst_layout: str) -> Array:
    """The kernel of the conversion that images go through there."""
    block = re.fullmatch(r"NCHW(\d+)c", src_layout)
    if src_layout == "NHWC":
        data = data.transpose(0, 3, 1, 2)
    elif block is not None:
        batch, blocks, rows, columns, inner = data.shape
        data = data.transpose(0, 1, 4, 2, 3).reshape(batch, blocks * inner, rows, columns)
    block = re.fullmatch(r"NCHW(\d+)c", dst_layout)
    if dst_layout == "NHWC":
        data = data.transpose(0, 2, 3, 1)
    elif block is not None:
        batch, channels, rows, columns = data.shape
        inner = int(block[1])
        data = data.reshape(batch, channels // inner, inner, rows, columns)
        data = data.transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(data)


CONVERSIONS: Kernels = {"cast": cast, "layout_transform": layout_transform}


class Interpreter:
    """Runs a JSON graph node by node: calls the kernel of a node's name with its operands.

    A kernel's further parameters are given the attributes of the same names, `node` the
    `JsonNode`, and `threads` the threads that the user allows (None for one per core). To do
    something once instead of in every call, derive from this class and define `prepare`."""

    def __init__(
        self, blob: bytes | memoryview, kernels: Kernels | None = None, threads: int | None = None
    ) -> None:
        self.graph = unpack(blob)
        self.kernels = kernels or {}
        self.threads = threads
        self._actions = [(node, self.prepare(node)) for node in self.graph.nodes]

    def prepare(self, node: JsonNode) -> Action:
        """What runs a node: a function of its operands (None where absent) to its results.

        Called once, when the region is loaded. Constants among the operands are in
        `self.graph.constants` already.
        """
        kernel = self.kernels.get(node.op) or CONVERSIONS.get(node.op)
        if kernel is None:
            raise NotImplementedError(f"there is no kernel for {node.op}")
        known = {**node.attrs, "node": node, "threads": self.threads}
        _check_parameters(kernel, node, known)
        parameters = attributes_of(kernel, len(node.inputs))
        arguments = dict(node.attrs) if ALL in parameters else {}
        arguments.update((name, value) for name, value in known.items() if name in parameters)
        return lambda operands: kernel(*operands, **arguments)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        values: dict[str, Array] = dict(self.graph.constants)
        for tensor, array in zip(self.graph.inputs, inputs, strict=True):
            values[tensor.name] = array
        for node, action in self._actions:
            operands = [None if name is None else values[name] for name in node.inputs]
            try:
                results = action(operands)
            except (BackendError, CrashedError, LostDeviceError, TimeoutError):
                raise
            except Exception as error:
                raise self._raised_error(node, action, operands, error) from error
            outputs = results if isinstance(results, tuple | list) else (results,)
            if len(outputs) != len(node.outputs) or any(result is None for result in outputs):
                raise TypeError(_miscount(node, outputs))
            for tensor, result in zip(node.outputs, outputs, strict=True):
                values[tensor.name] = np.asarray(result)
        return [values[name] for name in self.graph.outputs]

    def _raised_error(
        self, node: JsonNode, action: Action, operands: Sequence[Array | None], error: Exception
    ) -> BackendError:
        """What a kernel raised, as an error that names the call among those of the region."""
        parts = f" ({'+'.join(node.ops)})" if node.ops not in ((), (node.op,)) else ""
        result_names = ", ".join(f"%{tensor.name}" for tensor in node.outputs)
        what = f"the kernel '{node.op}'{parts} for {result_names}"
        kernel = self.kernels.get(node.op, action)
        return author_error(what, kernel, error, array_types(operands))


def _check_parameters(kernel: Kernel, node: JsonNode, arguments: Mapping[str, Any]) -> None:
    """Refuse a kernel that needs what a node has not."""
    for one in _parameters(kernel, len(node.inputs)):
        is_required = one.kind is not Parameter.VAR_KEYWORD and one.default is Parameter.empty
        if is_required and one.name not in arguments:
            operators = "+".join(node.ops) or node.op
            attrs = ", ".join(node.attrs) or "no attributes"
            raise TypeError(
                f"the kernel '{node.op}' has a parameter '{one.name}', which is neither one of"
                f" {len(node.inputs)} operands nor an attribute: {operators} has {attrs}"
                " (beside node and threads)"
            )


def _miscount(node: JsonNode, results: Sequence[Array | None]) -> str:
    if any(result is None for result in results):
        return f"the kernel '{node.op}' returned None instead of an array"
    count = len(node.outputs)
    return f"the kernel '{node.op}' returned a tuple or list of {len(results)}, not of {count}"
