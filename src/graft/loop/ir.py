"""The loop IR: typed expressions and statements that a kernel is made of.

Everything is immutable. An expression has a dtype and a number of lanes (1 is a scalar). It is a
graph: an object may be an operand in many places, so an expression can be exponentially larger when
it is written out than in memory. Hash and `==` look at each object once, as everything that walks
over expressions has to (see `traverse`). Extents, indices and conditions are expressions, so
extents may be symbolic. Buffers are addressed with one index per dimension; in a vector access
those that are vectors have equally many lanes.

Types follow from operands, but are fields: they are asked for all the time, deep inside.

The grammar, one line per node:

    expr   = Const | Var | Binary | Compare | Select | Cast | Call | Ramp | Broadcast | Load
    stmt   = Block | For | If | While | Let | Allocate | Store | AtomicAdd | Prefetch | Barrier
    kernel = Function(name, parameters: buffers and scalars, body)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from operator import attrgetter
from typing import TypeVar

from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.base.polynomials import Polynomial

INDEX = DType.INT64


class _Hashed:
    """Slots for the cached hash and for the cached normal form of index arithmetic (`index`)."""

    __slots__ = ("_hash", "_normal")
    _hash: int
    _normal: Polynomial


_Kind = TypeVar("_Kind", bound=type[_Hashed])


def _hashed_once(kind: _Kind) -> _Kind:
    """Cache the hash of a node class, and make `==` take linear time on shared graphs."""
    compute = kind.__hash__
    read = attrgetter(*(one.name for one in fields(kind) if one.init))  # type: ignore[arg-type]

    def remembered(self: _Hashed) -> int:
        try:
            return self._hash
        except AttributeError:
            _hash_operands(self)
            object.__setattr__(self, "_hash", compute(self))
            return self._hash

    def equal(self: _Hashed, other: object) -> bool:
        return self is other or (type(self) is type(other) and _are_equal(self, other))

    kind.__hash__ = remembered  # type: ignore[method-assign,assignment]
    kind.__eq__ = equal  # type: ignore[method-assign,assignment]
    _FIELDS[kind] = read
    return kind


_FIELDS: dict[type, Callable[[object], tuple[object, ...]]] = {}


def _operands(node: object) -> list[_Hashed]:
    """The nodes directly inside a node."""
    return [
        part
        for field_ in _FIELDS[type(node)](node)
        for part in (field_ if type(field_) is tuple else (field_,))
        if isinstance(part, _Hashed)
    ]


def _hash_operands(node: _Hashed) -> None:
    """Hash all below a node, deepest first: Python's stack is not as deep as expressions are."""
    waiting = [part for part in _operands(node) if not hasattr(part, "_hash")]
    while waiting:
        below = [part for part in _operands(waiting[-1]) if not hasattr(part, "_hash")]
        if below:
            waiting += below
        else:
            hash(waiting.pop())


def _are_equal(one: object, other: object) -> bool:
    """Structural equality of two nodes, comparing each pair of objects once."""
    pairs: set[tuple[int, int]] = set()
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if left is right or (id(left), id(right)) in pairs:
            continue
        if isinstance(left, _Hashed):
            if type(left) is not type(right) or hash(left) != hash(right):
                return False
            pairs.add((id(left), id(right)))
            read = _FIELDS[type(left)]
            waiting += zip(read(left), read(right), strict=True)
        elif isinstance(left, tuple) and isinstance(right, tuple):
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif left != right or _is_negative_zero(left) != _is_negative_zero(right):
            return False
    return True


def _is_negative_zero(value: object) -> bool:
    return value == 0 and isinstance(value, float) and math.copysign(1.0, value) < 0


@_hashed_once
@dataclass(frozen=True, slots=True)
class Const(_Hashed):
    """A number; with lanes, the same number in each."""

    value: int | float | bool
    dtype: DType = INDEX
    lanes: int = 1


@_hashed_once
@dataclass(frozen=True, slots=True)
class Var(_Hashed):
    """A loop variable, a let-bound value or a scalar parameter; names are unique in a function."""

    name: str
    dtype: DType = INDEX
    lanes: int = 1


class BinaryKind(StrEnum):
    """Arithmetic and logic. Integer division and modulo round towards minus infinity."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"  # floating-point
    FLOOR_DIVIDE = "//"
    FLOOR_MODULO = "%"
    MINIMUM = "min"  # NaN wins
    MAXIMUM = "max"  # NaN wins
    AND = "&"
    OR = "|"
    XOR = "^"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"  # arithmetic for signed integers


@_hashed_once
@dataclass(frozen=True, slots=True)
class Binary(_Hashed):
    """An operation on two operands of one dtype and equal lanes."""

    kind: BinaryKind
    left: Expr
    right: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.left.dtype)
        object.__setattr__(self, "lanes", self.left.lanes)


class CompareKind(StrEnum):
    """Comparisons; those with NaN are false, except `!=`."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


