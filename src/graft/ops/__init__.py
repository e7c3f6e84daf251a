"""The operators, one file per family; importing this package registers all of them.

Whatever looks operators up by name imports `OPS` or `get_op` from here, so that the registry is
complete whichever module is imported first.
"""

from __future__ import annotations

import importlib
import pkgutil

from graft.ir.op import OPS, get_op

__all__ = ["OPS", "get_op"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
