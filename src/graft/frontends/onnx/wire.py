"""Cuts large weights out of a serialised ONNX message before it is parsed.

In goes the bytes of a model; out come slim bytes that `onnx` parses in their stead. A tensor with a
large payload becomes a tensor with *external data*: its location is the very file it was in, with
the payload's offset and length there. That is ordinary ONNX, so nobody downstream has to know a
second way to say where weights are.

Why: protobuf copies every payload, once or twice. Cut out, weights stay in the mapped file and are
first read when they are used; a file over protobuf's 2 GB limit can be read as well.

This is a walk over field headers, not a parser: whatever it does not expect, it leaves to `onnx`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto

# Cutting out costs about a hundred bytes of description; smaller payloads are not worth a detour.
LARGE = 4096

# Protobuf refuses messages that are nested deeper.
_DEEPEST = 100

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_TENSOR_NAME: str = TensorProto.DESCRIPTOR.full_name
_NUMBERS: dict[str, int] = {
    name: field.number for name, field in TensorProto.DESCRIPTOR.fields_by_name.items()
}
_DATA_FIELDS = {number for name, number in _NUMBERS.items() if name.endswith("_data")} - {
    _NUMBERS["external_data"]
}
# Fields whose packed payload is, byte for byte, what raw data of these element types is.
_RAW_LIKE = {
    _NUMBERS["float_data"]: (TensorProto.FLOAT, TensorProto.COMPLEX64),
    _NUMBERS["double_data"]: (TensorProto.DOUBLE, TensorProto.COMPLEX128),
}

Chunk = bytes | memoryview


class _UnexpectedError(Exception):
    """The bytes are not what the walk knows how to handle."""


class _Field(NamedTuple):
    """Where one field lies: its tag at `start`, its payload from `body` to `end`."""

    number: int
    wire_type: int
    start: int
    after_tag: int
    body: int
    end: int


def cut_out_payloads(data: memoryview, location: str) -> Chunk:
    """The serialised model without its large payloads, which external data at `location` replace.

    Returns `data` itself where nothing can be cut out, be it small, unusual or damaged.
    """
    try:
        chunks = _Cutter(data, location).message(0, len(data), onnx.ModelProto.DESCRIPTOR, 0)
    except _UnexpectedError:
        return data
    return data if chunks is None else b"".join(chunks)


def nested_messages(message: Any) -> Iterator[tuple[Any, int]]:
    """The message and all messages inside it, each with its depth; not the fields of tensors."""
    waiting = [(message, 0)]
    while waiting:
        current, depth = waiting.pop()
        yield current, depth
        waiting.extend((inner, depth + 1) for inner in reversed(_parts(current)))


def _parts(message: Any) -> list[Any]:
    if message.DESCRIPTOR.full_name == _TENSOR_NAME:
        return list(message.external_data)
    parts: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts.extend([value] if field.has_presence else value)
    return parts


@dataclass(frozen=True, slots=True)
class _Cutter:
    data: memoryview
    location: str

    def message(self, start: int, end: int, descriptor: Any, depth: int) -> list[Chunk] | None:
        """The chunks of a slim message, or None if it stays as it is."""
        if depth > _DEEPEST:
            raise _UnexpectedError
        if descriptor.full_name == _TENSOR_NAME:
            return self.tensor(start, end)
        chunks: list[Chunk] = []
        copied_to = start
        fields: set[int] = set()
        for field in _fields(self.data, start, end):
            kind = descriptor.fields_by_number.get(field.number)
            if kind is None or kind.message_type is None or field.wire_type != _BYTES:
                continue
            if kind.has_presence and field.number in fields:
                # Protobuf merges these; two cut-outs would end up in one tensor.
                raise _UnexpectedError
            fields.add(field.number)
            if field.end - field.body < LARGE:
                continue
            inner = self.message(field.body, field.end, kind.message_type, depth + 1)
            if inner is not None:
                length = _encoded_varint(sum(len(chunk) for chunk in inner))
                chunks += [self.data[copied_to : field.after_tag], length, *inner]
                copied_to = field.end
        if not chunks:
            return None
        return [*chunks, self.data[copied_to:end]]

    def tensor(self, start: int, end: int) -> list[Chunk] | None:
        """As `message`, for a tensor, the one message that holds payloads."""
        element_type = 0
        payload: _Field | None = None
        for field in _fields(self.data, start, end):
            if field.number in _DATA_FIELDS:
                if payload is not None:
                    return None
                payload = field
            elif field.number == _NUMBERS["external_data"]:
                return None
            elif field.wire_type == _VARINT:
                value, _ = _varint(self.data, field.body, field.end)
                if field.number == _NUMBERS["data_type"]:
                    element_type = value
                elif field.number == _NUMBERS["data_location"] and value != TensorProto.DEFAULT:
                    return None
        if payload is None or not _is_raw(payload, element_type):
            return None
        reference = external_reference(self.location, payload.body, payload.end - payload.body)
        return [
            self.data[start : payload.start],
            self.data[payload.end : end],
            reference.SerializeToString(),
        ]


def external_reference(location: str, offset: int, length: int) -> TensorProto:
    """The fields of a tensor that say where its external data is; to be merged into a tensor."""
    reference = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        reference.external_data.add(key=key, value=str(value))
    return reference


def _is_raw(payload: _Field, element_type: int) -> bool:
    """Whether a payload is large and holds the elements as they are in memory."""
    if payload.wire_type != _BYTES or payload.end - payload.body < LARGE:
        return False
    if payload.number == _NUMBERS["raw_data"]:
        return True
    return element_type in _RAW_LIKE.get(payload.number, ())


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message between two offsets, one after the other."""
    at = start
    while at < end:
        tag, after_tag = _varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        body = after_tag
        if wire_type == _VARINT:
            _, next_at = _varint(data, body, end)
        elif wire_type == _BYTES:
            length, body = _varint(data, after_tag, end)
            next_at = body + length
        elif wire_type in (_FIXED64, _FIXED32):
            next_at = body + (8 if wire_type == _FIXED64 else 4)
        else:
            raise _UnexpectedError
        if number == 0 or next_at > end:
            raise _UnexpectedError
        yield _Field(number, wire_type, at, after_tag, body, next_at)
        at = next_at


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The integer encoded at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _UnexpectedError


def _encoded_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
