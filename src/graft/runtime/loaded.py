"""`graft.load`: an artifact in, a session that runs it out. Compiles nothing."""

from __future__ import annotations

import importlib
import os

from graft.runtime.artifact import load as load_artifact
from graft.runtime.specialized_session import AnySession, session_of


def load(
    path: str | os.PathLike[str], threads: int | None = None, verify: bool | None = None
) -> AnySession:
    """Load a compiled model from a `.graft` file.

    `threads` is how many threads run it, by default as many as it was compiled for, at most one per
    core; `verify` says whether large constants are compared with their checksum, too. Regions of
    other backends are loaded by their own run times; where one is missing, the host stands in, with
    a warning, unless the model was compiled with `fallback="error"`.
    """
    artifact = load_artifact(path, verify)
    # Most files have no regions, and looking for run times of other backends is slow to import.
    regions = {}
    if artifact.blobs:
        grafted = importlib.import_module("graft.runtime.grafted")
        regions = grafted.load_regions(artifact.blobs, threads)
    return session_of(artifact, threads, regions)
