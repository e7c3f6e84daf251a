"""The file around a program: a header and named sections in, one file out, and back.

Knows nothing of programs. Every byte of the file is accounted for: by its place in the preamble, or
by the SHA-256 of the header or of a section. Sections are mapped, never read as a whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

from graft.base.errors import Location, UserError
from graft.program.program import ALIGNMENT
from graft.runtime.memory import aligned_size

MAGIC = b"\x89GRAFT\r\n"
# Counts up with every change to the file or to what the driver and the run time agree on.
FORMAT, OLDEST = 12, 12

# Magic, format, nothing, bytes of the header, bytes of the file, SHA-256 of the header.
_PREAMBLE = Struct("<8sIIQQ32s")
_CHUNK = 1 << 20
# Files that are being written, or whose writer was interrupted.
_UNFINISHED = re.compile(r"\.graft-[0-9a-f]{16}\.part")
_SECONDS_TO_LOCK, _SECONDS_TO_WRITE = 60, 24 * 3600
_ZEROS = bytes(ALIGNMENT)


class ArtifactError(UserError):
    """A file that holds no program this machine can load, or that cannot be written."""


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes to be written under a name, in pieces that are each aligned."""

    name: str
    pieces: Sequence[memoryview]

    def padded(self) -> Iterator[memoryview | bytes]:
        for piece in self.pieces:
            yield piece
            yield _ZEROS[: aligned_size(len(piece)) - len(piece)]

    @property
    def nbytes(self) -> int:
        """Without the padding of the last piece."""
        sizes = [len(piece) for piece in self.pieces]
        return sum(map(aligned_size, sizes[:-1])) + sum(sizes[-1:])


@dataclass(frozen=True, eq=False)
class Container:
    """A file as it was read: its header, and its sections as views of the mapped file."""

    format: int
    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]
    _digests: Mapping[str, str] = field(repr=False)
    _padded: Mapping[str, memoryview] = field(repr=False)
    _location: Location
    image: memoryview = field(repr=False)  # the whole file

    @property
    def source(self) -> Location:
        """The file, for error messages."""
        return self._location

    def verify(self, name: str) -> memoryview:
        """A section, compared with its checksum."""
        if _digest([self._padded[name]]) != self._digests[name]:
            raise damaged(f"the section '{name}' does not match its checksum", self._location)
        return self.sections[name]


