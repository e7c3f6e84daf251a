"""Models compiled as the options on placement say: a model in, a module out, with what there is to
tell on standard error."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graft.base.errors import GraftWarning
from graft.byoc.discover import find_backends
from graft.cli.status import status
from graft.cli.usage import UsageError
from graft.compiler import Model, compile
from graft.module import Module


def check_targets(names: Sequence[str]) -> None:
    """Refuse names that no backend has; one that is there and does not work is told later."""
    found = find_backends()
    known = {*found.backends, *(item.name for item in found.broken)}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(known)}"
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


def write_plan(module: Module, path: Path) -> None:
    """Write the plan that a module follows."""
    assert module.placement.plan is not None, "there is an accelerator among the targets"
    path.write_text(module.placement.plan.to_text(), encoding="utf-8")


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Say what went otherwise than asked once the work is done, below the line of its status."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GraftWarning)
        yield
    for item in caught:
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
