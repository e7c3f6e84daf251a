"""How cases of operators are written: dtypes and shapes of operands, and attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Spec = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """One operator on operands of these types."""

    op: str
    operands: tuple[Spec | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    low: float = -4.0
    high: float = 4.0

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, s[1])) or "s" for s in self.operands if s)
        dtype = next((s[0] for s in self.operands if s), "")
        attrs = ",".join(f"{key}={value}" for key, value in self.attrs.items())
        return f"{self.op}:{dtype}:{shapes}:{attrs}".replace(" ", "")


def case(
    op: str, *operands: Spec | None, low: float = -4.0, high: float = 4.0, **attrs: Any
) -> Case:
    return Case(op, operands, attrs, low, high)


def f32(*shape: int) -> Spec:
    return "float32", shape


def f64(*shape: int) -> Spec:
    return "float64", shape


def f16(*shape: int) -> Spec:
    return "float16", shape


def bf16(*shape: int) -> Spec:
    return "bfloat16", shape


def i64(*shape: int) -> Spec:
    return "int64", shape


def i32(*shape: int) -> Spec:
    return "int32", shape


def i8(*shape: int) -> Spec:
    return "int8", shape


def u8(*shape: int) -> Spec:
    return "uint8", shape


def truth(*shape: int) -> Spec:
    return "bool", shape


FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
