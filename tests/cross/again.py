"""Tests of other folders, to be run once more for other machines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType


def repeated(*modules: ModuleType) -> dict[str, Callable[..., None]]:
    """The tests of some modules, named after them.

    Those that choose a target themselves are left out, and those that run nothing.
    """
    found = {}
    for module in modules:
        stem = module.__name__.rpartition(".")[2]
        for name, test in vars(module).items():
            if not name.startswith("test_") or not inspect.isfunction(test):
                continue
            if "target" not in inspect.signature(test).parameters and "refus" not in name:
                found[f"{stem}_{name.removeprefix('test_')}"] = test
    return found