def write(path: Path, header: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Write a file; it appears under its name when it is whole, or not at all."""
    table = []
    end = 0
    for section in sections:
        table.append([section.name, end, section.nbytes, _digest(section.padded())])
        end += aligned_size(section.nbytes)
    described = {**header, "format": FORMAT, "sections": table}
    text = json.dumps(described, separators=(",", ":")).encode("utf-8")
    text = text.ljust(aligned_size(len(text)))
    size = _PREAMBLE.size + len(text) + end
    digest = hashlib.sha256(text).digest()
    preamble = _PREAMBLE.pack(MAGIC, FORMAT, 0, len(text), size, digest)
    pieces = (piece for section in sections for piece in section.padded())
    _write_atomically(path, [preamble, text, *pieces])


def write_image(path: Path, image: memoryview) -> None:
    """Write the bytes of a file once more."""
    _write_atomically(path, [image])


def _write_atomically(path: Path, pieces: Iterable[memoryview | bytes]) -> None:
    """By way of a file of another name, beside it, so that renaming it is one step.

    It is locked while it is written; a writer that is killed leaves it unlocked."""
    _sweep(path.parent)
    temporary = path.with_name(f".graft-{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "xb") as file:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _sweep(folder: Path) -> None:
    """Remove unfinished files without a writer.

    What is a minute old was locked if its writer is alive; without locks, a day has to do."""
    with suppress(OSError):
        for entry in [*os.scandir(folder)]:
            if _UNFINISHED.fullmatch(entry.name) and _is_abandoned(entry):
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    age = 0.0
    try:
        age = time.time() - entry.stat(follow_symlinks=False).st_mtime
        if age < _SECONDS_TO_LOCK or not entry.is_file(follow_symlinks=False):
            return False
        with open(entry.path, "rb") as file:
            if file.read(len(MAGIC)) not in (MAGIC, b""):
                return False
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age > _SECONDS_TO_WRITE
    return True


def read(path: Path) -> Container:
    """Map a file and check all of it but the sections' contents."""
    location = Location(source=str(path))
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_preamble(file.read(_PREAMBLE.size), size, location)
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    return parse(mapped, location)


def parse(image: memoryview, location: Location) -> Container:
    """The same for the bytes of a file, which have to be aligned as its sections are."""
    head = bytes(image[: _PREAMBLE.size])
    start = _PREAMBLE.size + _check_preamble(head, len(image), location)
    text = image[_PREAMBLE.size : start]
    if hashlib.sha256(text).digest() != head[-32:]:
        raise damaged("its header does not match its checksum", location)
    try:
        header = json.loads(bytes(text))
        version = _check_format(header, head)
        return _container(version, header, image, start, location)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged("its header makes no sense", location) from error


def _check_format(header: dict[str, Any], head: bytes) -> int:
    """The format. The header repeats it, so that a number that came to harm is not another's."""
    version = int(_PREAMBLE.unpack(head)[1])
    if header.pop("format") != version:
        raise ValueError("two formats are named")
    return version


def _container(
    version: int, header: dict[str, Any], image: memoryview, start: int, location: Location
) -> Container:
    data = image[start:]
    sections, padded, digests = {}, {}, {}
    end = 0
    for name, offset, nbytes, digest in header.pop("sections"):
        if offset != end or not 0 <= nbytes <= len(data) - offset or name in sections:
            raise ValueError("sections have to follow one another")
        end = offset + aligned_size(nbytes)
        sections[name] = data[offset : offset + nbytes]
        padded[name] = data[offset:end]
        digests[name] = digest
    if end != len(data):
        raise ValueError("sections have to fill the file")
    return Container(version, header, sections, digests, padded, location, image)


def _check_preamble(head: bytes, size: int, location: Location) -> int:
    """The number of bytes of the header; refuses what Graft did not write, or not this Graft."""
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        raise _foreign(head, location)
    if len(head) < _PREAMBLE.size:
        raise damaged(f"it ends after {len(head)} bytes", location)
    _, version, nothing, header_bytes, file_bytes, _ = _PREAMBLE.unpack(head)
    if version > FORMAT:
        raise ArtifactError(
            f"this file is in format {version}, and this Graft reads formats up to {FORMAT}",
            location,
            hint="update Graft, or compile the model again with this one",
        )
    if 1 <= version < OLDEST:
        raise ArtifactError(
            f"this file is in format {version}, and this Graft reads formats from {OLDEST} on",
            location,
            hint="compile the model again",
        )
    if size != file_bytes:
        raise damaged(f"it has {size} bytes and should have {file_bytes}", location)
    room = size - _PREAMBLE.size
    if version < 1 or nothing or header_bytes > room or header_bytes % ALIGNMENT:
        raise damaged("its first bytes make no sense", location)
    return int(header_bytes)


def _foreign(head: bytes, location: Location) -> ArtifactError:
    hint = ""
    if location.source.endswith(".onnx") or head[:1] == b"\x08":
        hint = "this looks like an ONNX model: graft.compile takes it"
    elif head[:6] == MAGIC[:6]:
        hint = "line ends were converted: copy the file in binary mode"
    return ArtifactError("this is not a file that Graft wrote", location, hint)


def damaged(how: str, location: Location) -> ArtifactError:
    """The error for a file that is not as it was written."""
    hint = "copy the file again, or compile the model again"
    return ArtifactError(f"this file is damaged: {how}", location, hint)


def contradictory(error: Exception, location: Location | None = None) -> ArtifactError:
    """The error for a file that is as it was written, and makes no sense."""
    return ArtifactError(
        f"this file contradicts itself: {error}", location, "compile the model again"
    )


def digest(piece: memoryview) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return _digest([piece])


def _digest(pieces: Iterable[memoryview | bytes]) -> str:
    """Piece by piece, so that a mapped file need not be in memory as a whole."""
    digest = hashlib.sha256()
    for piece in pieces:
        for start in range(0, len(piece), _CHUNK):
            digest.update(piece[start : start + _CHUNK])
    return digest.hexdigest()
