"""Nodes of opsets before 7, brought into the form of opset 7.

In goes a node with its operands, out comes the pair that means the same in opset 7. What opset 7
changed: NumPy's broadcasting instead of `broadcast` and `axis`, no `is_test`, no
`consumed_inputs`. Operators that changed in other ways before opset 7 are refused.
"""

from __future__ import annotations

import onnx

from graft.base.errors import UnsupportedError
from graft.frontends.onnx.functions import find_schema, without_attributes
from graft.ir.builder import Builder
from graft.ir.graph import Value

MODERN = 7

Operands = tuple[Value | None, ...]

_DROPPED = frozenset({"broadcast", "axis", "is_test", "consumed_inputs"})
_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"}
)
_FLAGS_ONLY = frozenset({"Gemm", "BatchNormalization", "Dropout"})


def modernize(
    node: onnx.NodeProto, operands: Operands, opset: int, builder: Builder
) -> tuple[onnx.NodeProto, Operands]:
    """The node and its operands as opset 7 would write them."""
    if _unchanged(node.op_type, opset):
        return node, operands
    if node.op_type in _BROADCASTING:
        return _without_flags(node), _aligned(node, operands, builder)
    if node.op_type == "PRelu":
        return _without_flags(node), _per_channel(operands, builder)
    if node.op_type in _FLAGS_ONLY or _only_grew(node.op_type, opset):
        return _without_flags(node), operands
    raise UnsupportedError(
        f"{node.op_type} of opset {opset} is too old",
        hint=f"convert the model with onnx.version_converter to opset {MODERN} or later",
    )


def _since(op_type: str, opset: int) -> int:
    schema = find_schema(op_type, "", opset)
    return 0 if schema is None else int(schema.since_version)


def _unchanged(op_type: str, opset: int) -> bool:
    return _since(op_type, opset) == _since(op_type, MODERN)


def _only_grew(op_type: str, opset: int) -> bool:
    """Whether opset 7 reads the old form as it is: it added attributes or dropped idle ones."""
    if not _since(op_type, opset):
        return False
    old, new = (onnx.defs.get_schema(op_type, version, "") for version in (opset, MODERN))
    shared = {name: kind for name, kind in old.attributes.items() if name in new.attributes}
    return (
        (old.min_input, old.max_input) == (new.min_input, new.max_input)
        and set(old.attributes) - set(shared) <= {"consumed_inputs"}
        and all(kind.type == new.attributes[name].type for name, kind in shared.items())
    )


def _without_flags(node: onnx.NodeProto) -> onnx.NodeProto:
    return without_attributes(node, _DROPPED)


def _aligned(node: onnx.NodeProto, operands: Operands, builder: Builder) -> Operands:
    """The second operand with trailing axes, so that its first axis aligns with `axis`."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), None)
    first, second = (*operands, None, None)[:2]
    if axis is None or first is None or second is None:
        return operands
    if first.shape is None or second.shape is None:
        raise UnsupportedError(f"{node.op_type} with an axis wants operands of known rank")
    behind = len(first.shape) - (axis % max(len(first.shape), 1)) - len(second.shape)
    return first, _append_axes(second, behind, builder)


def _per_channel(operands: Operands, builder: Builder) -> Operands:
    data, slope = (*operands, None, None)[:2]
    if data is None or slope is None or data.shape is None or slope.tensor.size == 1:
        return operands
    return data, _append_axes(slope, len(data.shape) - 2, builder)


def _append_axes(value: Value, count: int, builder: Builder) -> Value:
    """The value with so many axes of extent 1 behind it."""
    if count <= 0:
        return value
    rank = len(value.shape or ())
    return builder("expand_dims", value, axes=tuple(range(rank, rank + count)))
