"""Programs as JSON: a program in, plain values out, and back.

Constants and object code are not part of it: they lie in sections of their own, and the JSON has
their numbers there. Only strings, which cannot lie there, stand among the plain values. What is
decoded may still contradict itself, which `verify` finds.

Instructions are encoded field by field: a field's name says what it holds, whichever instruction
it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, Dim, Unknown, parse_dim
from graft.base.dtypes import Array, DType
from graft.base.errors import Location
from graft.program.extents import Refused, SizeCheck, Test, Verdict
from graft.program.guards import Guard
from graft.program.instructions import (
    Alias,
    Assert,
    BindSymbol,
    Block,
    Buffer,
    Element,
    Evaluate,
    EvaluatedGraph,
    If,
    Instruction,
    KernelCall,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Scratch,
    Segment,
    SizeFunction,
    Slice,
    Slot,
    Switch,
    Transfer,
)
from graft.program.lookup import Table
from graft.program.program import Program, ProgramError, Target, Value

_KINDS: Mapping[str, type[Instruction]] = {
    "segment": Segment,
    "region": RegionCall,
    "transfer": Transfer,
    "evaluate": Evaluate,
    "size": SizeFunction,
    "bind": BindSymbol,
    "slice": Slice,
    "alias": Alias,
    "assert": Assert,
    "list": ListOp,
    "if": If,
    "switch": Switch,
    "loop": Loop,
    "scan": Scan,
}
# Operations or bytes per second: far beyond any core, and no sum of work overflows a word.
_SLOWEST, _FASTEST = 1.0, 1e15
_LONGEST = 1.0  # seconds that it takes to call or meet threads
_NAMES = {kind: name for name, kind in _KINDS.items()}

# Puts an array among the constants of a file, and tells its number there.
Store = Callable[[Array], int]


def encode_program(program: Program, store: Store) -> dict[str, Any]:
    """A program without its code; `store` takes its constants."""
    encoder = _Encoder(store)
    return {
        "target": {
            "triple": program.target.triple,
            "features": list(program.target.features),
            "core": list(program.target.core),
            "calling": program.target.calling,
            "meeting": program.target.meeting,
        },
        "threads": program.threads,
        "values": [_encode_value(value) for value in program.values],
        "constant_values": [[number, encoder.tensor(array)] for number, array in program.constants],
        "output_names": list(program.output_names),
        "pool": _encode_dims(program.pool),
        "body": encoder.block(program.body),
    }


def decode_program(
    data: Mapping[str, Any], constants: Sequence[Array], objects: tuple[bytes, ...]
) -> Program:
    """`constants` are those of the file, `objects` its code."""
    decoder = _Decoder(constants)
    threads = data["threads"]
    return Program(
        _decode_target(data["target"]),
        tuple(map(decoder.value, data["values"])),
        tuple((_natural(number), decoder.tensor(one)) for number, one in data["constant_values"]),
        decoder.block(data["body"]),
        tuple(map(text, data["output_names"])),
        objects,
        decoder.dims(data["pool"]),
        None if threads is None else _integer(threads),
    )


def _decode_target(data: Mapping[str, Any]) -> Target:
    return Target(
        text(data["triple"]),
        tuple(map(text, data["features"])),
        _rates(data["core"]),
        _seconds(data["calling"]),
        _seconds(data["meeting"]),
    )


def _rates(data: Sequence[Any]) -> tuple[float, float]:
    for rate in data:
        if not isinstance(rate, float) or not _SLOWEST <= rate <= _FASTEST:
            raise ValueError(f"{rate!r} is not a rate")
    flops, moved = data
    return flops, moved


def _seconds(data: Any) -> float:
    if not isinstance(data, float) or not 0 <= data <= _LONGEST:
        raise ValueError(f"{data!r} is not a time")
    return data


class _Encoder:
    def __init__(self, store: Store) -> None:
        self._store = store

    def block(self, block: Block) -> list[Any]:
        instructions = [self.instruction(one) for one in block.instructions]
        return [list(block.inputs), instructions, list(block.outputs)]

    def instruction(self, instruction: Instruction) -> dict[str, Any]:
        names = (one.name for one in fields(instruction))
        own = {name: self._field(name, getattr(instruction, name)) for name in names}
        return {"do": _NAMES[type(instruction)], **own}

    def _field(self, name: str, held: Any) -> Any:
        match name:
            case "otherwise" | "then" | "default" | "body":
                return self.block(held)
            case "cases":
                return [[list(key), self.block(block)] for key, block in held]
            case "calls":
                return [_encode_call(call) for call in held]
            case "pools":
                return [_encode_dims(pool) for pool in held]
            case "scratch" | "sizes":
                return None if held is None else _encode_dims(held)
            case "chunk":
                return _encode_dim(held)
            case "checks":
                return [[_encode_verdict(one.test), _encode_location(one.location)] for one in held]
            case "numbers":
                return [[one.value, one.index, one.positive, one.negative] for one in held]
            case "lets":
                return [[name, _encode_dim(dim)] for name, dim in held]
            case "guards":
                return [_encode_guard(guard) for guard in held]
            case "location":
                return _encode_location(held)
            case "graph":
                constants = {name: self.tensor(one) for name, one in held.constants.items()}
                return [held.text, list(held.operators), constants]
            case "table":
                return held and [str(held.dtype), held.values, held.keys, held.default]
        return list(held) if isinstance(held, tuple) else held

    def tensor(self, array: Array) -> Any:
        """The number of a constant; of strings the shape and what they are."""
        if array.dtype.hasobject:
            return [list(array.shape), array.ravel().tolist()]
        return self._store(array)


class _Decoder:
    def __init__(self, constants: Sequence[Array]) -> None:
        self._constants = constants
        self.dim: Callable[[Any], Dim] = cache(_decode_dim)  # most stand in many places

    def dims(self, data: Sequence[Any]) -> tuple[Dim, ...]:
        return tuple(map(self.dim, data))

    def value(self, data: Sequence[Any]) -> Value:
        name, dtype, shape, type_, alignment, space, slot, element = data
        return Value(
            text(name),
            None if dtype is None else DType(dtype),
            None if shape is None else self.dims(shape),
            text(type_),
            _integer(alignment),
            text(space),
            None if slot is None else self._slot(slot),
            None if element is None else (DType(element[0]), _natural(element[1])),
        )

    def _slot(self, data: Sequence[Any]) -> Slot:
        pool, offset, nbytes = data
        return Slot(_integer(pool), self.dim(offset), self.dim(nbytes))

    def block(self, data: Sequence[Any]) -> Block:
        inputs, instructions, outputs = data
        return Block(
            _integers(inputs), tuple(map(self.instruction, instructions)), _integers(outputs)
        )

    def instruction(self, data: Mapping[str, Any]) -> Instruction:
        kind = _KINDS[data["do"]]
        names = [one.name for one in fields(kind)]
        return kind(**{name: self._field(name, data[name]) for name in names})

    def _field(self, name: str, data: Any) -> Any:
        match name:
            case "otherwise" | "then" | "default" | "body":
                return self.block(data)
            case "cases":
                return tuple((_integers(key), self.block(block)) for key, block in data)
            case "calls":
                return tuple(map(self._call, data))
            case "pools":
                return tuple(map(self.dims, data))
            case "scratch":
                return self.dims(data)
            case "sizes":
                return None if data is None else self.dims(data)
            case "chunk":
                return self.dim(data)
            case "checks":
                return tuple(
                    SizeCheck(self._test(test), _decode_location(location))
                    for test, location in data
                )
            case "numbers":
                return tuple(
                    Element(_natural(value), _natural(index), text(positive), text(negative))
                    for value, index, positive, negative in data
                )
            case "lets":
                return tuple((text(name), self.dim(dim)) for name, dim in data)
            case "guards":
                return tuple(map(self._guard, data))
            case "location":
                return _decode_location(data)
            case "graph":
                source, operators, constants = data
                own = {key: self.tensor(one) for key, one in constants.items()}
                return EvaluatedGraph(text(source), tuple(map(text, operators)), own)
            case "table":
                return None if data is None else _decode_table(data)
            case "function" | "region" | "symbol" | "operation" | "message" | "label":
                return text(data)
            case "symbols":
                return tuple(map(text, data))
            case "upload" | "expected" | "with_axis":
                return bool(data)
            case "backwards" | "result_backwards":
                return tuple(map(bool, data))
        return _numbers(data)

    def _call(self, data: Sequence[Any]) -> KernelCall:
        symbol, buffers, scalars, label, flops, moved, location, serial, overlaps = data
        return KernelCall(
            text(symbol),
            tuple(map(self._buffer, buffers)),
            self.dims(scalars),
            text(label),
            self.dim(flops),
            self.dim(moved),
            _decode_location(location),
            bool(serial),
            bool(overlaps),
        )

    def _buffer(self, data: Any) -> Buffer:
        if data is None:
            return Scratch()
        return self._slot(data) if isinstance(data, list) else _integer(data)

    def _guard(self, data: Sequence[Any]) -> Guard:
        axis, extent, count, wraps, location, message = data
        return Guard(
            _integer(axis),
            self.dim(extent),
            self.dim(count),
            bool(wraps),
            _decode_location(location),
            text(message),
        )

    def _verdict(self, data: Sequence[Any] | None) -> Verdict:
        if data is None:
            return None
        if len(data) == 2:
            message, hint = data
            return Refused(text(message), text(hint))
        return self._test(data)

    def _test(self, data: Sequence[Any]) -> Test:
        left, right, equal, different = data
        verdicts = self._verdict(equal), self._verdict(different)
        return Test(self.dim(left), self.dim(right), *verdicts)

    def tensor(self, data: Any) -> Array:
        if not isinstance(data, list):
            return self._constants[_natural(data)]
        shape, strings = data
        array = np.empty(len(strings), object)
        array[:] = [text(item) for item in strings]
        array = array.reshape(_integers(shape))
        array.flags.writeable = False
        return array


def _encode_dim(dim: AnyDim) -> int | str:
    """An extent: a number, or text over symbols."""
    if isinstance(dim, Unknown):
        raise ProgramError("an extent is unknown")
    return dim if isinstance(dim, int) else str(dim)


def _encode_dims(dims: Sequence[AnyDim]) -> list[int | str]:
    return [_encode_dim(dim) for dim in dims]


def _decode_dim(data: Any) -> Dim:
    return parse_dim(data) if isinstance(data, str) else _integer(data)


def _encode_value(value: Value) -> list[Any]:
    return [
        value.name,
        None if value.dtype is None else str(value.dtype),
        None if value.shape is None else _encode_dims(value.shape),
        value.type,
        value.alignment,
        value.space,
        None if value.slot is None else _encode_slot(value.slot),
        None if value.element is None else [str(value.element[0]), value.element[1]],
    ]


def _encode_slot(slot: Slot) -> list[Any]:
    return [slot.pool, _encode_dim(slot.offset), _encode_dim(slot.nbytes)]


def _encode_call(call: KernelCall) -> list[Any]:
    return [
        call.symbol,
        [_encode_buffer(buffer) for buffer in call.buffers],
        _encode_dims(call.scalars),
        call.label,
        _encode_dim(call.flops),
        _encode_dim(call.bytes),
        _encode_location(call.location),
        call.serial,
        call.overlaps,
    ]


def _encode_buffer(buffer: Buffer) -> Any:
    match buffer:
        case Scratch():
            return None
        case Slot():
            return _encode_slot(buffer)
    return buffer


def _encode_location(location: Location) -> list[str]:
    return [location.source, location.node, location.kind]


def _decode_location(data: Sequence[Any]) -> Location:
    source, node, kind = data
    return Location(text(source), text(node), text(kind))


def _encode_guard(guard: Guard) -> list[Any]:
    dims = _encode_dim(guard.extent), _encode_dim(guard.count)
    location = _encode_location(guard.location or Location())
    return [guard.axis, *dims, guard.wraps, location, guard.message]


def _encode_verdict(verdict: Verdict) -> list[Any] | None:
    match verdict:
        case None:
            return None
        case Refused(message, hint):
            return [message, hint]
        case Test(left, right, equal, different):
            dims = _encode_dim(left), _encode_dim(right)
            return [*dims, _encode_verdict(equal), _encode_verdict(different)]


def _decode_table(data: Sequence[Any]) -> Table:
    dtype, values, keys, default = data
    for item in (*values, *(keys or ()), *(() if default is None else (default,))):
        if type(item) not in (str, int, float):
            raise ValueError(f"{item!r} is neither a string nor a number")
    return Table(DType(dtype), tuple(values), None if keys is None else tuple(keys), default)


def _numbers(data: Any) -> int | tuple[int | None, ...] | None:
    """The number of a value, or several, of which some may be missing."""
    if isinstance(data, list):
        return tuple(None if item is None else _integer(item) for item in data)
    return None if data is None else _integer(data)


def _integers(data: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_integer, data))


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"{data!r} is not an integer")
    return data


def _natural(data: Any) -> int:
    number = _integer(data)
    if number < 0:
        raise ValueError(f"{number} counts nothing")
    return number


def text(data: Any) -> str:
    """What has to be a string."""
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is not text")
    return data
