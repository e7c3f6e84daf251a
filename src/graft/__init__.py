"""Graft: a deep-learning compiler that you graft your own backend onto.

    import graft
    module = graft.compile("model.onnx")
    outputs = module.run(None, {"input": x})
    module.save("model.graft")
    module = graft.load("model.graft")

Names are loaded when they are first used, so that `import graft` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graft.base.errors import GraftError, UserError
    from graft.compiler import compile
    from graft.module import Module
    from graft.runtime.session import load

__version__ = "0.1.0"

__all__ = ["GraftError", "Module", "UserError", "__version__", "compile", "load"]

_MODULES = {
    "compile": "graft.compiler",
    "Module": "graft.module",
    "load": "graft.runtime.session",
    "GraftError": "graft.base.errors",
    "UserError": "graft.base.errors",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'graft' has no attribute '{name}'")
