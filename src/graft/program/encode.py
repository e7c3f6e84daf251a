"""Programs as JSON: a program in, plain values out, and back.

Constants and object code are not part of it: they lie in sections of their own, and the JSON has
their numbers there. Only strings, which cannot lie there, stand among the plain values. What is
decoded may still contradict itself, which `verify` finds.

The types of fields say how they are written: a dataclass is a list of its fields in order, a tuple
a list, an extent a number or text over symbols. An instruction is an object of its fields by name,
and `do` says which instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, reduce
from operator import or_
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from graft.base.dims import AnyDim, Dim, Unknown, parse_dim
from graft.base.dtypes import Array, DType
from graft.base.errors import Location
from graft.program.extents import Refused, Test, Verdict
from graft.program.instructions import (
    Alias,
    Assert,
    BindSymbol,
    Block,
    Buffer,
    Evaluate,
    If,
    Instruction,
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
from graft.program.lookup import Item
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

# Adds an array to the constants of a file; returns its number there.
Store = Callable[[Array], int]


def encode_program(program: Program, store: Store) -> dict[str, Any]:
    """A program without its code; `store` takes its constants."""
    constants = [[number, _encode_array(array, store)] for number, array in program.constants]
    return {
        "target": _fields(Target).encode(program.target, store),
        "threads": program.threads,
        "values": _VALUES.encode(program.values, store),
        "constant_values": constants,
        "output_names": list(program.output_names),
        "pool": _DIMS.encode(program.pool, store),
        "body": _form(Block).encode(program.body, store),
    }


def decode_program(
    data: Mapping[str, Any], constants: Sequence[Array], objects: tuple[bytes, ...]
) -> Program:
    """`constants` are those of the file, `objects` its code."""
    source = _Source(constants, cache(_decode_dim))
    return Program(
        _checked(_fields(Target).decode(data["target"], source)),
        _VALUES.decode(data["values"], source),
        tuple((_integer(n), _decode_array(one, source)) for n, one in data["constant_values"]),
        _form(Block).decode(data["body"], source),
        tuple(map(text, data["output_names"])),
        objects,
        _DIMS.decode(data["pool"], source),
        _form(int | None).decode(data["threads"], source),
    )


def _checked(target: Target) -> Target:
    for rate in target.core:
        if not _SLOWEST <= rate <= _FASTEST:
            raise ValueError(f"{rate!r} is not a rate")
    for seconds in (target.calling, target.meeting):
        if not 0 <= seconds <= _LONGEST:
            raise ValueError(f"{seconds!r} is not a time")
    return target


@dataclass(frozen=True)
class _Source:
    """What decoding needs besides the data."""

    constants: Sequence[Array]
    dim: Callable[[Any], Dim]  # cached, since most extents stand in many places


class _Form(NamedTuple):
    """How values of a type become plain ones, and back."""

    encode: Callable[[Any, Store], Any]
    decode: Callable[[Any, _Source], Any]


@cache
def _form(hint: Any) -> _Form:
    """The form of the values that a type hint describes."""
    if hint in _FORMS:
        return _FORMS[hint]
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if arguments[-1] is ...:
            return _each(_form(arguments[0]))
        return _record(lambda *items: items, tuple, map(_form, arguments))
    if NoneType in arguments:
        return _optional(_form(reduce(or_, (one for one in arguments if one is not NoneType))))
    names, forms = _field_forms(hint)
    return _record(hint, lambda value: [getattr(value, name) for name in names], forms)


def _field_forms(kind: type) -> tuple[list[str], list[_Form]]:
    """The names of a dataclass's fields, and their forms."""
    hints, names = get_type_hints(kind), [one.name for one in fields(kind) if one.init]
    return names, [_form(hints[name]) for name in names]


@cache
def _fields(kind: type) -> _Form:
    """The form of a dataclass whose fields are written by name."""
    pairs = [*zip(*_field_forms(kind), strict=True)]
    return _Form(
        lambda value, store: {n: form.encode(getattr(value, n), store) for n, form in pairs},
        lambda data, source: kind(**{n: form.decode(data[n], source) for n, form in pairs}),
    )


def _each(item: _Form) -> _Form:
    return _Form(
        lambda values, store: [item.encode(value, store) for value in values],
        lambda data, source: tuple([item.decode(one, source) for one in data]),
    )


