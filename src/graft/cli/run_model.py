"""A model as something to run: an ONNX file and what is asked in, a `Runnable` out.

It stands apart from `runnable.py` because it needs the whole compiler.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from graft.backends.host.backend import HostExecutable
from graft.backends.host.flow_program import FlowExecutable
from graft.backends.host.grafted import GraftedProgram
from graft.cli.placement import compiled_as_asked
from graft.cli.report import seconds_text
from graft.cli.runnable import Runnable, flow_text
from graft.runtime.flow import steps_of
from graft.runtime.flow_session import FlowSession
from graft.runtime.session import Session


def compiled(
    path: Path,
    asked: dict[str, Any],
    save_plan: Path | None,
    threads: int | None,
    accuracy: str,
) -> Runnable:
    """A model, compiled and ready to run."""
    start = time.perf_counter()
    title = f"compiling {path.name}"
    module = compiled_as_asked(path, title, asked, save_plan, threads=threads, accuracy=accuracy)
    program = module.program
    native = program.built if isinstance(program, GraftedProgram) else program
    session = native.session if isinstance(native, HostExecutable | FlowExecutable) else None
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
    )


def _python_steps(session: Session | FlowSession | None) -> int | None:
    """How often an inference comes back to Python; not known of the evaluator alone."""
    if isinstance(session, FlowSession):
        return steps_of(session.program.flow)
    return None if session is None else 1


def _steps_text(session: Session | FlowSession | None) -> str:
    return f"; {flow_text(session)} per inference" if isinstance(session, FlowSession) else ""