@_hashed_once
@dataclass(frozen=True, slots=True)
class Compare(_Hashed):
    """A comparison of two operands of one dtype and equal lanes; the result is bool."""

    kind: CompareKind
    left: Expr
    right: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DType.BOOL)
        object.__setattr__(self, "lanes", self.left.lanes)


@_hashed_once
@dataclass(frozen=True, slots=True)
class Select(_Hashed):
    """`yes` where the condition holds, `no` elsewhere; both are evaluated.

    A condition with lanes that is made of indices alone is a mask: lanes are then read from memory
    only where their side is chosen, as those of a store with such a condition are.
    """

    condition: Expr
    yes: Expr
    no: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.yes.dtype)
        object.__setattr__(self, "lanes", self.yes.lanes)


@_hashed_once
@dataclass(frozen=True, slots=True)
class Cast(_Hashed):
    """The value in another dtype, as C converts numbers; float to integer truncates."""

    dtype: DType
    value: Expr
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lanes", self.value.lanes)


# By intrinsic, how many lanes of its argument become one.
_JOINED = {"interleave4": 4, "join2": 2}


@_hashed_once
@dataclass(frozen=True, slots=True)
class Call(_Hashed):
    """An intrinsic, elementwise on lanes (exp, fma, ...) or over them (reduce_add, ...); of several
    lanes one where narrow numbers become words (interleave4, join2)."""

    name: str
    arguments: tuple[Expr, ...]
    dtype: DType
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        across = not self.arguments or self.name.startswith("reduce_")
        lanes = 1 if across else self.arguments[0].lanes
        object.__setattr__(self, "lanes", lanes // _JOINED.get(self.name, 1))


@_hashed_once
@dataclass(frozen=True, slots=True)
class Ramp(_Hashed):
    """`base, base + stride, ...`: an index per lane."""

    base: Expr
    stride: int
    lanes: int
    dtype: DType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.base.dtype)


@_hashed_once
@dataclass(frozen=True, slots=True)
class Broadcast(_Hashed):
    """A scalar in every lane, or a short vector as often as there is room for it."""

    value: Expr
    lanes: int
    dtype: DType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.value.dtype)


class Scope(Enum):
    """Where a buffer lives."""

    ARGUMENT = "argument"  # given by the caller
    HEAP = "heap"  # scratch memory of the function, per thread
    SHARED = "shared"  # one for all threads of a block
    REGISTER = "register"  # small, indexed by constants after unrolling: becomes registers


@_hashed_once
@dataclass(frozen=True, slots=True)
class Buffer(_Hashed):
    """Memory with a shape, dense and row-major."""

    name: str
    dtype: DType
    extents: tuple[Expr, ...]
    scope: Scope = Scope.ARGUMENT
    alignment: int = 64


@_hashed_once
@dataclass(frozen=True, slots=True)
class Load(_Hashed):
    """An element, or a vector of elements where an index has lanes."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: DType = field(init=False, repr=False, compare=False)
    lanes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype)
        object.__setattr__(self, "lanes", max((index.lanes for index in self.indices), default=1))


Expr = Const | Var | Binary | Compare | Select | Cast | Call | Ramp | Broadcast | Load


class LoopKind(Enum):
    """How a loop runs."""

    SERIAL = "serial"
    PARALLEL = "parallel"  # the range is split among the threads, or the blocks of a GPU's grid
    THREAD = "thread"  # the range is split among the threads of a block, which meet at its end
    VECTOR = "vector"  # becomes lanes when lowered
    UNROLLED = "unrolled"  # becomes copies of the body when lowered


@dataclass(frozen=True, slots=True)
class Block:
    """Statements one after the other."""

    statements: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For:
    """The body for each value from `start` on, `extent` times."""

    var: Var
    start: Expr
    extent: Expr
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL


@dataclass(frozen=True, slots=True)
class If:
    """One of two statements; the condition is a scalar."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True)
class While:
    """The body as long as the condition holds."""

    condition: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Let:
    """A name for a value within the body."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Allocate:
    """Memory that lives while the body runs."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Store:
    """Write an element or a vector; with a condition, only the lanes where it holds."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    condition: Expr | None = None


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Add to an element that other threads may add to as well."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Ask for the memory of an element ahead of its use, to be in a cache of some level by then."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    level: int = 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads meet here."""


Stmt = Block | For | If | While | Let | Allocate | Store | AtomicAdd | Prefetch | Barrier


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel: buffers and scalars in, nothing out but what it stores."""

    name: str
    parameters: tuple[Buffer | Var, ...]
    body: Stmt
    notes: tuple[str, ...] = field(default=())  # source nodes, for people

    def buffer(self, name: str) -> Buffer:
        """The parameter of that name."""
        for parameter in self.parameters:
            if isinstance(parameter, Buffer) and parameter.name == name:
                return parameter
        raise InternalError(f"{self.name} has no buffer '{name}'")
