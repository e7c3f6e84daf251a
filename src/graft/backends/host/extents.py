"""The names that symbolic dims have in one kernel.

Dims over the graph's symbols enter; dims over `s0`, `s1`, ... leave, numbered as they come, so that
kernels that differ in nothing but the names of symbols are the same text. Those names are the
kernel's scalar parameters. A call of floordiv, min, broadcast or the like is a scalar of its own:
the caller computes it once, and no loop has to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from graft.base.dims import (
    AnyDim,
    Dim,
    IndexExpr,
    at_least,
    map_atoms,
    product,
    substitute,
    symbol,
    symbols_of,
)
from graft.base.polynomials import Atom
from graft.loop.index import index_of
from graft.loop.ir import Allocate, Buffer, Expr, Function, Stmt, Var
from graft.loop.traverse import variables, variables_in, walk_stmt

# Reasoning about sums of more terms than this takes longer than it is worth.
MOST_TERMS = 4


@dataclass
class Extents:
    """Numbers what dims consist of, in order of appearance."""

    _scalars: dict[Dim, str] = field(default_factory=dict)

    def named(self, dim: AnyDim) -> AnyDim:
        """The dim over the kernel's scalars."""
        return map_atoms(self._named_atom, dim)

    def size(self, dim: AnyDim) -> AnyDim:
        """The extent of a tensor over the kernel's scalars.

        No extent is negative, so one that is not provably a natural number (a slice up to bounds
        that are themselves computed from sizes) still is a scalar: as an expression in the kernel,
        its conditions would keep the schedules of several reductions from being told equal."""
        if isinstance(dim, IndexExpr) and not all(map(_is_natural, _atoms(dim))):
            return self._scalar(dim)
        return self.named(dim)

    def _named_atom(self, atom: Atom) -> AnyDim:
        whole = _dim_of(atom)
        if _is_natural(atom):
            return self._scalar(whole)
        # Scalars count as natural numbers, so what may be negative is computed in the kernel.
        return substitute(whole, {n: self._scalar(symbol(n)) for n in sorted(symbols_of(whole))})

    def _scalar(self, dim: Dim) -> IndexExpr:
        return symbol(self._scalars.setdefault(dim, f"s{len(self._scalars)}"))

    def total(self, dims: tuple[AnyDim, ...]) -> AnyDim:
        """The product of dims, as one scalar where it is not known."""
        count = product(dims)
        return self._scalar(count) if isinstance(count, IndexExpr) else count

    @property
    def scalars(self) -> tuple[Var, ...]:
        """The scalars so far, in order."""
        return tuple(map(Var, self._scalars.values()))

    def mentioned(self, body: Stmt, buffers: Iterable[Buffer]) -> tuple[Var, ...]:
        """The scalars that a body or the extents of buffers mention, in order."""
        if not self._scalars:
            return ()
        allocated = (stmt.buffer for stmt in walk_stmt(body) if isinstance(stmt, Allocate))
        extents = (extent for buffer in (*buffers, *allocated) for extent in buffer.extents)
        names = variables_in(body).union(*map(variables, extents))
        return tuple(var for var in self.scalars if var.name in names)

    def expr(self, dim: AnyDim) -> Expr:
        """An extent as an index expression; a long sum is one scalar."""
        if isinstance(dim, IndexExpr) and len(dim.terms) > MOST_TERMS:
            return index_of(self._scalar(dim))
        return index_of(self.named(dim))

    def attributes(self, attrs: Any) -> Any:
        """An operator's attributes with dims over the kernel's scalars."""
        values = {one.name: getattr(attrs, one.name) for one in fields(attrs)}
        return replace(attrs, **{name: self._named_value(value) for name, value in values.items()})

    def _named_value(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._named_value, value))
        return self.named(value) if isinstance(value, IndexExpr) else value

    def passed(self, function: Function) -> tuple[Dim, ...]:
        """What a function's scalar parameters stand for, in order."""
        dims = {name: dim for dim, name in self._scalars.items()}
        return tuple(dims[one.name] for one in function.parameters if isinstance(one, Var))


def _atoms(dim: IndexExpr) -> Iterator[Atom]:
    return (atom for monomial, _ in dim.terms for atom in monomial)


def _dim_of(atom: Atom) -> IndexExpr:
    return IndexExpr((((atom,), 1),))


def _is_natural(atom: Atom) -> bool:
    return at_least(_dim_of(atom), 0)
