"""A model as something to run: an ONNX file and a target in, a `Runnable` out.

It stands apart from `runnable.py` because it needs the whole compiler.
"""

from __future__ import annotations

import time
from pathlib import Path

from graft.backends.host.backend import HostExecutable
from graft.cli.report import seconds_text
from graft.cli.runnable import Runnable
from graft.cli.status import status
from graft.compiler import compile


def compiled(path: Path, target: str, threads: int | None, accuracy: str) -> Runnable:
    """A model, compiled and ready to run."""
    start = time.perf_counter()
    with status(f"compiling {path.name}"):
        module = compile(path, target, threads=threads, accuracy=accuracy)
        program = module.program
        session = program.session if isinstance(program, HostExecutable) else None
    seconds = time.perf_counter() - start
    placement = module.placement
    threads = None if session is None else session.threads
    return Runnable(
        module.signature.inputs,
        module.signature.input_symbols,
        module.signature.output_names,
        lambda feeds: module.run(None, feeds),
        session,
        next(iter(placement.reasons.values()), "") if session is None else "",
        str(placement),
        f"compiled in {seconds_text(seconds)}",
        {"placement": dict(placement.nodes), "threads": threads, "compile_seconds": seconds},
    )
