"""Programs as JSON: a program in, plain values out, and back.

Constants and object code are not part of it: they lie in sections of their own. Only strings, which
have no place there, are told among the plain values. What is decoded may still contradict itself,
which `Program.validate` finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dims import Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import Place
from graft.runtime.evaluated import EvaluatedGraph
from graft.runtime.guards import Guard
from graft.runtime.program import (
    Arena,
    BufferRef,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
    Program,
    PythonStep,
    Remote,
    RemoteTensor,
    Scratch,
    Step,
    Target,
    TensorSpec,
    Transfer,
)

_REFERENCES: Mapping[str, type[BufferRef | Remote]] = {
    "input": Input,
    "output": Output,
    "constant": Constant,
    "arena": Arena,
    "scratch": Scratch,
    "remote": Remote,
}
_REFERENCE_NAMES = {kind: name for name, kind in _REFERENCES.items()}


# Puts an array among the constants of a file, and tells its number there.
Store = Callable[[Array], int]


def encode_program(program: Program, store: Store) -> dict[str, Any]:
    """A program without its code and its own constants; `store` takes those of graphs."""
    return {
        "inputs": [encode_spec(spec) for spec in program.inputs],
        "outputs": [encode_spec(spec) for spec in program.outputs],
        "arena_bytes": program.arena_bytes,
        "scratch_bytes": program.scratch_bytes,
        "threads": program.threads,
        "remotes": [encode_remote(remote) for remote in program.remotes],
        "steps": [encode_step(step, store) for step in program.steps],
        "guards": [encode_guard(guard) for guard in program.guards],
    }


def decode_program(
    data: Mapping[str, Any],
    target: Target,
    constants: tuple[Array, ...],
    objects: tuple[bytes, ...],
    stored: Sequence[Array],
) -> Program:
    """`stored` are the constants of the whole file."""
    arena_bytes, scratch_bytes = decode_integers([data["arena_bytes"], data["scratch_bytes"]])
    return Program(
        target=target,
        inputs=tuple(decode_spec(item) for item in data["inputs"]),
        outputs=tuple(decode_spec(item) for item in data["outputs"]),
        steps=tuple(decode_step(item, stored) for item in data["steps"]),
        constants=constants,
        objects=objects,
        arena_bytes=arena_bytes,
        scratch_bytes=scratch_bytes,
        threads=decode_threads(data.get("threads")),
        remotes=tuple(decode_remote(item) for item in data.get("remotes", ())),
        guards=tuple(decode_guard(item, decode_integer) for item in data.get("guards", ())),
    )


def encode_guard(guard: Guard) -> list[Any]:
    extents = [dim if isinstance(dim, int) else str(dim) for dim in (guard.extent, guard.count)]
    place = encode_place(guard.place or Place())
    return [*extents, guard.axis, guard.wraps, *place, *([guard.message] if guard.message else ())]


def decode_guard(data: Sequence[Any], dims: Callable[[Any], Dim]) -> Guard:
    """`dims` reads an extent."""
    extent, count, axis, wraps, *place = data
    where, message = decode_place(place[:3]), "".join(map(decode_text, place[3:]))
    return Guard(decode_integer(axis), dims(extent), dims(count), bool(wraps), where, message)


def decode_threads(data: Any) -> int | None:
    """Files of the first Graft do not say."""
    return None if data is None else decode_integer(data)


def encode_place(place: Place) -> list[str]:
    return [place.source, place.node, place.kind]


def decode_place(data: Sequence[Any]) -> Place:
    source, node, kind = data
    return Place(decode_text(source), decode_text(node), decode_text(kind))


def encode_target(target: Target) -> dict[str, Any]:
    rates = [target.core_flops, target.core_bytes]
    return {"triple": target.triple, "features": list(target.features), "core": rates}


def decode_target(data: Mapping[str, Any]) -> Target:
    features = tuple(decode_text(name) for name in data["features"])
    rates = data.get("core", ())  # files of older releases do not say
    return Target(decode_text(data["triple"]), features, *map(_decode_rate, rates))


def _decode_rate(data: Any) -> float:
    if not isinstance(data, float) or not 0 < data < math.inf:
        raise ValueError(f"{data!r} is not a rate")
    return data


def encode_spec(spec: TensorSpec) -> list[Any]:
    return [spec.name, str(spec.dtype), list(spec.shape), spec.alignment]


def decode_spec(data: Sequence[Any]) -> TensorSpec:
    name, dtype, shape, alignment = data
    return TensorSpec(
        decode_text(name), DType(dtype), decode_integers(shape), decode_integer(alignment)
    )


def encode_step(step: Step, store: Store) -> dict[str, Any]:
    place = step.place
    common = {
        "label": step.label,
        "flops": step.flops,
        "bytes": step.bytes,
        "place": encode_place(place),
    }
    if isinstance(step, KernelCall):
        return {
            "kernel": step.symbol,
            "buffers": [encode_reference(reference) for reference in step.buffers],
            "scalars": list(step.scalars),
            "serial": step.serial,
            "runs_on": step.runs_on,
            **common,
        }
    if isinstance(step, Transfer):
        return {
            "transfer": step.region,
            "home": _encode_operand(step.home),
            "remote": step.remote.index,
            "upload": step.upload,
            **common,
        }
    return {
        "python": step.function,
        "inputs": [_encode_operand(operand) for operand in step.inputs],
        "outputs": [_encode_operand(operand) for operand in step.outputs],
        "graph": None if step.graph is None else encode_graph(step.graph, store),
        **common,
    }


def decode_step(data: Mapping[str, Any], stored: Sequence[Array]) -> Step:
    common = _decode_common(data)
    if "kernel" in data:
        return KernelCall(
            symbol=decode_text(data["kernel"]),
            buffers=tuple(in_reach(decode_reference(item)) for item in data["buffers"]),
            scalars=decode_integers(data["scalars"]),
            serial=bool(data["serial"]),
            runs_on=bool(data["runs_on"]),
            **common,
        )
    if "transfer" in data:
        return Transfer(
            region=decode_text(data["transfer"]),
            home=_decode_operand(data["home"]),
            remote=Remote(decode_integer(data["remote"])),
            upload=bool(data["upload"]),
            **common,
        )
    graph = data.get("graph")  # files of older releases have none
    return PythonStep(
        function=decode_text(data["python"]),
        inputs=tuple(_decode_operand(item) for item in data["inputs"]),
        outputs=tuple(_decode_operand(item) for item in data["outputs"]),
        graph=None if graph is None else decode_graph(graph, stored),
        **common,
    )


def encode_graph(graph: EvaluatedGraph, store: Store) -> dict[str, Any]:
    """A graph for the evaluator."""
    return {
        "text": graph.text,
        "operators": list(graph.operators),
        "constants": {n: encode_tensor(array, store) for n, array in graph.constants.items()},
    }


def decode_graph(data: Mapping[str, Any], stored: Sequence[Array]) -> EvaluatedGraph:
    return EvaluatedGraph(
        decode_text(data["text"]),
        tuple(decode_text(name) for name in data["operators"]),
        {name: decode_tensor(item, stored) for name, item in data["constants"].items()},
    )


def encode_tensor(array: Array, store: Store) -> Any:
    """The number of a constant; of strings the shape and what they are."""
    return [list(array.shape), array.ravel().tolist()] if array.dtype.hasobject else store(array)


def decode_tensor(data: Any, stored: Sequence[Array]) -> Array:
    if not isinstance(data, list):
        return stored[decode_natural(data)]
    shape, strings = data
    array = np.empty(len(strings), object)
    array[:] = [decode_text(item) for item in strings]
    array = array.reshape(decode_integers(shape))
    array.flags.writeable = False
    return array


def encode_remote(remote: RemoteTensor) -> list[Any]:
    return [remote.space, str(remote.dtype), list(remote.shape)]


def decode_remote(data: Sequence[Any]) -> RemoteTensor:
    space, dtype, shape = data
    return RemoteTensor(decode_text(space), DType(dtype), decode_integers(shape))


def _decode_common(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "label": decode_text(data["label"]),
        "flops": decode_integer(data["flops"]),
        "bytes": decode_integer(data["bytes"]),
        "place": decode_place(data["place"]),
    }


def encode_reference(reference: BufferRef | Remote) -> list[Any]:
    name = _REFERENCE_NAMES[type(reference)]
    match reference:
        case Arena(offset, nbytes):
            return [name, offset, nbytes]
        case Input(index) | Output(index) | Constant(index) | Remote(index):
            return [name, index]
        case Scratch():
            return [name]


def decode_reference(data: Sequence[Any]) -> BufferRef | Remote:
    name, *numbers = data
    return _REFERENCES[name](*decode_integers(numbers))


def in_reach(reference: BufferRef | Remote) -> BufferRef:
    if isinstance(reference, Remote):
        raise TypeError("a kernel of the host's cannot reach the memory of a device")
    return reference


def _encode_operand(operand: Operand) -> list[Any]:
    return [encode_reference(operand.buffer), str(operand.dtype), list(operand.shape)]


def _decode_operand(data: Sequence[Any]) -> Operand:
    reference, dtype, shape = data
    return Operand(decode_reference(reference), DType(dtype), decode_integers(shape))


def decode_integers(data: Sequence[Any]) -> tuple[int, ...]:
    return tuple(decode_integer(item) for item in data)


def decode_integer(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"{data!r} is not an integer")
    return data


def decode_natural(data: Any) -> int:
    number = decode_integer(data)
    if number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def decode_text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is not text")
    return data
