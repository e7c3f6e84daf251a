"""A model as something to run: an ONNX file and what is asked in, a `Runnable` out.

It stands apart from `runnable.py` because it needs the whole compiler.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from graft.cli.placement import check_targets, compiled_as_asked
from graft.cli.profile import decides
from graft.cli.report import seconds_text
from graft.cli.runnable import Runnable, is_native, python_steps, steps_text
from graft.cli.survey import index_bounds
from graft.cli.terminal import status
from graft.program.variants import general_block
from graft.runtime.session import Session
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
    seconds = time.perf_counter() - start
    return Runnable(
        module,
        model.graph.inputs,
        model.graph.input_symbols,
        str(module.placement),
        f"compiled in {seconds_text(seconds)}{_steps_text(module)}",
        {
            "placement": dict(module.placement.nodes),
            "threads": module.threads if is_native(module) else None,
            "compile_seconds": seconds,
            "python_steps": _python_steps(module),
        },
        index_bounds(model.graph),
    )


def _python_steps(session: Session) -> int | None:
    """How often an inference comes back to Python; not known of the evaluator alone."""
    if not is_native(session):
        return None
    program = session.program
    return python_steps(general_block(program)) if decides(program) else 1


def _steps_text(session: Session) -> str:
    if not is_native(session) or not decides(session.program):
        return ""
    return f"; {steps_text(session.program)} per inference"
