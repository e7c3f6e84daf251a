"""The folder of everything that Graft keeps between processes: kernels, prices, calibrations."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def default_folder() -> Path:
    """$GRAFT_CACHE_DIR, or `graft` in the user's cache folder."""
    chosen = os.environ.get("GRAFT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "graft"


def keep_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; a disk that is full or read-only only costs time."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
