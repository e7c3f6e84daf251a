"""What `graft run` runs: a `.graft` file in; its inputs, its outputs and a way to call it out.

A model that has just been compiled takes the same form (`run_model.py`). Nothing here knows the
compiler: a file runs without it, and starts faster for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.cli.inputs import Input
from graft.cli.report import counted, seconds_text
from graft.cli.status import status
from graft.ir.types import TensorType, Type
from graft.runtime.loaded import load
from graft.runtime.session import Session

if TYPE_CHECKING:
    from graft.ir.evaluate import Data


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a compiled file."""

    name: str
    type: Type


@dataclass(frozen=True, eq=False)
class Runnable:
    """Something with named inputs and outputs that can be called."""

    inputs: Sequence[Input]
    input_symbols: frozenset[str]
    output_names: Sequence[str]
    run: Callable[[Mapping[str, Data]], Sequence[Data]]
    session: Session | None  # of native code
    why_not_native: str  # where there is no session
    summary: str
    readied: str  # how, and how long that took
    facts: Mapping[str, Any]  # both of them for programs


def loaded(path: Path, threads: int | None) -> Runnable:
    """A compiled file, ready to run."""
    start = time.perf_counter()
    with status(f"loading {path.name}"):
        session = load(path, threads)
    seconds = time.perf_counter() - start
    program = session.program
    steps, threads = len(program.steps), session.threads
    return Runnable(
        [Parameter(spec.name, TensorType(spec.dtype, spec.shape)) for spec in program.inputs],
        frozenset(),
        [spec.name for spec in program.outputs],
        lambda feeds: session.run(None, feeds),
        session,
        "",
        f"{counted(steps, 'native step')}, {counted(threads, 'thread')}",
        f"loaded in {seconds_text(seconds)}",
        {"steps": steps, "threads": threads, "load_seconds": seconds},
    )
