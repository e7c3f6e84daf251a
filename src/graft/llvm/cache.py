"""Object code on disk, by content.

In go a `Function` and a `Target`; out comes a key, a hash of all that the object code depends on:
the loop IR, the target, LLVM, and the code of this package, so that no entry is ever stale.
Many processes may use one folder: entries appear complete or not at all, a damaged one counts as
missing, and the least recently used go when the folder grows too large. The folder is this user's
alone, or it is not used: machine code is run from it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import llvmlite

from graft.base.cache_folder import default_folder, is_private, keep_bytes, warn_uncached
from graft.loop.ir import Buffer, Const, Function, Var
from graft.target.target import Target

DEFAULT_LIMIT = 512 * 1024 * 1024
_SUFFIX = ".o"
_TEMPORARY = ".partial"
_DIGEST_BYTES = 32
_SHARDS = 256  # folders, named by the first two digits of the keys in them
_ABANDONED_SECONDS = 3600  # after which a file's writer is assumed dead
# After eviction this much of the limit is in use, so that not every entry evicts another.
_KEPT_TENTHS = 8


def kernel_key(function: Function, target: Target) -> str:
    """The name of the function's object code; notes for people don't count."""
    content = _digest((function.name, function.parameters, function.body), {})
    parts = (content, target.key, llvmlite.__version__, _emitter_hash())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _digest(root: object, buffers: dict[int, str]) -> str:
    """A hash of what is in a tree of loop IR; `buffers` holds those of buffers seen before.

    Each part says how many follow it, so that different trees never read alike. There is no
    recursion but into buffers, since statements may be nested deeply. Compiling with a full cache
    spends much of its time here: hence short cuts for the commonest parts, and one hash at last.
    """
    parts: list[str] = []
    waiting = [root]
    while waiting:
        part = waiting.pop()
        kind: Any = type(part)
        if kind is Const:
            const = cast(Const, part)
            parts.append(f"{const.value!r} {const.dtype} {const.lanes}")
        elif kind is Var:
            var = cast(Var, part)
            parts.append(f"{var.name!r} {var.dtype} {var.lanes}")
        elif kind is Buffer and part is not root:
            if id(part) not in buffers:
                buffers[id(part)] = _digest(part, buffers)
            parts.append(buffers[id(part)])
        elif kind is tuple:
            items = cast(tuple[object, ...], part)
            parts.append(f"({len(items)}")
            waiting += items
        elif children := _children(kind):
            parts.append(kind.__name__)
            waiting += children(part)
        else:
            parts.append(str(part) if isinstance(part, StrEnum) else repr(part))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _children(kind: Any) -> Callable[[object], tuple[object, ...]] | None:
    """What reads all fields of a dataclass; None for other types."""
    if not is_dataclass(kind):
        return None
    names = [one.name for one in fields(kind) if one.init]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda part: tuple(getattr(part, name) for name in names)


@cache
def _emitter_hash() -> str:
    """A hash of the modules that turn loop IR into object code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a cache is."""

    folder: Path
    entries: int
    bytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class KernelCache:
    """A folder of object code."""

    folder: Path
    limit: int = DEFAULT_LIMIT

    def get(self, key: str) -> bytes | None:
        """The object code under a key, if the file is there, whole and the user's own."""
        path = self._path(key)
        if not is_private(self._root):
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            warn_uncached(path, error.strerror or str(error))
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        is_whole = hashlib.sha256(code).digest() == digest
        with suppress(OSError):  # on a disk that cannot be written, neither is done
            if is_whole:
                os.utime(path)
            else:
                path.unlink(missing_ok=True)
        return code if is_whole else None

    def remembered(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The object code under a key, made and kept if it is not there."""
        code = self.get(key)
        if code is None:
            code = make()
            self.put(key, code)
        return code

    def put(self, key: str, code: bytes) -> None:
        """Store object code under a key; concurrent readers see all of it or none."""
        path = self._path(key)
        if is_private(self._root):
            keep_bytes(path, hashlib.sha256(code).digest() + code, _TEMPORARY)
            with suppress(OSError):
                self._tidy(path.parent)

    def usage(self) -> Usage:
        """How many entries there are, and how large they are together."""
        sizes = [size for _, size, path in self._files(_SUFFIX)]
        return Usage(self.folder, len(sizes), sum(sizes), self.limit)

    def clear(self) -> Usage:
        """Remove all entries; says how many there were."""
        before = self.usage()
        for _, _, path in list(self._files(_SUFFIX)):
            path.unlink(missing_ok=True)
        return before

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / (key + _SUFFIX)

    @property
    def _root(self) -> Path:
        return self.folder / "kernels"

    def _files(self, suffix: str) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, size and path of each file; some may vanish meanwhile."""
        return _statuses(self._root.glob(f"*/*{suffix}"))

    def _tidy(self, shard: Path) -> None:
        """Evict entries if this shard suggests that the cache is over its limit.

        Keys are uniformly distributed, so one shard's size times their number estimates the total
        without listing every file, which may take longer than compiling."""
        for modified, _, path in _statuses(shard.glob(f"*{_TEMPORARY}")):
            if modified < time.time() - _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        sizes = (size for _, size, _ in _statuses(shard.glob(f"*{_SUFFIX}")))
        if sum(sizes) * _SHARDS > self.limit:
            self._evict()

    def _evict(self) -> None:
        files = sorted(self._files(_SUFFIX))
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return
        for _, size, path in files:
            path.unlink(missing_ok=True)
            total -= size
            if total <= self.limit * _KEPT_TENTHS // 10:
                return


def _statuses(paths: Iterable[Path]) -> Iterator[tuple[float, int, Path]]:
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


def default_cache() -> KernelCache:
    """The cache of this user."""
    return KernelCache(default_folder())
