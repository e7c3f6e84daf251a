"""Writing expressions pleasantly.

Numbers, dims, IR expressions and `Term`s enter; a `Term`, which has Python's operators, leaves, and
`.expr` takes the IR expression out of it. A number takes the dtype of the operand beside it and a
scalar beside a vector is broadcast; nothing else is converted silently. A `Term` also remembers
which tensors it reads, so that a computation can be found from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.loop.errors import LoopError
from graft.loop.index import Symbolic, index_of
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import (
    INDEX,
    Binary,
    BinaryKind,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    Load,
    Select,
    Var,
)

Number = int | float | bool


def _binary(kind: BinaryKind, swapped: bool = False) -> Callable[[Term, Operand], Term]:
    if swapped:
        return lambda self, other: binary(kind, other, self)
    return lambda self, other: binary(kind, self, other)


def _compare(kind: CompareKind) -> Callable[[Term, Operand], Term]:
    return lambda self, other: compare(kind, self, other)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """An expression with operators, and the tensors it reads."""

    expr: Expr
    sources: frozenset[Any] = field(default=frozenset())

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    __add__, __radd__ = _binary(BinaryKind.ADD), _binary(BinaryKind.ADD, swapped=True)
    __sub__, __rsub__ = _binary(BinaryKind.SUBTRACT), _binary(BinaryKind.SUBTRACT, swapped=True)
    __mul__, __rmul__ = _binary(BinaryKind.MULTIPLY), _binary(BinaryKind.MULTIPLY, swapped=True)
    __truediv__, __rtruediv__ = _binary(BinaryKind.DIVIDE), _binary(BinaryKind.DIVIDE, swapped=True)
    __floordiv__, __mod__ = _binary(BinaryKind.FLOOR_DIVIDE), _binary(BinaryKind.FLOOR_MODULO)
    __and__, __or__ = _binary(BinaryKind.AND), _binary(BinaryKind.OR)
    __xor__ = _binary(BinaryKind.XOR)
    __lshift__, __rshift__ = _binary(BinaryKind.SHIFT_LEFT), _binary(BinaryKind.SHIFT_RIGHT)
    __lt__, __le__ = _compare(CompareKind.LESS), _compare(CompareKind.LESS_EQUAL)
    __gt__, __ge__ = _compare(CompareKind.GREATER), _compare(CompareKind.GREATER_EQUAL)

    def __neg__(self) -> Term:
        # 0 - 0.0 would be 0.0, not -0.0
        return binary(BinaryKind.SUBTRACT, -0.0 if self.dtype.is_float else 0, self)


Operand = Term | Expr | Number | Symbolic


def term(operand: Operand, dtype: DType = INDEX) -> Term:
    """The operand as a term; a plain number gets `dtype`."""
    if isinstance(operand, Term):
        return operand
    if isinstance(operand, Symbolic):
        return Term(index_of(operand))
    return Term(constant(operand, dtype) if isinstance(operand, Number) else operand)


def constant(value: Number, dtype: DType = INDEX, lanes: int = 1) -> Const:
    """The number, in each lane, as a constant of the dtype, which has to hold it."""
    if dtype is DType.BOOL:
        return Const(bool(value), dtype, lanes)
    if dtype.is_float:
        return Const(float(np.array(value).astype(dtype.numpy)), dtype, lanes)
    if dtype.is_integer and int(value) == value:
        return Const(int(value), dtype, lanes)
    raise LoopError(f"{value} is no {dtype}", hint="cast explicitly or write another constant")


def _together(left: Operand, right: Operand) -> tuple[Term, Term]:
    """Both as terms of one dtype and equal lanes."""
    if isinstance(left, Number):
        right = term(right)
        left = term(left, right.dtype)
    else:
        left = term(left)
        right = term(right, left.dtype)
    if left.dtype != right.dtype:
        message = f"an operation on {left.dtype} and {right.dtype}"
        raise LoopError(message, hint="operands have one dtype; use cast")
    lanes = max(left.expr.lanes, right.expr.lanes)
    return _spread(left, lanes), _spread(right, lanes)


def _spread(value: Term, lanes: int) -> Term:
    if value.expr.lanes == lanes:
        return value
    if value.expr.lanes != 1:
        raise LoopError(f"an operation on {value.expr.lanes} and {lanes} lanes")
    return Term(Broadcast(value.expr, lanes), value.sources)


def binary(kind: BinaryKind, left: Operand, right: Operand) -> Term:
    """An operation of any kind; most can also be written as operators."""
    one, other = _together(left, right)
    return Term(Binary(kind, one.expr, other.expr), one.sources | other.sources)


def compare(kind: CompareKind, left: Operand, right: Operand) -> Term:
    """A comparison of any kind; `<` and its like can also be written as operators."""
    one, other = _together(left, right)
    return Term(Compare(kind, one.expr, other.expr), one.sources | other.sources)


def equal(left: Operand, right: Operand) -> Term:
    """`left == right`, which Python's operator cannot say since it must give a bool."""
    return compare(CompareKind.EQUAL, left, right)


def minimum(left: Operand, right: Operand) -> Term:
    """The smaller of two; NaN wins."""
    return binary(BinaryKind.MINIMUM, left, right)


def maximum(left: Operand, right: Operand) -> Term:
    """The larger of two; NaN wins."""
    return binary(BinaryKind.MAXIMUM, left, right)


def select(condition: Operand, yes: Operand, no: Operand) -> Term:
    """`yes` where the condition holds, `no` elsewhere."""
    test = term(condition, DType.BOOL)
    one, other = _together(yes, no)
    lanes = max(test.expr.lanes, one.expr.lanes)
    parts = [_spread(part, lanes) for part in (test, one, other)]
    sources = test.sources | one.sources | other.sources
    return Term(Select(*(part.expr for part in parts)), sources)


def cast(dtype: DType, value: Operand) -> Term:
    """The value in another dtype; itself if it has it already."""
    operand = term(value)
    return operand if operand.dtype is dtype else Term(Cast(dtype, operand.expr), operand.sources)


def call(name: str, *arguments: Operand) -> Term:
    """An intrinsic function by name."""
    if name not in INTRINSICS:
        raise LoopError(f"no intrinsic is called '{name}'", hint=", ".join(sorted(INTRINSICS)))
    first = next((a for a in arguments if not isinstance(a, Number)), None)
    dtype = DType.FLOAT32 if first is None else term(first).dtype
    terms = [term(argument, dtype) for argument in arguments]
    lanes = max(one.expr.lanes for one in terms)
    spread = tuple(_spread(one, lanes).expr for one in terms)
    result = INTRINSICS[name].result(dtype)
    return Term(Call(name, spread, result), frozenset().union(*(one.sources for one in terms)))


def variable(name: str, dtype: DType = INDEX) -> Term:
    """A named scalar, for example a symbolic extent."""
    return Term(Var(name, dtype))


def load(buffer: Buffer, *indices: Operand) -> Term:
    """An element of a buffer, or a vector of them."""
    terms = [term(index) for index in indices]
    sources: frozenset[Any] = frozenset().union(*(one.sources for one in terms))
    return Term(Load(buffer, tuple(one.expr for one in terms)), sources)
