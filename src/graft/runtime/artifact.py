"""Programs as files: a program and its blobs in, one `.graft` file out, and back.

docs/artifact.md describes the format. Code and blobs are checked against their SHA-256 on every
load. Constants are mapped, not read; they are checked when they are small, on request, or else by
their first user.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graft.base.cores import available_cores
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import Location, UserError
from graft.program.encode import decode_program, encode_program, text
from graft.program.program import ALIGNMENT, Program, ProgramError, Target
from graft.program.verify import verify_program
from graft.runtime.container import (
    ArtifactError,
    Container,
    Section,
    contradictory,
    damaged,
    digest,
    parse,
    read,
    write,
)
from graft.runtime.memory import address_of, aligned_copy, aligned_size
from graft.runtime.native import why_not_here

SUFFIX = ".graft"
_CONSTANTS, _CODE, _BLOB = "constants", "code:", "blob:"
# Hashing takes about a second per gigabyte: up to this size nobody notices.
_VERIFIED_UNASKED = 64 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """What made an artifact: Graft's version, and the backends' versions by name."""

    graft: str
    backends: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Artifact:
    """What a file holds: a program, what made it, and blobs by name."""

    format: int
    program: Program
    origin: Origin
    blobs: Mapping[str, memoryview]
    operators: tuple[str, ...]  # that the reference evaluator has to know
    image: memoryview  # the whole file
    unverified: Callable[[], None] | None = None  # checks constants that have not been checked


def save(
    program: Program,
    path: str | os.PathLike[str],
    origin: Origin,
    blobs: Mapping[str, bytes] | None = None,
) -> list[str]:
    """Write a program to a file; either the whole file appears under its name or nothing.

    Tells which operators the reference evaluator has to know where it is loaded."""
    verify_program(program)
    pool = _Pool(program)
    operators = {name for step in program.evaluated for name in step.graph.operators}
    header = {
        "graft": origin.graft,
        "backends": dict(origin.backends),
        "evaluator": sorted(operators),
        **encode_program(program, pool.number),
    }
    header["constants"] = [[dtype_of(c.dtype), list(c.shape)] for c in pool.constants]
    sections = [
        Section(f"{_CODE}{index}", [memoryview(code)]) for index, code in enumerate(program.objects)
    ]
    for name, blob in (blobs or {}).items():
        sections.append(Section(f"{_BLOB}{name}", [memoryview(blob)]))
    constants = [_bytes(c) for c in pool.constants]
    header["digests"] = pool.digests
    sections.append(Section(_CONSTANTS, constants))
    write(Path(path), header, sections)
    return sorted(operators)


class _Pool:
    """The constants of a file, equal ones once: segments have copies of their own."""

    def __init__(self, program: Program) -> None:
        self.constants: list[Array] = []
        self.digests: list[str] = []
        self._numbers: dict[object, int] = {}
        arrays = [array for _, array in program.constants]
        arrays += [array for step in program.evaluated for array in step.graph.constants.values()]
        stored = {id(array): _storable(array) for array in arrays if not array.dtype.hasobject}
        self._stored = dict(zip(stored, _digest_of([*stored.values()]), strict=True))

    def number(self, array: Array) -> int:
        """The number of a constant."""
        stored, digested = self._stored[id(array)]
        key = stored.dtype, stored.shape, digested
        if key not in self._numbers:
            self._numbers[key] = len(self.constants)
            self.constants.append(stored)
            self.digests.append(digested)
        return self._numbers[key]


def _storable(array: Array) -> Array:
    return array if array.flags.c_contiguous else aligned_copy(np.asarray(array))


def _digest_of(arrays: Sequence[Array]) -> list[tuple[Array, str]]:
    return [*zip(arrays, _digests(arrays), strict=True)]


def load(path: str | os.PathLike[str], verify: bool | None = None) -> Artifact:
    """Read a file, its constants mapped into memory; refuses one that cannot run here.

    `verify` says whether to compare the constants with their checksum, which reads them all; by
    default they are if they have less than 64 MiB, and else left to `unverified`. The file may be
    replaced or deleted while it is in use, but must not be overwritten in place.
    """
    return _loaded(read(Path(path)), verify)


def examine(path: str | os.PathLike[str]) -> tuple[Artifact, str]:
    """A file that is not going to run, and why it could not run here; empty where it could."""
    container = read(Path(path))
    artifact = _loaded(container, verify=False, to_run=False)
    return artifact, why_not_here(artifact.program.target)


def load_image(image: bytes | memoryview, verify: bool | None = None) -> Artifact:
    """The same for the bytes of a file, which are copied where they are not aligned."""
    data: Array = np.frombuffer(image, np.uint8) if len(image) else np.empty(0, np.uint8)
    if address_of(data) % ALIGNMENT:
        data = aligned_copy(data)
        data.flags.writeable = False
    return _loaded(parse(data.data, Location()), verify)


def _loaded(container: Container, verify: bool | None, to_run: bool = True) -> Artifact:
    location = container.source
    try:
        if to_run:
            target = container.header["target"]
            _check_target(Target(target["triple"], tuple(target["features"])), location)
        is_small = len(container.sections[_CONSTANTS]) < _VERIFIED_UNASKED
        if verify or (verify is None and is_small):
            container.verify(_CONSTANTS)
        artifact = _decode(container)
        verify_program(artifact.program)
        if verify is None and not is_small:
            artifact = replace(artifact, unverified=partial(_verify_constants, container))
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, UserError) as error:
        raise contradictory(error, location) from error
    except RecursionError:
        raise contradictory(ProgramError("it is nested too deeply"), location) from None
    return artifact


def _decode(container: Container) -> Artifact:
    header = container.header
    code, blobs = {}, {}
    for name in container.sections:
        if name.startswith(_CODE):
            code[int(name.removeprefix(_CODE))] = bytes(container.verify(name))
        elif name.startswith(_BLOB):
            blobs[name.removeprefix(_BLOB)] = container.verify(name)
    objects = tuple(code[index] for index in range(len(code)))
    constants = _mapped(header["constants"], container.sections[_CONSTANTS])
    program = decode_program(header, constants, objects)
    operators = tuple(map(str, header["evaluator"]))
    versions = {text(name): text(one) for name, one in header["backends"].items()}
    origin = Origin(text(header["graft"]), versions)
    return Artifact(container.format, program, origin, blobs, operators, container.image)


def _verify_constants(container: Container) -> None:
    """Compare each constant with its checksum."""
    described, expected = container.header["constants"], container.header["digests"]
    actual = _digests(_mapped(described, container.sections[_CONSTANTS]))
    for number, ((dtype, shape), *digests) in enumerate(
        zip(described, actual, expected, strict=True)
    ):
        if len(set(digests)) > 1:
            which = f"constant {number}, {dtype}{shape}"
            raise damaged(f"{which}, does not match its checksum", container.source)


def _digests(constants: Sequence[Array]) -> list[str]:
    """Their checksums; hashing leaves other threads their turn, so that all cores work on it."""
    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(digest, map(_bytes, constants)))


def _bytes(constant: Array) -> memoryview:
    return constant.reshape(-1).view(np.uint8).data


def _mapped(described: list[Any], data: memoryview) -> tuple[Array, ...]:
    """Read-only arrays that lie in the mapped file."""
    constants: list[Array] = []
    offset = 0
    for name, extents in described:
        dtype, shape = DType(name).numpy, tuple(map(int, extents))
        if min(shape, default=0) < 0:
            raise ValueError(f"a constant has the extent {min(shape)}")
        array: Array = np.ndarray(shape, dtype, data, offset)
        constants.append(array)
        offset = aligned_size(offset + array.nbytes)
    return tuple(constants)


def _check_target(target: Target, location: Location) -> None:
    reason = why_not_here(target)
    if reason:
        raise ArtifactError(f"this file {reason}", location, "compile the model for this machine")
