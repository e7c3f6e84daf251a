"""How the operators of `com.microsoft` are declared: operands, attributes, and shared lowerings.

ONNX has no schemas of that domain, so each lowering declares the operands and attributes of its
operator; others are reported. Many of these operators are one of ONNX's own with something added:
`main` lowers that part as ONNX's lowering does, at a fixed opset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from graft.frontends.onnx.call import Call, allow
from graft.frontends.onnx.functions import IGNORED
from graft.frontends.onnx.registry import LOWERINGS, Lowering, all_results, lower_as, lowers
from graft.ir.graph import Value
from graft.ir.op import Operand, parse_operands

DOMAIN = "com.microsoft"

# The version of ONNX's rules that the shared lowerings follow, whatever the model imports.
RULES = 21


def lowers_microsoft(
    op_type: str, operands: str, attributes: str = "", domain: str = DOMAIN
) -> Callable[[Lowering], Lowering]:
    """Register the decorated function for an operator with these operands and attributes.

    Operands are words: "A B C? *rest" has an optional third one and any number of others."""
    formals, names = parse_operands(operands), frozenset(attributes.split())

    def register(function: Lowering) -> Lowering:
        def checked(call: Call) -> Value | tuple[Value | None, ...]:
            _check(call, formals, names)
            return function(call)

        lowers(op_type, domain=domain)(checked)
        return function

    return register


def _check(call: Call, formals: tuple[Operand, ...], attributes: Collection[str]) -> None:
    """Refuse operands and attributes that the operator does not have, or lacks."""
    op_type, count = call.node.op_type, len(call.inputs)
    if count > len(formals) and not any(formal.variadic for formal in formals):
        call.fail(f"{op_type} takes {len(formals)} operands at most, has {count}")
    for position, formal in enumerate(formals):
        if not (formal.optional or formal.variadic) and call.optional(position) is None:
            call.fail(f"{op_type} lacks its operand '{formal.name}'")
    for attribute in call.node.attribute:
        if attribute.name not in attributes:
            allow(call, f"{op_type} has no attribute '{attribute.name}'", IGNORED)


def lowers_alike(op_type: str, operands: str, attributes: str = "") -> None:
    """Register an operator that is the one of that name of ONNX's own."""
    lowers_microsoft(op_type, operands, attributes)(
        lambda call: main_alike(call, op_type, *call.inputs)
    )


def main(call: Call, op_type: str, *operands: Value | None, **attributes: Any) -> Value:
    """Lower an operator of ONNX's own; its first result."""
    return lower_as(call, op_type, *operands, opset=RULES, **attributes)[0]


def main_alike(call: Call, op_type: str, *operands: Value | None) -> tuple[Value, ...]:
    """Lower an operator of ONNX's own that has the same attributes as this call's."""
    return all_results(LOWERINGS.get(op_type)(replace(call, inputs=operands, opset=RULES)))


def refuse_attribute(call: Call, name: str, neutral: Any) -> None:
    """Refuse an attribute with another value than the neutral one."""
    value = call.attribute(name, neutral)
    if value != neutral:
        call.unsupported(f"{call.node.op_type} with {name}={value} is not supported")


def refuse_operand(call: Call, position: int, name: str) -> None:
    """Refuse an operand that is not supported."""
    if call.optional(position) is not None:
        call.unsupported(f"{call.node.op_type} with the operand '{name}' is not supported")
