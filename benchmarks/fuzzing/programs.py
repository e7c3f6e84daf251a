"""Changes what a program says: a sound artifact in, another one with right checksums out.

Whoever does this on purpose can change the machine code, too, against which nothing helps. So code
is left as it is, and so is what it is told (calls of kernels, memory for them, and the types of
what they read and write). Everything around it is changed: instructions, operands, types, extents,
sizes, blocks. A file that contradicts itself is refused; one that does not means something else,
runs to its end, and touches no memory but its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from graft.byoc.kit.draw import Draw
from graft.runtime.container import Section, read, write

_MOST = 3  # changes of one file
_INTEGERS = (0, 1, -1, 2, 3, 7, 63, 65, -2, 2**31, 2**40, 2**62, -(2**63), 2**63)
_EXTENTS = ("n", "n - 7", "n//0", "-n", "n*n*n", "min(n, 3)", "2*n*9223372036854775807", "zzz")
# What code is told by a segment.
_TOLD = ("calls", "pools", "scratch", "guards", "guard_indices", "checks", "inputs", "outputs")

Place = tuple[Any, Any]  # a list or an object, and where in it


def changed_program(sound: Path, scratch: Path, draw: Draw) -> bytes:
    """A copy of an artifact that says something else, written to `scratch` on the way."""
    container = read(sound)
    header = copy.deepcopy({**container.header})
    told = _told_values(header["body"])
    for _ in range(draw.between(1, _MOST)):
        places = [*_places(header, told)]
        if places:
            _change(*draw.among(places), header, places, draw)
    sections = [Section(name, [view]) for name, view in container.sections.items()]
    header.pop("format", None)
    write(scratch, header, sections)
    return scratch.read_bytes()


def _places(header: dict[str, Any], told: set[int]) -> Iterator[Place]:
    """All that may be changed, but for what the values are that code is told of."""
    for number, value in enumerate(header["values"]):
        if number not in told and isinstance(value, list):
            yield from _below(value, range(len(value)))
    for name in ("constant_values", "output_names", "pool"):
        if header[name] and not (name == "constant_values" and told):
            yield from _below(header[name], range(len(header[name])))
    if header["body"]:
        yield from _below(header["body"], range(len(header["body"])))


def _told_values(block: Sequence[Any]) -> set[int]:
    """The values that code reads or writes: it relies on their types."""
    told: set[int] = set()
    for instruction in block[1]:
        if instruction["do"] == "segment":
            told |= {*instruction["inputs"], *instruction["outputs"]}
            told |= {b for call in instruction["calls"] for b in call[1] if isinstance(b, int)}
            told.add(instruction["guard_indices"])
        for inner in _blocks(instruction):
            told |= _told_values(inner)
    return told


def _blocks(instruction: dict[str, Any]) -> Iterator[Sequence[Any]]:
    for name in ("otherwise", "then", "default", "body"):
        if name in instruction:
            yield instruction[name]
    yield from (block for _, block in instruction.get("cases", ()))


def _below(around: Any, keys: Any) -> Iterator[Place]:
    for key in keys:
        yield around, key
        inner = around[key]
        if isinstance(inner, list):
            yield from _below(inner, range(len(inner)))
        elif isinstance(inner, dict):
            is_code = inner.get("do") == "segment"
            yield from _below(inner, [k for k in inner if not (is_code and k in _TOLD)])


def _change(
    around: Any, key: Any, header: dict[str, Any], places: Sequence[Place], draw: Draw
) -> None:
    """Change what is in one place."""
    if isinstance(around, list) and key >= len(around):
        return
    present = around[key]
    options: list[Callable[[], Any]] = []
    if isinstance(present, bool):
        options = [lambda: not present]
    elif isinstance(present, int):
        count = len(header["values"])
        options = [lambda: draw.between(0, count)] * 3 + [lambda: draw.among(_INTEGERS)]
        options += [lambda: present + draw.among((-1, 1)), lambda: draw.among(_EXTENTS)]
    elif isinstance(present, str):
        texts = [*_texts(header["body"]), *_texts(header["values"]), *_EXTENTS]
        options = [lambda: draw.among(texts), lambda: draw.among(_INTEGERS), lambda: ""]
    elif isinstance(present, list):
        options = [list, lambda: [*present, *present], lambda: present[::-1]]
        options += [lambda: present[1:], lambda: present[:-1], lambda: _other(places, draw)]
    elif isinstance(present, dict):
        options = [lambda: _other(places, draw)]
    options += [lambda: None]
    around[key] = draw.among(options)()


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, list | dict):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from _texts(inner)


def _other(places: Sequence[Place], draw: Draw) -> Any:
    """Something from another place."""
    around, key = draw.among(places)
    return copy.deepcopy(around[key])
