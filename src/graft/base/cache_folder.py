"""The folder that Graft caches kernels, prices and calibrations in.

Nothing depends on it: if it cannot be used, there is one warning and everything is recomputed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from graft.base.errors import GraftWarning, warn_user

_PRIVATE = 0o700
_OTHERS = 0o077  # the permissions of others than the owner
_warned: set[Path] = set()  # cache folders that have been warned of


class CacheWarning(GraftWarning):
    """The cache folder cannot be used; everything works, and takes longer."""


def default_folder() -> Path:
    """$GRAFT_CACHE_DIR, or `graft` in the user's cache folder."""
    override = os.environ.get("GRAFT_CACHE_DIR")
    if override:
        return Path(override)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no $HOME, and a user whom the system does not know
        base = os.devnull  # in which there is nothing, and never will be
    return Path(base) / "graft"


@cache
def is_private(folder: Path) -> bool:
    """Whether a folder exists or can be created, and only this user has access to it.

    Machine code is loaded from it, so nobody else may be able to write there. Checked once per
    process.
    """
    try:
        folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
        status = folder.stat()
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            warn_uncached(folder, "it belongs to another user")
            return False
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            folder.chmod(_PRIVATE)
    except OSError as error:
        warn_uncached(folder, error.strerror or str(error))
        return False
    return True


def keep_text(path: Path, text: str) -> None:
    """Write a file atomically; a full or read-only disk is a warning, not an error."""
    keep_bytes(path, text.encode("utf-8"))


def keep_bytes(path: Path, content: bytes, suffix: str = "") -> None:
    """As `keep_text`, for bytes; `suffix` is that of the temporary file."""
    temporary = None
    try:
        path.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=suffix, dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        warn_uncached(path.parent, error.strerror or str(error))
    else:
        temporary = None
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def kept_bytes(path: Path, make: Callable[[], bytes]) -> bytes:
    """What a file of the cache folder holds; made, and kept if possible, where it is not there."""
    is_usable = is_private(default_folder())
    if is_usable and path.exists():
        return path.read_bytes()
    content = make()
    if is_usable:
        keep_bytes(path, content)
    return content


def warn_uncached(folder: Path, reason: str) -> None:
    """Warn once per cache folder that results are not cached, and why."""
    root = default_folder()
    if root in _warned:
        return
    _warned.add(root)
    advice = "set GRAFT_CACHE_DIR to a folder of your own"
    message = f"nothing is kept for the next time: {folder}: {reason}; {advice}"
    warn_user(message, CacheWarning)
