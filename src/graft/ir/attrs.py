"""Typed attributes: each operator has a frozen dataclass of them.

A field's annotation says what it may hold. `coerce` turns friendly input (lists, NumPy scalars,
strings for dtypes) into exactly that, and refuses anything else. A field that has the same name as
an optional operand is that operand's static form: whoever builds the node gives one or the other.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from graft.base.dims import AnyDim, Dim, IndexExpr, substitute, symbols_of
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.ir.literal import Literal
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]
Dims = tuple[Dim, ...]
Number = int | float


@dataclass(frozen=True, slots=True)
class Attrs:
    """Base of all attribute classes; on its own, an operator without attributes."""


A = TypeVar("A", bound=Attrs)
R = TypeVar("R")
Coercer = Callable[[Any], Any]


def per_class(function: Callable[[type[Any]], R]) -> Callable[[type[Any]], R]:
    """Memoise a function of a class."""
    answers: dict[type[Any], R] = {}

    def ask(cls: type[Any]) -> R:
        if cls not in answers:
            answers[cls] = function(cls)
        return answers[cls]

    return ask


def make_attrs(cls: type[A], attributes: Mapping[str, Any]) -> A:
    """Build attributes from friendly values; errors name the attribute."""
    if not attributes:
        default = _all_defaults(cls)
        if default is not None:
            return default  # type: ignore[no-any-return]
    coercers = field_coercers(cls)
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in coercers:
            names = ", ".join(coercers) or "none"
            raise UserError(f"unknown attribute '{name}'", hint=f"known attributes: {names}")
        values[name] = coerce_field(cls, name, value)
    missing = [f.name for f in dataclasses.fields(cls) if _required(f) and f.name not in values]
    if missing:
        raise UserError(f"attribute '{missing[0]}' is missing")
    return cls(**values)


def as_keywords(attrs: Attrs) -> dict[str, Any]:
    """All attributes by name, to make a node like another one with."""
    return {one.name: getattr(attrs, one.name) for one in dataclasses.fields(attrs)}


def coerce_field(cls: type[Attrs], name: str, value: Any) -> Any:
    """One attribute's value, brought into its declared type."""
    try:
        return field_coercers(cls)[name](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"attribute '{name}' cannot be {value!r}: {error}") from None


def coerce_operand(cls: type[Attrs], name: str, elements: Array) -> Any:
    """An operand's elements as the attribute that they stand for; one may be a list, too."""
    if elements.ndim:
        return coerce_field(cls, name, elements)
    single = elements.reshape(1)
    try:
        return coerce_field(cls, name, single[0])
    except UserError:
        return coerce_field(cls, name, single)


@per_class
def _all_defaults(cls: type[Any]) -> Any:
    """The attributes with all their defaults, or None where one is required."""
    return None if any(_required(field) for field in dataclasses.fields(cls)) else cls()


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


@per_class
def field_coercers(cls: type[Any]) -> dict[str, Coercer]:
    """Per field of an attribute class, the function that brings a value into its type."""
    hints = typing.get_type_hints(cls)
    return {field.name: _coercer(hints[field.name]) for field in dataclasses.fields(cls)}


def _coercer(hint: Any) -> Coercer:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        element = _coercer(arguments[0])
        return lambda value: tuple(element(item) for item in _items(value))
    if arguments and type(None) in arguments:
        rest = tuple(a for a in arguments if a is not type(None))
        inner = _coercer(rest[0] if len(rest) == 1 else typing.Union[rest])  # noqa: UP007
        return lambda value: None if value is None else inner(value)
    kinds = tuple(a for a in (arguments or (hint,)) if isinstance(a, type))
    return lambda value: _instance(value, kinds)


def _items(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1))
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError("a list is wanted")
    return list(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise TypeError("one number is wanted")
        value = value.reshape(-1)[0]
    return value.item() if isinstance(value, np.generic) else value


def _int(value: Any) -> int:
    value = _scalar(value)
    if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise TypeError("a whole number is wanted")
    return int(value)


def _dim(value: Any) -> Dim:
    value = _scalar(value)
    return value if isinstance(value, IndexExpr) else _int(value)


def _number(value: Any) -> Number:
    value = _scalar(value)
    if not isinstance(value, (int, float)):
        raise TypeError("a number is wanted")
    return value


def _bool(value: Any) -> bool:
    value = _scalar(value)
    if value not in (0, 1):
        raise TypeError("true or false is wanted")
    return bool(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is wanted")
    return value


def _literal(value: Any) -> Literal:
    return value if isinstance(value, Literal) else Literal(np.asarray(value))


def _instance(value: Any, kinds: tuple[type, ...]) -> Any:
    if kinds and not isinstance(value, kinds):
        raise TypeError(f"a {' or '.join(k.__name__ for k in kinds)} is wanted")
    return value


_TYPES = (TensorType, SequenceType, OptionalType, MapType)
_SIMPLE: dict[Any, Coercer] = {
    int: _int,
    float: lambda value: float(_number(value)),
    bool: _bool,
    str: _str,
    DType: DType,
    Dim: _dim,
    Number: _number,
    Literal: _literal,
    TensorType | SequenceType | OptionalType | MapType: lambda value: _instance(value, _TYPES),
}


@per_class
def dim_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields that may hold symbolic dims."""
    hints = typing.get_type_hints(cls)
    dim_types = (Dim, Dims, Dim | None, Dims | None)
    return tuple(f.name for f in dataclasses.fields(cls) if hints[f.name] in dim_types)


def symbols_in_attrs(attrs: Attrs) -> frozenset[str]:
    """All symbols that the attributes mention."""
    values = (getattr(attrs, name) for name in dim_fields(type(attrs)))
    dims = (dim for value in values for dim in (value if isinstance(value, tuple) else (value,)))
    return frozenset().union(*map(symbols_of, dims))


def bind_attrs(attrs: A, symbols: Mapping[str, AnyDim]) -> A:
    """The attributes with symbols replaced by their extents."""
    return map_attrs(attrs, lambda dim: substitute(dim, symbols))


def map_attrs(attrs: A, change: Callable[[AnyDim], AnyDim]) -> A:
    """The attributes with `change` applied to every dim, if they mention symbols."""
    if not symbols_in_attrs(attrs):
        return attrs
    changed: dict[str, Any] = {}
    for name in dim_fields(type(attrs)):
        value = getattr(attrs, name)
        if isinstance(value, tuple):
            changed[name] = tuple(change(dim) for dim in value)
        elif value is not None:
            changed[name] = change(value)
    return dataclasses.replace(attrs, **changed)
