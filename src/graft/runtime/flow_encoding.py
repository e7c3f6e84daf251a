"""Flows as JSON: a flow and its programs in, plain values out, and back.

Constants and object code are told by their numbers in tables that all programs of a flow share,
and lie in sections of their own. What is decoded may still contradict itself, which
`FlowProgram.validate` finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np

from graft.base.dims import Dim, parse_dim
from graft.base.dtypes import Array, DType
from graft.runtime.encoding import (
    decode_graph,
    decode_integer,
    decode_integers,
    decode_natural,
    decode_place,
    decode_program,
    decode_tensor,
    decode_text,
    encode_graph,
    encode_place,
    encode_program,
    encode_tensor,
)
from graft.runtime.flow import (
    Choice,
    Demand,
    Evaluation,
    Flow,
    FlowStep,
    Handing,
    Kind,
    Measuring,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    Trimming,
)
from graft.runtime.flow_program import FlowProgram
from graft.runtime.lookup import Table
from graft.runtime.memory import aligned_copy
from graft.runtime.program import Program, Target
from graft.runtime.shaped import ShapedProgram
from graft.runtime.shaped_encoding import decode_shaped, encode_dim, encode_shaped

_STEPS: Mapping[str, type[FlowStep]] = {
    "stretch": Stretch,
    "evaluation": Evaluation,
    "handing": Handing,
    "measuring": Measuring,
    "offload": Offload,
    "reading": Reading,
    "trimming": Trimming,
    "demand": Demand,
    "choice": Choice,
    "repetition": Repetition,
    "sweep": Sweep,
}
_STEP_NAMES = {kind: name for name, kind in _STEPS.items()}


@dataclass
class Pool:
    """What the programs of a file share, each thing once."""

    constants: list[Array] = field(default_factory=list)
    objects: list[bytes] = field(default_factory=list)
    programs: list[dict[str, Any]] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)

    def constant(self, array: Array) -> int:
        """The number of a constant. Equal ones are one: stretches have copies of their own."""
        stored = _storable(array)
        digest = hashlib.sha256(stored.reshape(-1).view(np.uint8).data).digest()
        key = stored.dtype, stored.shape, digest
        if key not in self._numbers:
            self._numbers[key] = len(self.constants)
            self.constants.append(stored)
        return self._numbers[key]

    def code(self, code: bytes) -> int:
        """The number of an object."""
        if code not in self._numbers:
            self._numbers[code] = len(self.objects)
            self.objects.append(code)
        return self._numbers[code]

    def program(self, program: Program | ShapedProgram) -> int:
        """The number of a program."""
        shaped = isinstance(program, ShapedProgram)
        self.programs.append(
            {
                **self._encoded(program),
                "shaped": shaped,
                "constants": [self.constant(array) for array in program.constants],
                "code": [self.code(code) for code in program.objects],
            }
        )
        return len(self.programs) - 1

    def _encoded(self, program: Program | ShapedProgram) -> dict[str, Any]:
        if isinstance(program, ShapedProgram):
            return encode_shaped(program)
        return encode_program(program, self.constant)


def _storable(array: Array) -> Array:
    return array if array.flags.c_contiguous else aligned_copy(np.asarray(array))


def encode_flow_program(program: FlowProgram, pool: Pool) -> dict[str, Any]:
    """The flow and what its outputs are called."""
    return {
        "output_names": list(program.output_names),
        "flow": encode_flow(program.flow, pool),
    }


def encode_flow(flow: Flow, pool: Pool) -> dict[str, Any]:
    return {
        "name": flow.name,
        "kinds": [_encode_kind(kind) for kind in flow.kinds],
        "inputs": list(flow.inputs),
        "constants": [
            [number, encode_tensor(array, pool.constant)] for number, array in flow.constants
        ],
        "steps": [_encode_step(step, pool) for step in flow.steps],
        "outputs": list(flow.outputs),
        "inherited": list(flow.inherited),
    }


def _encode_kind(kind: Kind) -> list[Any]:
    shape = None if kind.shape is None else [encode_dim(dim) for dim in kind.shape]
    return [kind.name, None if kind.dtype is None else str(kind.dtype), shape, kind.type]


def _encode_step(step: FlowStep, pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = {"step": _STEP_NAMES[type(step)]}
    for one in fields(step):
        value = getattr(step, one.name)
        match one.name:
            case "program":
                value = pool.program(value)
            case "branches":
                value = [encode_flow(branch, pool) for branch in value]
            case "body":
                value = encode_flow(value, pool)
            case "graph":
                value = encode_graph(value, pool.constant)
            case "place":
                value = encode_place(value)
            case "chunk":
                value = encode_dim(value)
            case "sizes" if value is not None:
                value = [encode_dim(dim) for dim in value]
            case "table" if value is not None:
                value = [str(value.dtype), value.values, value.keys, value.default]
        found[one.name] = list(value) if isinstance(value, tuple) else value
    return found


@dataclass(frozen=True, eq=False)
class Shared:
    """What a file's flows refer to."""

    constants: Sequence[Array]
    programs: Sequence[Program | ShapedProgram]


