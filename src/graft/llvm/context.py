"""What is known at one point of the code being written.

Part of the emitter. A `Context` holds the builder, the values of variables, where buffers lie, and
the mask under which memory may be touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from graft.base.bounds import Bounds, Intervals, Range
from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.llvm.text import Builder, Value
from graft.loop.index import polynomial
from graft.loop.ir import Buffer, Expr, Scope, Var

Offset = int | Value


@dataclass(frozen=True, slots=True)
class MemRef:
    """A buffer in memory: its first element, its strides in elements, and its aliasing metadata."""

    buffer: Buffer
    pointer: Value
    strides: tuple[Offset, ...]
    aliasing: str = ""  # metadata behind each access

    @property
    def is_register(self) -> bool:
        return self.buffer.scope is Scope.REGISTER


@dataclass(slots=True)
class Context:
    """The state of the emitter within one function."""

    builder: Builder
    function: str
    variables: dict[str, Value] = field(default_factory=dict)
    memrefs: dict[str, MemRef] = field(default_factory=dict)
    mask: Value | None = None  # the lanes in which memory may be touched, if not all
    in_parallel: bool = False
    ranges: dict[str, Range] = field(default_factory=dict)  # of integer variables, as numbers
    claims: bool = False  # whether threads claim the iterations of a parallel loop
    # On a GPU: first iteration and step of loops that a grid, its blocks or their threads share.
    shares: dict[str, tuple[Value, Value]] = field(default_factory=dict)

    def variable(self, name: str) -> Value:
        """The value of a variable that is in scope."""
        if name not in self.variables:
            raise InternalError(f"{self.function}: variable '{name}' is not defined here")
        return self.variables[name]

    def bounds(self, expr: Expr) -> Bounds:
        """The least and the largest value of an index expression, in any of its lanes."""
        return Intervals(self.ranges).bounds(polynomial(expr))

    def limit(self, var: Var, least: Expr, most: Expr) -> None:
        """Remember between which expressions a variable lies from here on."""
        if var.dtype is DType.INT64:
            ends = self.bounds(least)[0], self.bounds(most)[1]
            self.ranges[var.name] = Range(*(None if math.isinf(end) else int(end) for end in ends))

    def memref(self, buffer: Buffer) -> MemRef:
        """The memory of a buffer that is in scope."""
        if buffer.name not in self.memrefs:
            raise InternalError(f"{self.function}: buffer '{buffer.name}' is not allocated here")
        return self.memrefs[buffer.name]

    @contextmanager
    def under(self, mask: Value) -> Iterator[None]:
        """Within, vectors of the mask's lanes are read and written only where the mask says so."""
        before, self.mask = self.mask, mask
        try:
            yield
        finally:
            self.mask = before

    def mask_for(self, lanes: int) -> Value | None:
        """The mask of an access with so many lanes; scalars are the same in all lanes."""
        return self.mask if self.mask is not None and self.mask.lanes == lanes else None
