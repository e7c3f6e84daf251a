"""Models compiled as the options say: a model in; a module, or what `graft run` runs, out."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graft.base.quantities import time_text
from graft.byoc.annotate import Pins
from graft.byoc.discover import find_backends
from graft.byoc.scopes import all_nodes
from graft.cli.options import UsageError
from graft.cli.profile import decides
from graft.cli.runnable import Runnable, is_native, python_steps, steps_text
from graft.cli.survey import index_bounds
from graft.cli.terminal import spoken_warnings, status
from graft.compiler import Model, compile
from graft.ir.graph import Graph
from graft.module import Module
from graft.passes.name_apart import name_apart
from graft.program.variants import general_block
from graft.runtime.loaders import family_of
from graft.runtime.placement import PlacedRegion
from graft.stages import Imported, import_graph, optimize


def check_targets(names: Sequence[str]) -> None:
    """Refuse unknown names of backends."""
    backends = find_backends()
    backend_names = sorted({*backends.backends, *(item.name for item in backends.broken)})
    for name in names:
        if name not in backend_names and family_of(name) not in backend_names:
            close = difflib.get_close_matches(name, backend_names, n=1)
            known = f"there are {', '.join(backend_names)}"
            hint = f"did you mean '{close[0]}'?" if close else known
            raise UsageError(f"there is no backend '{name}'", hint=hint)


def compiled_as_asked(
    model: Model, title: str, asked: dict[str, Any], save_plan: Path | None, **others: Any
) -> Module:
    """Compile with progress on the terminal, and write the plan to `save_plan`, if given."""
    check_targets(asked["target"])
    with status(title) as tell, spoken_warnings():
        module = compile(model, **asked, **others, report=tell)
    if save_plan is not None:
        write_plan(module, save_plan)
    return module


def compiled(
    path: Path,
    asked: dict[str, Any],
    save_plan: Path | None,
    threads: int | None,
    accuracy: str,
    strict_import: bool,
) -> Runnable:
    """An ONNX file, compiled and ready to run."""
    start = time.perf_counter()
    check_targets(asked["target"])  # before anything takes time
    with status(f"importing {path.name}"):
        model = import_graph(path, strict_import)
    title = f"compiling {path.name}"
    module = compiled_as_asked(model, title, asked, save_plan, threads=threads, accuracy=accuracy)
    seconds = time.perf_counter() - start
    program, is_compiled = module.program, is_native(module)
    is_dynamic = is_compiled and decides(program)
    steps = python_steps(general_block(program)) if is_dynamic else 1
    note = f"; {steps_text(program)} per inference" if is_dynamic else ""
    return Runnable(
        module,
        model.graph.inputs,
        model.graph.input_symbols,
        str(module.placement),
        f"compiled in {time_text(seconds)}{note}",
        {
            "placement": dict(module.placement.nodes),
            "threads": module.threads if is_compiled else None,
            "compile_seconds": seconds,
            "python_steps": steps if is_compiled else None,
        },
        index_bounds(model.graph),
    )


def same_placement(
    wishes: dict[str, Any], regions: Sequence[PlacedRegion], graph: Graph
) -> dict[str, Any]:
    """Options of `graft.compile` by which nodes run where they did before, for a model with fewer
    nodes or other outputs; pins that match none of its nodes are left out."""
    if not regions and not wishes.get("pins"):
        return {name: wish for name, wish in wishes.items() if name != "plan"}
    nodes = all_nodes(name_apart(optimize(Imported(graph)).graph))
    own = {node.output.name for node in nodes}
    before = [f"{_literally(n)}={one.backend}" for one in regions for n in one.nodes if n in own]
    pins = Pins.parse([*wishes.get("pins", ()), *before])
    unused = pins.unused(nodes)
    fitting = [str(pin) for pin in pins.pins if pin not in unused]
    asked = {name: wish for name, wish in wishes.items() if name not in ("pins", "plan")}
    if fitting:
        asked["pins"] = fitting
    return {**asked, "fallback": "host"} if before else asked


def _literally(name: str) -> str:
    """A glob that matches the name only."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def write_plan(module: Module, path: Path) -> None:
    """Write the plan that a module follows."""
    assert module.placement.plan is not None, "there is an accelerator among the targets"
    path.write_text(module.placement.plan.to_text(), encoding="utf-8")
