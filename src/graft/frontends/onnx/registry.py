"""Which function lowers which ONNX operator. Lowerings register by decorator:

    @lowers("Relu")
    def relu(call: Call) -> Value: ...

One function serves every opset version; it asks `call.opset` where versions differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from graft.base.registry import Registry
from graft.ir.graph import Value

if TYPE_CHECKING:
    from graft.frontends.onnx.call import Call

Lowering = Callable[["Call"], "Value | tuple[Value | None, ...]"]

LOWERINGS: Registry[Lowering] = Registry("ONNX lowering")


def key(domain: str, op_type: str) -> str:
    """The name under which a lowering is registered."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def lowers(*op_types: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Register the decorated function for one or more ONNX operators."""

    def register(function: Lowering) -> Lowering:
        for op_type in op_types:
            LOWERINGS.add(key(domain, op_type), function)
        return function

    return register
