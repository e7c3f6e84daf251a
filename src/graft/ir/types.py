"""Types of values: tensors with symbolic shapes, sequences, optionals and maps.

A tensor's shape is a tuple of dims, or None where even the rank is unknown. Type rules may put
`UNKNOWN` into a shape for an extent that depends on data; the builder names it with a fresh symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graft.base.dim_questions import provably_different
from graft.base.dims import UNKNOWN, AnyDim, bare_symbol, product, symbols_of
from graft.base.dtypes import DType

Shape = tuple[AnyDim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor of `dtype` with `shape`; shape None means that the rank is unknown."""

    dtype: DType
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def size(self) -> AnyDim:
        """Number of elements."""
        return UNKNOWN if self.shape is None else product(self.shape)

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join(str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"sequence<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value of the type, or nothing."""

    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A mapping from scalar keys to values."""

    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


Type = TensorType | SequenceType | OptionalType | MapType


def tensor(dtype: DType | str, *shape: AnyDim) -> TensorType:
    """Shorthand: `tensor("float32", 1, 3, 224, 224)`."""
    return TensorType(DType(dtype), shape)


def _inner(type_: SequenceType | OptionalType | MapType) -> Type:
    return type_.value if isinstance(type_, MapType) else type_.element


def _with_inner(type_: SequenceType | OptionalType | MapType, inner: Type) -> Type:
    return MapType(type_.key, inner) if isinstance(type_, MapType) else type(type_)(inner)


def _is_alike(first: Type, second: Type) -> bool:
    """Whether two types are of one kind; maps have to have the same keys."""
    if isinstance(first, MapType) and isinstance(second, MapType):
        return first.key == second.key
    return type(first) is type(second)


def dims_of(type_: Type) -> Iterator[AnyDim]:
    """All dims that a type mentions."""
    if isinstance(type_, TensorType):
        yield from type_.shape or ()
    else:
        yield from dims_of(_inner(type_))


def symbols_in(type_: Type) -> frozenset[str]:
    """All symbols that a type mentions."""
    return frozenset().union(*map(symbols_of, dims_of(type_)))


def bound_symbols(type_: Type) -> frozenset[str]:
    """The symbols that a value of the type certainly gives an extent: a tensor's bare ones."""
    if not isinstance(type_, TensorType):
        return frozenset()
    names = (bare_symbol(dim) for dim in type_.shape or ())
    return frozenset(name for name in names if name is not None)


def compatible(first: Type, second: Type) -> bool:
    """Whether a value may be of both types; False only when they are provably different."""
    if isinstance(first, TensorType) and isinstance(second, TensorType):
        if first.dtype != second.dtype:
            return False
        if first.shape is None or second.shape is None:
            return True
        return len(first.shape) == len(second.shape) and not any(
            provably_different(a, b) for a, b in zip(first.shape, second.shape, strict=True)
        )
    if isinstance(first, TensorType) or isinstance(second, TensorType):
        return False
    return _is_alike(first, second) and compatible(_inner(first), _inner(second))


def join(first: Type, second: Type) -> Type | None:
    """The narrowest type that covers both, or None where there is none (other kind or dtype)."""
    if isinstance(first, TensorType) and isinstance(second, TensorType):
        if first.dtype != second.dtype:
            return None
        if first.shape is None or second.shape is None or first.rank != second.rank:
            return TensorType(first.dtype, None)
        pairs = zip(first.shape, second.shape, strict=True)
        return TensorType(first.dtype, tuple(a if a == b else UNKNOWN for a, b in pairs))
    if isinstance(first, TensorType) or isinstance(second, TensorType):
        return None
    inner = join(_inner(first), _inner(second)) if _is_alike(first, second) else None
    return None if inner is None else _with_inner(first, inner)


def map_dims(type_: Type, change: Callable[[AnyDim], AnyDim]) -> Type:
    """The type with `change` applied to every dim."""
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return type_
        return TensorType(type_.dtype, tuple(change(dim) for dim in type_.shape))
    return _with_inner(type_, map_dims(_inner(type_), change))


_ONNX_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


def onnx_type(type_: Type) -> str:
    """A type in ONNX's words, as users read it of inputs and outputs."""
    if isinstance(type_, TensorType):
        return f"tensor({_ONNX_NAMES.get(type_.dtype, type_.dtype)})"
    if isinstance(type_, SequenceType):
        return f"seq({onnx_type(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({onnx_type(type_.element)})"
    return f"map({_ONNX_NAMES.get(type_.key, type_.key)},{onnx_type(type_.value)})"
