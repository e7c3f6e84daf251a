"""Saving a compiled model: a graph and a path in; the file, and what to say about it, out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.backends.host.options import Accuracy
from graft.cli.placement import compiled_as_asked
from graft.cli.report import Block, Indented, number, seconds_text, size_text, table
from graft.cli.status import spoken_warnings, status
from graft.ir.graph import Graph
from graft.module import Placement
from graft.program.memory import arena_bytes


@dataclass(frozen=True, slots=True)
class Saved:
    """A compiled file in figures."""

    model: Path
    path: Path
    machine: str
    placement: Placement
    calls: int
    kernels: int  # equal ones counted once
    file_bytes: int
    arena_bytes: int | None  # None: depends on the inputs
    arena_bound: int | None  # no plan for these steps can do with less
    seconds: float

    def lines(self) -> Iterator[Block]:
        """For people."""
        yield f"{self.model} -> {self.path}"
        arena = "as large as the inputs make it"
        if self.arena_bytes is not None and self.arena_bound is not None:
            arena = f"{size_text(self.arena_bytes)} (at least {size_text(self.arena_bound)} needed)"
        rows = (
            ("machine", self.machine),
            ("placement", str(self.placement)),
            ("kernels", f"{number(self.kernels)}, called {number(self.calls)} times"),
            ("file", size_text(self.file_bytes)),
            ("arena", arena),
        )
        yield from map(Indented, table(rows))
        yield f"compiled in {seconds_text(self.seconds)}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": str(self.model),
            "file": str(self.path),
            "machine": self.machine,
            "placement": dict(self.placement.nodes),
            "variants": {
                name: dict(variant.nodes) for name, variant in self.placement.variants.items()
            },
            "kernels": self.kernels,
            "kernel_calls": self.calls,
            "file_bytes": self.file_bytes,
            "arena_bytes": self.arena_bytes,
            "arena_bound_bytes": self.arena_bound,
            "compile_seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a model is to be compiled; `asked` is about placement."""

    asked: dict[str, Any]
    save_plan: Path | None
    threads: int | None
    machine: str
    accuracy: Accuracy


def save(
    model: Path,
    graph: Graph,
    path: Path,
    wishes: Wishes,
    start: float,
) -> Saved:
    """Compile a graph for a machine and save it; `start` is when the work on it began."""
    module = compiled_as_asked(
        graph,
        f"compiling {model.name}",
        wishes.asked,
        wishes.save_plan,
        threads=wishes.threads,
        machine=wishes.machine,
        accuracy=wishes.accuracy.value,
    )
    with status(f"saving {path.name}"), spoken_warnings():
        module.save(path)
    seconds = time.perf_counter() - start
    symbols = [call.symbol for call in module.program.calls]
    bound, placement = module.arena_bound, module.placement
    assert isinstance(placement, Placement)
    return Saved(
        model,
        path,
        wishes.machine,
        placement,
        len(symbols),
        len(set(symbols)),
        path.stat().st_size,
        None if bound is None else arena_bytes(module.program),
        bound,
        seconds,
    )
