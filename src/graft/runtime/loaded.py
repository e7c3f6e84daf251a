"""`graft.load`: an artifact in, a session that runs it out. Compiles nothing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any

from graft.base.errors import UserError
from graft.runtime.artifact import Artifact, load_image
from graft.runtime.artifact import load as load_artifact
from graft.runtime.container import contradictory
from graft.runtime.evaluated import Evaluator, Supplied, evaluator_runtime
from graft.runtime.placement import BLOB, StoredPlacement
from graft.runtime.regions import Region
from graft.runtime.session import Session
from graft.runtime.spaces import Runner


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    checksum: bool | None = None,
    verify: str | None = None,
    deadline: float | None = None,
) -> Session:
    """Load a compiled model from a `.graft` file.

    `threads` is how many threads run it, by default as many as it was compiled for, at most one per
    core; `checksum` says whether large constants are compared with their checksum here (True),
    never (False), or when they are used first. Regions of other backends are loaded by their own
    run times; where one is missing, the host stands in, with a warning, unless the model was
    compiled with `fallback="error"`. `verify` and `deadline` are as for `compile`, by default as
    the model was compiled with; what goes wrong is in `incidents`.

    A loaded model can be pickled: its file goes along, and so do these options.
    """
    return _session(load_artifact(path, checksum), threads, checksum, verify, deadline)


def restore(image: bytes, options: Mapping[str, Any]) -> Session:
    """A model out of a pickle, which holds the bytes of its file."""
    return _session(load_image(image, options.get("checksum")), **options)


def _session(
    artifact: Artifact,
    threads: int | None = None,
    checksum: bool | None = None,
    verify: str | None = None,
    deadline: float | None = None,
) -> Session:
    # Most files have no regions, and looking for run times of other backends is slow to import.
    regions: Mapping[str, Region] = {}
    if artifact.blobs.keys() - {BLOB}:
        grafted = importlib.import_module("graft.runtime.grafted")
        regions = grafted.load_regions(artifact.blobs, threads, verify, deadline)
    session = session_of(artifact, threads, regions)
    session.placement = StoredPlacement.from_blobs(artifact.blobs)
    session.image = artifact.image
    session.options = {
        "threads": threads,
        "checksum": checksum,
        "verify": verify,
        "deadline": deadline,
    }
    session.regions = regions
    if artifact.unverified is not None:
        _verify_before_use(session, artifact.unverified)
    return session


def session_of(
    artifact: Artifact,
    threads: int | None = None,
    functions: Mapping[str, Runner] | None = None,
) -> Session:
    """What runs an artifact's program; `functions` are those of the regions that it calls."""
    evaluators: dict[str, Evaluator] = {}
    if artifact.operators:
        runtime = evaluator_runtime(artifact.operators, artifact.origin.graft)
        for step in artifact.program.evaluated:
            try:
                evaluators[step.function] = runtime(step.graph)
            except (UserError, ValueError) as error:
                raise contradictory(error) from error
    return Session(artifact.program, threads, Supplied(functions or {}, evaluators))


def _verify_before_use(session: Session, verify: Callable[[], None]) -> None:
    """Let whatever runs the session first compare its constants; nothing runs on damaged ones.

    The methods are replaced in the instance only until then: runs of small models take about as
    long as asking whether something is still to be done.
    """
    lock = Lock()
    names = ("run", "bind", "profile")

    def checked(name: str, *arguments: Any, **options: Any) -> Any:
        with lock:
            if name in vars(session):
                verify()
                for one in names:
                    delattr(session, one)
        return getattr(session, name)(*arguments, **options)

    for name in names:
        setattr(session, name, partial(checked, name))
