"""Saving a compiled model: a model and a path in; the file, and what to say about it, out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.byoc.executable import Footprint, Settings
from graft.cli.placement import compiled_as_asked
from graft.cli.report import Block, Indented, number, seconds_text, size_text, table
from graft.cli.status import spoken_warnings, status
from graft.compiler import Model
from graft.module import Placement
from graft.program.memory import arena_bytes


@dataclass(frozen=True, slots=True)
class Saved:
    """A compiled file in figures."""

    model: Path
    path: Path
    machine: str
    placement: Placement
    size: Footprint
    file_bytes: int
    seconds: float

    def lines(self) -> Iterator[Block]:
        """For people."""
        yield f"{self.model} -> {self.path}"
        arena = "as large as the inputs make it"
        held, bound = self.size.arena_bytes, self.size.arena_bound
        if held is not None and bound is not None:
            arena = f"{size_text(held)} (at least {size_text(bound)} needed)"
        rows = (
            ("machine", self.machine),
            ("placement", str(self.placement)),
            ("kernels", f"{number(self.size.kernels)}, called {number(self.size.calls)} times"),
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
            "kernels": self.size.kernels,
            "kernel_calls": self.size.calls,
            "file_bytes": self.file_bytes,
            "arena_bytes": self.size.arena_bytes,
            "arena_bound_bytes": self.size.arena_bound,
            "compile_seconds": self.seconds,
        }


def save(
    model: Model,
    paths: tuple[Path, Path],
    asked: dict[str, Any],
    settings: Settings,
    save_plan: Path | None,
    start: float,
) -> Saved:
    """Compile a model and save it; `paths` are where it comes from and goes to, `asked` is about
    placement, `start` when the work on it began."""
    source, path = paths
    module = compiled_as_asked(
        model,
        f"compiling {source.name}",
        asked,
        save_plan,
        threads=settings.threads,
        machine=settings.machine,
        accuracy=settings.accuracy.value,
    )
    with status(f"saving {path.name}"), spoken_warnings():
        module.save(path)
    seconds = time.perf_counter() - start
    symbols = [call.symbol for call in module.program.calls]
    bound, placement = module.arena_bound, module.placement
    assert isinstance(placement, Placement)
    arena = None if bound is None else arena_bytes(module.program)
    size, held = Footprint.of(symbols, arena, bound), path.stat().st_size
    return Saved(source, path, settings.machine, placement, size, held, seconds)
