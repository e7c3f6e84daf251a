"""Programs as files: a program and its blobs in, one `.graft` file out, and back.

docs/artifact.md describes the format. Code and blobs are checked against their SHA-256 on every
load. Constants are mapped, not read; they are checked when they are small, on request, or else by
whoever uses them first.
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

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import Place, UserError
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
from graft.runtime.cores import available_cores
from graft.runtime.encoding import (
    decode_integers,
    decode_program,
    decode_target,
    decode_text,
    decode_threads,
    encode_program,
    encode_target,
)
from graft.runtime.flow_encoding import (
    Pool,
    Shared,
    decode_flow_program,
    decode_programs,
    encode_flow_program,
)
from graft.runtime.flow_program import FlowProgram
from graft.runtime.memory import ALIGNMENT, address_of, aligned_copy, aligned_size
from graft.runtime.native import why_not_here
from graft.runtime.program import Target
from graft.runtime.specialized import AnyProgram, SpecializedProgram, evaluated_steps
from graft.runtime.specialized_encoding import decode_variants, encode_variants

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

    program: AnyProgram | SpecializedProgram
    origin: Origin
    blobs: Mapping[str, memoryview]
    operators: tuple[str, ...]  # that the reference evaluator has to know
    image: memoryview  # the whole file
    unverified: Callable[[], None] | None = None  # compares constants that nobody has looked at


def save(
    program: AnyProgram | SpecializedProgram,
    path: str | os.PathLike[str],
    origin: Origin,
    blobs: Mapping[str, bytes] | None = None,
) -> list[str]:
    """Write a program to a file; either the whole file appears under its name or nothing.

    Tells which operators the reference evaluator has to know where it is loaded."""
    program.validate()
    pool = Pool()
    operators = {name for _, graph in evaluated_steps(program) for name in graph.operators}
    header = {
        "graft": origin.graft,
        "backends": dict(origin.backends),
        "target": encode_target(program.target),
        "evaluator": sorted(operators),
        **_described(program, pool),
    }
    header["constants"] = [[dtype_of(c.dtype), list(c.shape)] for c in pool.constants]
    sections = [
        Section(f"{_CODE}{index}", [memoryview(code)]) for index, code in enumerate(pool.objects)
    ]
    for name, blob in (blobs or {}).items():
        sections.append(Section(f"{_BLOB}{name}", [memoryview(blob)]))
    constants = [_bytes(c) for c in pool.constants]
    header["digests"] = _digests(pool.constants)
    sections.append(Section(_CONSTANTS, constants))
    write(Path(path), header, sections)
    return sorted(operators)


def _described(program: AnyProgram | SpecializedProgram, pool: Pool) -> dict[str, Any]:
    """What a header says of a program; its constants and code go to the pool."""
    if isinstance(program, SpecializedProgram):
        variants = encode_variants(program, pool)
        return {**_described(program.general, pool), **variants}
    if isinstance(program, FlowProgram):
        described = encode_flow_program(program, pool)
        return {"threads": program.threads, **described, "programs": pool.programs}
    pool.constants += program.constants
    pool.objects += program.objects
    return encode_program(program, pool.constant)


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
    return _loaded(parse(data.data, Place()), verify)


def _loaded(container: Container, verify: bool | None, to_run: bool = True) -> Artifact:
    place = container.source
    try:
        if to_run:
            _check_target(decode_target(container.header["target"]), place)
        is_small = len(container.sections[_CONSTANTS]) < _VERIFIED_UNASKED
        if verify or (verify is None and is_small):
            container.verify(_CONSTANTS)
        artifact = _decode(container)
        artifact.program.validate()
        if verify is None and not is_small:
            artifact = replace(artifact, unverified=partial(_verify_constants, container))
    except ArtifactError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, UserError) as error:
        raise contradictory(error, place) from error
    return artifact


def _decode(container: Container) -> Artifact:
    header = container.header
    code, blobs = {}, {}
    for name in container.sections:
        if name.startswith(_CODE):
            code[int(name.removeprefix(_CODE))] = bytes(container.verify(name))
        elif name.startswith(_BLOB):
            blobs[name.removeprefix(_BLOB)] = container.verify(name)
    target = decode_target(header["target"])
    objects = tuple(code[index] for index in range(len(code)))
    constants = _mapped(header["constants"], container.sections[_CONSTANTS])
    program: AnyProgram | SpecializedProgram
    if "flow" in header:
        shared = Shared(constants, decode_programs(header["programs"], target, constants, objects))
        general = decode_flow_program(header, target, shared)
        program = replace(general, threads=decode_threads(header["threads"]))
        if "variants" in header:
            program = decode_variants(header, program, shared)
    else:
        program = decode_program(header, target, constants, objects, constants)
    operators = tuple(decode_text(name) for name in header.get("evaluator", ()))
    origin = Origin(header["graft"], dict(header["backends"]))
    return Artifact(container.format, program, origin, blobs, operators, container.image)


def _verify_constants(container: Container) -> None:
    """Compare each constant with its checksum, or all together in files that have none of each."""
    if "digests" not in container.header:
        container.verify(_CONSTANTS)
        return
    described, wanted = container.header["constants"], container.header["digests"]
    found = _digests(_mapped(described, container.sections[_CONSTANTS]))
    for number, ((dtype, shape), *digests) in enumerate(zip(described, found, wanted, strict=True)):
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
        dtype, shape = DType(name).numpy, decode_integers(extents)
        if min(shape, default=0) < 0:
            raise ValueError(f"a constant has the extent {min(shape)}")
        array: Array = np.ndarray(shape, dtype, data, offset)
        constants.append(array)
        offset = aligned_size(offset + array.nbytes)
    return tuple(constants)


def _check_target(target: Target, place: Place) -> None:
    reason = why_not_here(target)
    if reason:
        raise ArtifactError(f"this file {reason}", place, "compile the model for this machine")