def _record(make: Callable[..., Any], parts: Callable[[Any], Sequence[Any]], forms: Any) -> _Form:
    """A list with a form for each item."""
    own: list[_Form] = list(forms)

    def encode(value: Any, store: Store) -> list[Any]:
        return [form.encode(part, store) for form, part in zip(own, parts(value), strict=True)]

    def decode(data: Any, source: _Source) -> Any:
        return make(*[form.decode(item, source) for form, item in zip(own, data, strict=True)])

    return _Form(encode, decode)


def _optional(form: _Form) -> _Form:
    return _Form(
        lambda value, store: None if value is None else form.encode(value, store),
        lambda data, source: None if data is None else form.decode(data, source),
    )


def _plain(*kinds: type) -> _Form:
    """Values that JSON has, of just these types."""

    def decode(data: Any, _source: _Source) -> Any:
        if type(data) not in kinds:
            raise TypeError(f"{data!r} is not {' or '.join(kind.__name__ for kind in kinds)}")
        return data

    return _Form(lambda value, _store: value, decode)


def _encode_dim(dim: AnyDim, _store: Store) -> int | str:
    if isinstance(dim, Unknown):
        raise ProgramError("an extent is unknown")
    return dim if isinstance(dim, int) else str(dim)


def _decode_dim(data: Any) -> Dim:
    return parse_dim(data) if isinstance(data, str) else _integer(data)


def _encode_buffer(buffer: Buffer, store: Store) -> Any:
    match buffer:
        case Scratch():
            return None
        case Slot():
            return _form(Slot).encode(buffer, store)
    return buffer


def _decode_buffer(data: Any, source: _Source) -> Buffer:
    if data is None:
        return Scratch()
    slot: Buffer = _form(Slot if isinstance(data, list) else int).decode(data, source)
    return slot


def _encode_verdict(verdict: Verdict, store: Store) -> Any:
    kind: Any = type(verdict)
    return None if verdict is None else _form(kind).encode(verdict, store)


def _decode_verdict(data: Any, source: _Source) -> Verdict:
    if data is None:
        return None
    kind: Any = Refused if len(data) == 2 else Test
    verdict: Verdict = _form(kind).decode(data, source)
    return verdict


def _encode_instruction(one: Instruction, store: Store) -> Any:
    kind: Any = type(one)
    return {"do": _NAMES[kind], **_fields(kind).encode(one, store)}


def _decode_instruction(data: Any, source: _Source) -> Any:
    kind: Any = _KINDS[data["do"]]
    return _fields(kind).decode(data, source)


def _encode_array(array: Array, store: Store) -> Any:
    """The number of a constant; of strings the shape and what they are."""
    if array.dtype.hasobject:
        return [list(array.shape), array.ravel().tolist()]
    return store(array)


def _decode_array(data: Any, source: _Source) -> Array:
    if not isinstance(data, list):
        number = _integer(data)
        if number < 0:
            raise ValueError(f"{number} counts nothing")
        return source.constants[number]
    shape, strings = data
    array = np.empty(len(strings), object)
    array[:] = [text(item) for item in strings]
    array = array.reshape(tuple(map(_integer, shape)))
    array.flags.writeable = False
    return array


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise TypeError(f"{data!r} is not an integer")
    return data


def text(data: Any) -> str:
    """What has to be a string."""
    if not isinstance(data, str):
        raise TypeError(f"{data!r} is not text")
    return data


_DIM = _Form(_encode_dim, lambda data, source: source.dim(data))
_ARRAY = _Form(_encode_array, _decode_array)
# What is not written as its type alone says.
_FORMS: dict[Any, _Form] = {
    **{kind: _plain(kind) for kind in (int, str, bool, float)},
    Item: _plain(str, int, float),
    DType: _Form(lambda dtype, _store: str(dtype), lambda data, _source: DType(data)),
    Dim: _DIM,
    AnyDim: _DIM,
    Array: _ARRAY,
    Mapping[str, Array]: _Form(
        lambda arrays, store: {n: _encode_array(one, store) for n, one in arrays.items()},
        lambda data, source: {n: _decode_array(one, source) for n, one in data.items()},
    ),
    # a guard's, which may have none
    Location | None: _Form(
        lambda location, store: _form(Location).encode(location or Location(), store),
        lambda data, source: _form(Location).decode(data, source),
    ),
    Buffer: _Form(_encode_buffer, _decode_buffer),
    Verdict: _Form(_encode_verdict, _decode_verdict),
    Instruction: _Form(_encode_instruction, _decode_instruction),
}
_VALUES, _DIMS = _form(tuple[Value, ...]), _form(tuple[Dim, ...])