def decode_programs(
    data: Sequence[Any], target: Target, constants: Sequence[Array], objects: Sequence[bytes]
) -> list[Program | ShapedProgram]:
    """The programs of a file's flows."""
    found: list[Program | ShapedProgram] = []
    dims = cache(_parsed)
    for item in data:
        own = tuple(constants[number] for number in _naturals(item["constants"]))
        code = tuple(objects[number] for number in _naturals(item["code"]))
        if item["shaped"]:
            found.append(decode_shaped(item, target, own, code, dims))
        else:
            found.append(decode_program(item, target, own, code, constants))
    return found


def decode_flow_program(data: Mapping[str, Any], target: Target, shared: Shared) -> FlowProgram:
    names = tuple(decode_text(name) for name in data["output_names"])
    return FlowProgram(target, decode_flow(data["flow"], shared), names)


def decode_flow(data: Mapping[str, Any], shared: Shared) -> Flow:
    dims = cache(_parsed)
    return Flow(
        decode_text(data["name"]),
        tuple(_decode_kind(item, dims) for item in data["kinds"]),
        decode_integers(data["inputs"]),
        tuple(
            (decode_integer(number), decode_tensor(constant, shared.constants))
            for number, constant in data["constants"]
        ),
        tuple(_decode_step(item, shared) for item in data["steps"]),
        decode_integers(data["outputs"]),
        tuple(decode_text(name) for name in data["inherited"]),
    )


def _decode_kind(data: Sequence[Any], dims: Callable[[Any], Dim]) -> Kind:
    name, dtype, shape, *type_ = data  # files of older releases tell no types
    return Kind(
        decode_text(name),
        None if dtype is None else DType(dtype),
        None if shape is None else tuple(map(dims, shape)),
        "".join(map(decode_text, type_)),
    )


def _decode_step(data: Mapping[str, Any], shared: Shared) -> FlowStep:
    kind = _STEPS[data["step"]]
    return kind(**{one.name: _decode_field(one.name, data, shared) for one in fields(kind)})


def _decode_field(name: str, data: Mapping[str, Any], shared: Shared) -> Any:
    # Files of older releases have no tables.
    value: Any = data.get(name) if name == "table" else data[name]
    match name:
        case "program":
            return shared.programs[decode_natural(value)]
        case "branches":
            taken_if_false, taken_if_true = value
            return decode_flow(taken_if_false, shared), decode_flow(taken_if_true, shared)
        case "body":
            return decode_flow(value, shared)
        case "graph":
            return decode_graph(value, shared.constants)
        case "place":
            return decode_place(value)
        case "function" | "label" | "symbol" | "operation" | "message":
            return decode_text(value)
        case "backwards" | "result_backwards":
            return tuple(bool(item) for item in value)
        case "limit" | "condition" | "value" | "counts" | "axis":
            return None if value is None else decode_integer(value)
        case "inputs":
            return tuple(None if item is None else decode_integer(item) for item in value)
        case "with_axis" | "wanted":
            return bool(value)
        case "chunk":
            return _parsed(value)
        case "sizes":
            return None if value is None else tuple(map(_parsed, value))
        case "table":
            return None if value is None else _decode_table(value)
    return decode_integers(value)


def _decode_table(data: Sequence[Any]) -> Table:
    dtype, values, keys, default = data
    for item in (*values, *(keys or ()), *(() if default is None else (default,))):
        if type(item) not in (str, int, float):
            raise ValueError(f"{item!r} is neither a string nor a number")
    return Table(DType(dtype), tuple(values), None if keys is None else tuple(keys), default)


def _naturals(data: Sequence[Any]) -> list[int]:
    return [decode_natural(item) for item in data]


def _parsed(data: Any) -> Dim:
    return parse_dim(data) if isinstance(data, str) else decode_integer(data)
