"""Which function lowers which ONNX operator. Lowerings register by decorator:

    @lowers("HardSwish")
    def hard_swish(call: Call) -> Value: ...

One function serves every opset version; it asks `call.opset` where versions differ. An operator
that is one of Graft's, operand by operand, takes a line; `corresponds` exports that one, too:

    lowers_to("Transpose", "transpose", "axes=perm")
    corresponds("LeakyRelu", "nn.leaky_relu", "alpha")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from graft.base.registry import Registry
from graft.frontends.onnx.call import Call
from graft.ir.graph import Value
from graft.ops import get_op

Lowering = Callable[[Call], Value | tuple[Value | None, ...]]

LOWERINGS: Registry[Lowering] = Registry("ONNX lowering")


@dataclass(frozen=True, slots=True)
class OnnxForm:
    """An ONNX operator that has an operator's operands in order and attributes by their names."""

    op_type: str
    attributes: tuple[str, ...] = ()


# By name of Graft's operator; filled when the lowerings are imported.
FORMS: Registry[OnnxForm] = Registry("ONNX form")


def key(domain: str, op_type: str) -> str:
    """The name under which a lowering is registered."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def lowers(*op_types: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Register the decorated function for one or more ONNX operators."""
    return LOWERINGS.entry(*(key(domain, op_type) for op_type in op_types))


def lowers_to(op_type: str, name: str, attributes: str = "") -> None:
    """Register an ONNX operator that is the operator `name` on the same operands.

    `attributes` are those of ONNX, "axes=perm" where Graft's has another name."""

    @lowers(op_type)
    def _lower(call: Call) -> tuple[Value, ...]:
        for position, operand in enumerate(get_op(name).operands):
            if not (operand.optional or operand.variadic):
                call.input(position)
        return call.ops(name, *call.inputs, **call.attributes(name, attributes))


def corresponds(op_type: str, name: str, *attributes: str) -> None:
    """Register both ways: the ONNX operator is imported as `name`, and that is exported as it."""
    FORMS.add(name, OnnxForm(op_type, attributes))
    lowers_to(op_type, name, " ".join(attributes))


def lower_as(
    call: Call, op_type: str, *operands: Value | None, opset: int | None = None, **attributes: Any
) -> tuple[Value, ...]:
    """Lower another operator of ONNX's own in this one's stead, by the rules of an opset."""
    node = onnx.helper.make_node(op_type, [], [""], **attributes)
    other = Call(node, operands, call.scope, opset or call.opset, call.location)
    return all_results(LOWERINGS.get(op_type)(other))


def all_results(results: Value | tuple[Value | None, ...]) -> tuple[Value, ...]:
    """What a lowering gives, as a tuple."""
    return results if isinstance(results, tuple) else (results,)  # type: ignore[return-value]
