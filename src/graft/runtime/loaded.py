"""`graft.load`: an artifact in, a session that runs it out. Compiles nothing."""

from __future__ import annotations

import os

from graft.runtime.artifact import load as load_artifact
from graft.runtime.session import Session


def load(
    path: str | os.PathLike[str], threads: int | None = None, verify: bool | None = None
) -> Session:
    """Load a compiled model from a `.graft` file.

    `threads` is how many threads run it, by default one per core; `verify` says whether large
    constants are compared with their checksum, too.
    """
    return Session(load_artifact(path, verify).program, threads)
