"""Damages models without knowing what they mean: any field of any message, or any byte of a file.

In goes a valid model, or its bytes; out comes one with fields set, cleared, doubled or taken from
elsewhere in it, or bytes that have been flipped, cut out, put in or cut off. What `damage` does on
purpose, this does by chance, and in places nobody has thought of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTS = (0, 1, -1, 2, 3, 5, 7, 8, 15, 16, 22, 23, 127, 1 << 20, (1 << 31) - 1, -(1 << 31))
LONG = (*INTS, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e30, 1e-30, math.nan, math.inf, -math.inf)
WORDS = (
    "",
    "x",
    "y",
    "n",
    "my",
    "ai.onnx",
    "ai.onnx.ml",
    "location",
    "offset",
    "ä\n",
    "%0",
    "a" * 99,
)
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_REAL = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def damage_field(random: Random, model: onnx.ModelProto, _feeds: Any = None) -> None:
    """Change one field of one message."""
    messages = list(_messages(model))
    message = random.choice(messages)
    # Mostly a field that is there, for most of what a message may have is not.
    present = [field for field, _ in message.ListFields()]
    every = list(message.DESCRIPTOR.fields)
    field = random.choice(present) if present and random.random() < 0.8 else random.choice(every)
    if field.is_repeated:
        _damage_list(random, getattr(message, field.name), field, messages)
    elif random.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None:
        _copy_from_elsewhere(random, getattr(message, field.name), messages)
    else:
        setattr(message, field.name, _scalar(random, field, messages))


def damage_bytes(random: Random, data: bytes) -> bytes:
    """Change the bytes of a file here and there."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        place = random.randrange(len(found) + 1)
        action = random.randrange(10)
        if action < 3:
            found[place : place + 1] = bytes([random.randrange(256)])
        elif action < 6 and place < len(found):
            found[place] ^= 1 << random.randrange(8)
        elif action == 6:
            del found[place : place + random.randrange(1, 9)]
        elif action == 7:
            found[place:place] = random.randbytes(random.randrange(1, 5))
        elif action == 8:
            start = random.randrange(len(found) + 1)
            found[place:place] = found[start : start + random.randrange(1, 40)]
        elif random.random() < 0.3:
            del found[place:]
    return bytes(found)


def _messages(message: Message) -> Iterator[Any]:
    """The message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _damage_list(random: Random, items: Any, field: FieldDescriptor, messages: list[Any]) -> None:
    place = random.randrange(len(items)) if len(items) else 0
    action = random.randrange(4)
    if action == 0 and len(items):
        del items[place]
    elif action == 1 and len(items):
        items.append(items[place])
    elif field.message_type is not None:
        added = items.add() if action == 2 or not len(items) else items[place]
        _copy_from_elsewhere(random, added, messages)
    elif action == 2 and len(items):
        items[place] = _scalar(random, field, messages)
    else:
        items.append(_scalar(random, field, messages))


def _copy_from_elsewhere(random: Random, message: Any, messages: list[Any]) -> None:
    """Another message of the kind, or an empty one."""
    others = [other for other in messages if other.DESCRIPTOR is message.DESCRIPTOR]
    copy = random.choice(others).SerializeToString() if others and random.random() < 0.9 else b""
    message.ParseFromString(copy)


def _scalar(random: Random, field: FieldDescriptor, messages: list[Any]) -> Any:
    """Something of the field's type, at times from the same field of another message."""
    same = [
        getattr(other, field.name)
        for other in messages
        if other.DESCRIPTOR is field.containing_type and not field.is_repeated
    ]
    if same and random.random() < 0.4:
        return random.choice(same)
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return random.choice(INTS)
    if field.cpp_type in _UNSIGNED:
        return abs(random.choice(INTS))
    if field.cpp_type in _REAL:
        return random.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice(WORDS).encode() + random.randbytes(random.randrange(3))
    return (
        random.choice(WORDS) if field.type == FieldDescriptor.TYPE_STRING else random.choice(LONG)
    )
