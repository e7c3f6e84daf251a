"""Micro-kernels: generators that write the innermost tile of a reduction by hand.

A `Tile` (loops of constant extent and the statement inside them) enters, statements leave. Where
plain unrolling leaves it to the compiler behind to find what a tile shares, a micro-kernel says it.
Generators are registered by name, and a schedule's `tensorize` names one; a backend for an
instruction set of its own adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from graft.loop.errors import LoopError
from graft.loop.ir import Broadcast, Call, Const, Expr, Let, Load, Ramp, Stmt, Store, Var
from graft.loop.traverse import block, substitute, variables
from graft.loop.vectorize import Lanes


@dataclass(frozen=True, slots=True)
class Tile:
    """Loops from 0 on, outermost first, and the statement inside them."""

    stage: str
    loops: tuple[tuple[Var, int], ...]
    statement: Stmt

    def iterations(self, names: set[str]) -> Iterator[dict[str, Expr]]:
        """The values of the named loops' variables, the last one running fastest."""
        loops = [(var, extent) for var, extent in self.loops if var.name in names]
        for values in product(*(range(extent) for _, extent in loops)):
            pairs = zip(loops, values, strict=True)
            yield {var.name: Const(value) for (var, _), value in pairs}


class TileError(LoopError):
    """Why a micro-kernel does not fit a tile."""


MicroKernel = Callable[[Tile], Stmt]
MICRO_KERNELS: dict[str, MicroKernel] = {}


def micro_kernel(name: str) -> Callable[[MicroKernel], MicroKernel]:
    """Register a generator under a name."""

    def register(generator: MicroKernel) -> MicroKernel:
        if name in MICRO_KERNELS:
            raise LoopError(f"there is a micro-kernel '{name}' already")
        MICRO_KERNELS[name] = generator
        return generator

    return register


@micro_kernel("outer_product")
def outer_product(tile: Tile) -> Stmt:
    """`total[i, j] += left(i, k) * right(k, j)` with `j` in lanes: each vector is loaded once.

    The factor that depends on `j` is kept in a register while it is multiplied with one element
    after the other of the factor that does not.
    """
    store = tile.statement
    value = store.value if isinstance(store, Store) else None
    if not isinstance(store, Store) or not isinstance(value, Call) or value.name != "fma":
        raise TileError("the statement inside is no sum of products")
    left, right, _ = value.arguments
    lane, lanes = _lane(tile, store)
    if lane.name in variables(left):
        left, right = right, left
    if lane.name in variables(left) or lane.name not in variables(right):
        raise TileError(f"not just one factor depends on loop '{_short(lane)}'")
    across = Lanes(lane, Const(0), lanes)
    vector = across.expression(right)
    element = tuple(across.expression(index) for index in store.indices)
    shared = {var.name for var, _ in tile.loops if var.name in variables(right)} - {lane.name}
    single = {var.name for var, _ in tile.loops} - shared - {lane.name}
    stmts: list[Stmt] = []
    for number, outer in enumerate(tile.iterations(shared)):
        register = Var(f"{tile.stage}.vector{number}", vector.dtype, lanes)
        updates: list[Stmt] = []
        for inner in tile.iterations(single):
            at = outer | inner
            indices = tuple(substitute(index, at) for index in element)
            factor = Broadcast(substitute(left, at), lanes)
            total = Call("fma", (factor, register, Load(store.buffer, indices)), value.dtype)
            updates.append(Store(store.buffer, indices, total))
        stmts.append(Let(register, substitute(vector, outer), block(*updates)))
    return block(*stmts)


def _short(var: Var) -> str:
    return var.name.rpartition(".")[2]


def _lane(tile: Tile, store: Store) -> tuple[Var, int]:
    """The innermost loop that runs along contiguous elements of what is stored."""
    for var, extent in reversed(tile.loops):
        ramp = Lanes(var, Const(0), max(extent, 2)).indices(store.indices)
        *others, last = ramp
        contiguous = isinstance(last, Ramp) and last.stride == 1
        if contiguous and extent > 1 and all(index.lanes == 1 for index in others):
            return var, extent
    raise TileError("no loop inside runs along contiguous elements of the result")
