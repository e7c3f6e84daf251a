"""Programs as JSON: a program in, plain values out, and back.

Constants and object code are not part of it: they lie in sections of their own. What is decoded may
still contradict itself, which `Program.validate` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graft.base.dtypes import DType
from graft.base.errors import Place
from graft.runtime.program import (
    Arena,
    BufferRef,
    Constant,
    Input,
    KernelCall,
    Operand,
    Output,
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


def encode_target(target: Target) -> dict[str, Any]:
    return {"triple": target.triple, "features": list(target.features)}


def decode_target(data: Mapping[str, Any]) -> Target:
    return Target(_text(data["triple"]), tuple(_text(name) for name in data["features"]))


def encode_spec(spec: TensorSpec) -> list[Any]:
    return [spec.name, str(spec.dtype), list(spec.shape), spec.alignment]


def decode_spec(data: Sequence[Any]) -> TensorSpec:
    name, dtype, shape, alignment = data
    return TensorSpec(_text(name), DType(dtype), decode_integers(shape), _integer(alignment))


def encode_step(step: Step) -> dict[str, Any]:
    place = step.place
    common = {
        "label": step.label,
        "flops": step.flops,
        "bytes": step.bytes,
        "place": [place.source, place.node, place.kind],
    }
    if isinstance(step, KernelCall):
        return {
            "kernel": step.symbol,
            "buffers": [_encode_reference(reference) for reference in step.buffers],
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
        **common,
    }


def decode_step(data: Mapping[str, Any]) -> Step:
    common = _decode_common(data)
    if "kernel" in data:
        return KernelCall(
            symbol=_text(data["kernel"]),
            buffers=tuple(_in_reach(_decode_reference(item)) for item in data["buffers"]),
            scalars=decode_integers(data["scalars"]),
            serial=bool(data["serial"]),
            runs_on=bool(data["runs_on"]),
            **common,
        )
    if "transfer" in data:
        return Transfer(
            region=_text(data["transfer"]),
            home=_decode_operand(data["home"]),
            remote=Remote(_integer(data["remote"])),
            upload=bool(data["upload"]),
            **common,
        )
    return PythonStep(
        function=_text(data["python"]),
        inputs=tuple(_decode_operand(item) for item in data["inputs"]),
        outputs=tuple(_decode_operand(item) for item in data["outputs"]),
        **common,
    )


def encode_remote(remote: RemoteTensor) -> list[Any]:
    return [remote.space, str(remote.dtype), list(remote.shape)]


def decode_remote(data: Sequence[Any]) -> RemoteTensor:
    space, dtype, shape = data
    return RemoteTensor(_text(space), DType(dtype), decode_integers(shape))


def _decode_common(data: Mapping[str, Any]) -> dict[str, Any]:
    source, node, kind = data["place"]
    return {
        "label": _text(data["label"]),
        "flops": _integer(data["flops"]),
        "bytes": _integer(data["bytes"]),
        "place": Place(_text(source), _text(node), _text(kind)),
    }


def _encode_reference(reference: BufferRef | Remote) -> list[Any]:
    name = _REFERENCE_NAMES[type(reference)]
    match reference:
        case Arena(offset, nbytes):
            return [name, offset, nbytes]
        case Input(index) | Output(index) | Constant(index) | Remote(index):
            return [name, index]
        case Scratch():
            return [name]


def _decode_reference(data: Sequence[Any]) -> BufferRef | Remote:
    name, *numbers = data
    return _REFERENCES[name](*decode_integers(numbers))


def _in_reach(reference: BufferRef | Remote) -> BufferRef:
    if isinstance(reference, Remote):
        raise TypeError("a kernel of the host's cannot reach the memory of a device")
    return reference


def _encode_operand(operand: Operand) -> list[Any]:
    return [_encode_reference(operand.buffer), str(operand.dtype), list(operand.shape)]


def _decode_operand(data: Sequence[Any]) -> Operand:
    reference, dtype, shape = data
    return Operand(_decode_reference(reference), DType(dtype), decode_integers(shape))


def decode_integers(data: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_integer(item) for item in data)


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"{data!r} is not an integer")
    return data


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is not text")
    return data
