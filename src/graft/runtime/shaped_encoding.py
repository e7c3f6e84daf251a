"""Programs for every size as JSON: a shaped program in, plain values out, and back.

Dims are numbers or text over the program's symbols; equal ones are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graft.base.dims import AnyDim, Dim, Unknown
from graft.base.dtypes import Array, DType
from graft.runtime.encoding import (
    decode_guard,
    decode_integer,
    decode_place,
    decode_reference,
    decode_text,
    encode_guard,
    encode_place,
    encode_reference,
    in_reach,
)
from graft.runtime.extents import Refused, SizeCheck, Test, Verdict
from graft.runtime.program import ProgramError, Target
from graft.runtime.shaped import ShapedCall, ShapedProgram, ShapedRef, ShapedSpec, Shelf

Dims = Callable[[Any], Dim]


def encode_dim(dim: AnyDim) -> int | str:
    """An extent: a number, or text over symbols."""
    if isinstance(dim, Unknown):
        raise ProgramError("an extent is unknown")
    return dim if isinstance(dim, int) else str(dim)


def _encode_dims(dims: Sequence[AnyDim]) -> list[int | str]:
    return [encode_dim(dim) for dim in dims]


def encode_shaped(program: ShapedProgram) -> dict[str, Any]:
    return {
        "symbols": list(program.symbols),
        "inputs": [_encode_spec(spec) for spec in program.inputs],
        "outputs": [_encode_spec(spec) for spec in program.outputs],
        "steps": [_encode_call(step) for step in program.steps],
        "shelves": [_encode_dims(shelf) for shelf in program.shelves],
        "scratch": _encode_dims(program.scratch),
        "checks": [
            [_encode_verdict(check.test), encode_place(check.place)] for check in program.checks
        ],
        "guards": [encode_guard(guard) for guard in program.guards],
    }


def decode_shaped(
    data: Mapping[str, Any],
    target: Target,
    constants: tuple[Array, ...],
    objects: tuple[bytes, ...],
    dims: Dims,
) -> ShapedProgram:
    """`dims` reads an extent."""
    return ShapedProgram(
        target,
        tuple(decode_text(name) for name in data["symbols"]),
        tuple(_decode_spec(item, dims) for item in data["inputs"]),
        tuple(_decode_spec(item, dims) for item in data["outputs"]),
        tuple(_decode_call(item, dims) for item in data["steps"]),
        tuple(tuple(map(dims, shelf)) for shelf in data["shelves"]),
        tuple(map(dims, data["scratch"])),
        constants,
        objects,
        tuple(
            SizeCheck(_decode_test(test, dims), decode_place(place))
            for test, place in data["checks"]
        ),
        tuple(decode_guard(item, dims) for item in data.get("guards", ())),
    )


def _encode_spec(spec: ShapedSpec) -> list[Any]:
    return [spec.name, str(spec.dtype), _encode_dims(spec.shape), spec.alignment]


def _decode_spec(data: Sequence[Any], dims: Dims) -> ShapedSpec:
    name, dtype, shape, alignment = data
    return ShapedSpec(
        decode_text(name), DType(dtype), tuple(map(dims, shape)), decode_integer(alignment)
    )


def _encode_call(step: ShapedCall) -> dict[str, Any]:
    return {
        "kernel": step.symbol,
        "buffers": [_encode_reference(reference) for reference in step.buffers],
        "scalars": _encode_dims(step.scalars),
        "serial": step.serial,
        "label": step.label,
        "flops": encode_dim(step.flops),
        "bytes": encode_dim(step.bytes),
        "place": encode_place(step.place),
    }


def _decode_call(data: Mapping[str, Any], dims: Dims) -> ShapedCall:
    return ShapedCall(
        decode_text(data["kernel"]),
        tuple(_decode_reference(item, dims) for item in data["buffers"]),
        tuple(map(dims, data["scalars"])),
        decode_text(data["label"]),
        dims(data["flops"]),
        dims(data["bytes"]),
        decode_place(data["place"]),
        bool(data["serial"]),
    )


def _encode_reference(reference: ShapedRef) -> list[Any]:
    if isinstance(reference, Shelf):
        extents = encode_dim(reference.offset), encode_dim(reference.nbytes)
        return ["shelf", reference.number, *extents]
    return encode_reference(reference)


def _decode_reference(data: Sequence[Any], dims: Dims) -> ShapedRef:
    if data[0] == "shelf":
        _, number, offset, nbytes = data
        return Shelf(decode_integer(number), dims(offset), dims(nbytes))
    return in_reach(decode_reference(data))


def _encode_verdict(verdict: Verdict) -> list[Any] | None:
    match verdict:
        case None:
            return None
        case Refused(message, hint):
            return [message, hint]
        case Test(left, right, equal, different):
            dims = encode_dim(left), encode_dim(right)
            return [*dims, _encode_verdict(equal), _encode_verdict(different)]


def _decode_verdict(data: Sequence[Any] | None, dims: Dims) -> Verdict:
    if data is None:
        return None
    if len(data) == 2:
        message, hint = data
        return Refused(decode_text(message), decode_text(hint))
    return _decode_test(data, dims)


def _decode_test(data: Sequence[Any], dims: Dims) -> Test:
    left, right, equal, different = data
    verdicts = _decode_verdict(equal, dims), _decode_verdict(different, dims)
    return Test(dims(left), dims(right), *verdicts)
