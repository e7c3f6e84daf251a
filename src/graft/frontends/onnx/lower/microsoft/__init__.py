"""Lowerings of the operators that ONNX Runtime's optimiser and quantiser write into models."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
