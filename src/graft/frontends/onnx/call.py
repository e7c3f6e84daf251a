"""The interface of lowerings: one ONNX node, its operands and attributes.

A lowering reads operands and attributes from the `Call` and emits Graft operators through it.
"""

from __future__ import annotations

import builtins
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx

from graft.base.dtypes import Array, DType
from graft.base.errors import Location, ModelError, UnsupportedError
from graft.frontends.onnx.functions import find_schema, plain_domain
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.attrs import per_class
from graft.ir.graph import Value
from graft.ops import get_op
from graft.ops.reduce import highest, lowest

if TYPE_CHECKING:
    from graft.frontends.onnx.scope import Scope

_REQUIRED = object()


@dataclass(frozen=True)
class Call:
    """A node, its operands (None where left out) and its scope."""

    node: onnx.NodeProto
    inputs: tuple[Value | None, ...]
    scope: Scope
    opset: int
    location: Location

    def input(self, position: int) -> Value:
        """An operand that has to be there."""
        value = self.optional(position)
        if value is None:
            self.fail(f"{self.node.op_type} lacks operand {position}")
        return value

    def optional(self, position: int) -> Value | None:
        """An operand that may be left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def has_output(self, position: int) -> bool:
        """Whether the model gives a name to this result."""
        return position < len(self.node.output) and self.node.output[position] != ""

    def has(self, name: str) -> bool:
        """Whether the node has the attribute."""
        return any(attribute.name == name for attribute in self.node.attribute)

    def attribute(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute's value as Python data (strings decoded, tensors and graphs as protos).

        Without a default, that of the operator's schema holds; if there is none, the attribute is
        required."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                if not attribute.type:
                    self.fail(f"attribute '{name}' does not say of which type it is")
                return _python_value(onnx.helper.get_attribute_value(attribute))
        if default is _REQUIRED:
            default = _defaults(self).get(name, _REQUIRED)
        if default is _REQUIRED:
            self.fail(f"{self.node.op_type} lacks the attribute '{name}'")
        return default

    def attributes(self, name: str, words: str) -> dict[str, Any]:
        """Attributes for the operator `name`, from the node's: "axis", or "axes=perm" to rename.

        One that is left out and has no default in the schema is left to the operator's own."""
        types, values = _field_types(get_op(name).attrs), {}
        for word in words.split():
            field, _, source = word.rpartition("=")
            field = field or source
            if self.has(source) or source in _defaults(self):
                values[field] = _converted(self.attribute(source), types[field])
        return values

    def int(self, name: str, default: Any = _REQUIRED) -> builtins.int:
        value: builtins.int = _typed(self, name, default, builtins.int, "an integer")
        return value

    def float(self, name: str, default: Any = _REQUIRED) -> builtins.float:
        """A number. Defaults are rounded to float32, which ONNX stores."""
        if isinstance(default, builtins.float):
            default = builtins.float(np.float32(default))
        value: builtins.float = _typed(
            self, name, default, (builtins.float, builtins.int), "a number"
        )
        return value

    def string(self, name: str, default: Any = _REQUIRED) -> str:
        value: str = _typed(self, name, default, str, "a string")
        return value

    def ints(self, name: str, default: Any = _REQUIRED) -> Any:
        """A tuple of integers, or the default."""
        return _typed(self, name, default, tuple, "a list")

    def tensor(self, name: str) -> Array:
        """A tensor attribute as an array."""
        proto = self.attribute(name)
        if not isinstance(proto, onnx.TensorProto):
            self.fail(f"attribute '{name}' is not a tensor")
        return self.scope.source.weights.array(proto)

    def op(self, name: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Emit a Graft operator with one result."""
        return self.scope.builder(name, *inputs, **attrs)

    def ops(self, name: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        """Emit a Graft operator and get all its results."""
        return self.scope.builder.call(name, *inputs, **attrs)

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        """Emit a constant."""
        elements = np.asarray(array, dtype=None if dtype is None else dtype.numpy)
        return self.scope.builder.constant(elements)

    def scalar(self, number: Any, like: Value) -> Value:
        """Emit a rank-0 constant of another value's dtype."""
        numpy = like.dtype.numpy
        if like.dtype.is_integer and not lowest(numpy) <= number <= highest(numpy):
            self.fail(f"{self.node.op_type} of {like.dtype} elements cannot use {number}")
        with np.errstate(over="ignore"):  # what a short float cannot hold is infinite in it
            return self.constant(np.array(number).astype(numpy))

    def known(self, value: Value | None) -> Array | None:
        """A small operand's value if it is known at import; may hold symbolic dims."""
        return self.scope.builder.knowledge.known(value)

    def concrete(self, value: Value | None) -> Array | None:
        """A constant operand's value, of any size; None where it is not constant."""
        literal = self.scope.builder.knowledge.literal(value)
        return self.scope.builder.knowledge.concrete(value) if literal is None else literal.array

    def rank(self, value: Value) -> builtins.int:
        """An operand's rank, which has to be known."""
        if value.shape is None:
            hint = "run ONNX shape inference, or give the model's inputs a shape"
            raise UnsupportedError(
                f"{self.node.op_type} wants to know the rank of '{value.name}'", self.location, hint
            )
        return len(value.shape)

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Refuse a node that breaks ONNX's rules."""
        raise ModelError(message, self.location, hint)

    def unsupported(self, message: str, hint: str = "") -> NoReturn:
        """Refuse a node that is valid but not served."""
        raise UnsupportedError(message, self.location, hint)


def cast_to(call: Call, value: Value, dtype: DType) -> Value:
    """The value in a dtype; itself where it has that already."""
    return value if value.dtype is dtype else call.op("cast", value, dtype=dtype)


def extent(call: Call, value: Value, axis: builtins.int) -> Value:
    """An extent as an int64 scalar."""
    return call.op("take", call.op("shape_of", value), call.constant(np.int64(axis)), axis=0)


def counted(call: Call, count: Value) -> Value:
    """0, 1, 2, ... as int64, so many numbers."""
    return call.op("arange", call.constant(np.int64(0)), count, call.constant(np.int64(1)))


def allow(call: Call, message: str, consequence: str) -> None:
    """Put up with a node that breaks ONNX's rules, with a warning; refuse it if strict."""
    call.scope.source.leniency.allow(ModelError(message, call.location), consequence)


def _defaults(call: Call) -> Mapping[str, Any]:
    return _schema_defaults(call.node.op_type, call.node.domain, call.opset)


@lru_cache(maxsize=1024)
def _schema_defaults(op_type: str, domain: str, opset: builtins.int) -> Mapping[str, Any]:
    """The default values of an operator's attributes; `_REQUIRED` of those that are required."""
    schema = find_schema(op_type, plain_domain(domain), opset)
    values: dict[str, Any] = {}
    for name, attribute in ({} if schema is None else schema.attributes).items():
        if attribute.required:
            values[name] = _REQUIRED
        elif attribute.default_value.type:
            values[name] = _python_value(onnx.helper.get_attribute_value(attribute.default_value))
    return values


_field_types = per_class(typing.get_type_hints)


def _converted(value: Any, type_: Any) -> Any:
    """An ONNX attribute's value as an attribute of this type: flags and dtypes are integers."""
    if type_ is bool:
        return value != 0
    if type_ == DType | None:
        return dtype_from_onnx(value) if value else None
    if type_ is DType:
        return dtype_from_onnx(value)
    return value


def _typed(call: Call, name: str, default: Any, kind: Any, what: str) -> Any:
    """An attribute's value of that kind, or the default."""
    value = call.attribute(name, default)
    if value is not default and not isinstance(value, kind):
        call.fail(f"attribute '{name}' is {value!r}, not {what}")
    return value


def _python_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    if isinstance(value, (str, int, float)) or not hasattr(value, "__iter__"):
        return value
    return tuple(_python_value(item) for item in value)
