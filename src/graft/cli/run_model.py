"""A model as something to run: an ONNX file and what is asked in, a `Runnable` out.

It stands apart from `runnable.py` because it needs the whole compiler.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from graft.cli.index_bounds import index_bounds
from graft.cli.placement import check_targets, compiled_as_asked
from graft.cli.report import seconds_text
from graft.cli.runnable import Runnable, flow_text, general
from graft.cli.status import status
from graft.runtime.flow_session import FlowSession
from graft.runtime.loop_bodies import steps_of
from graft.runtime.specialized_session import AnySession
from graft.stages import import_graph


def compiled(
    path: Path,
    asked: dict[str, Any],
    save_plan: Path | None,
    threads: int | None,
    accuracy: str,
    strict_import: bool,
) -> Runnable:
    """A model, compiled and ready to run."""
    start = time.perf_counter()
    title = f"compiling {path.name}"
    check_targets(asked["target"])  # before anything takes time
    with status(f"importing {path.name}"):
        model = import_graph(path, strict_import)
    module = compiled_as_asked(model, title, asked, save_plan, threads=threads, accuracy=accuracy)
    session = module.program.session
    seconds = time.perf_counter() - start
    placement = module.placement
    threads = None if session is None else session.threads
    return Runnable(
        module.signature.inputs,
        module.signature.input_symbols,
        module.signature.output_names,
        lambda feeds: module.run(None, feeds),
        session,
        "" if session is not None else "the reference evaluator runs it",
        str(placement),
        f"compiled in {seconds_text(seconds)}{_steps_text(session)}",
        {
            "placement": dict(placement.nodes),
            "threads": threads,
            "compile_seconds": seconds,
            "python_steps": _python_steps(session),
        },
        index_bounds(model.graph),
        lambda: module.incidents,
        module,
    )


def _python_steps(session: AnySession | None) -> int | None:
    """How often an inference comes back to Python; not known of the evaluator alone."""
    if session is None:
        return None
    plain = general(session)
    return steps_of(plain.program.flow) if isinstance(plain, FlowSession) else 1


def _steps_text(session: AnySession | None) -> str:
    plain = None if session is None else general(session)
    return f"; {flow_text(plain)} per inference" if isinstance(plain, FlowSession) else ""
