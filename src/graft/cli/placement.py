"""Models compiled as the options on placement say: a model in, a module out, with what there is to
tell on standard error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graft.byoc.annotate import Pins
from graft.byoc.discover import find_backends
from graft.byoc.scopes import all_nodes
from graft.cli.options import UsageError
from graft.cli.terminal import spoken_warnings, status
from graft.compiler import Model, compile
from graft.ir.graph import Graph
from graft.module import Module
from graft.passes.name_apart import name_apart
from graft.runtime.loaders import family_of
from graft.runtime.placement import PlacedRegion
from graft.stages import Imported, optimize


def check_targets(names: Sequence[str]) -> None:
    """Refuse unknown names; a backend that does not work is reported later."""
    backends = find_backends()
    backend_names = {*backends.backends, *(item.name for item in backends.broken)}
    for name in names:
        if name not in backend_names and family_of(name) not in backend_names:
            close = difflib.get_close_matches(name, backend_names, n=1)
            hint = (
                f"did you mean '{close[0]}'?" if close else f"there are {', '.join(backend_names)}"
            )
            raise UsageError(f"there is no backend '{name}'", hint=hint)


def compiled_as_asked(
    model: Model, title: str, asked: dict[str, Any], save_plan: Path | None, **others: Any
) -> Module:
    """Compile with progress on the terminal; writes the plan where that is wanted."""
    check_targets(asked["target"])
    with status(title) as tell, spoken_warnings():
        module = compile(model, **asked, **others, report=tell)
    if save_plan is not None:
        write_plan(module, save_plan)
    return module


def same_placement(
    wishes: dict[str, Any], regions: Sequence[PlacedRegion], graph: Graph
) -> dict[str, Any]:
    """What to ask so that nodes run where they did before, of a model that has lost nodes or got
    other outputs; pins that fit none of its nodes are left out."""
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
    """A glob that only the name fits."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def write_plan(module: Module, path: Path) -> None:
    """Write the plan that a module follows."""
    assert module.placement.plan is not None, "there is an accelerator among the targets"
    path.write_text(module.placement.plan.to_text(), encoding="utf-8")
