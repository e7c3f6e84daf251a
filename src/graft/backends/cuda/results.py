"""From sums to results: what a block of threads does with a tile of sums that it has computed.

The sums of all warps go through shared memory, where those of other warps and of other blocks of a
cluster are added; the epilogue, a statement of the loop IR, stores the results, a vector of columns
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from graft.backends.cuda.code import Int, TensorCode, Variable
from graft.backends.cuda.problem import PARTIAL_PAD, Epilogue, Product, ProductSchedule
from graft.llvm.emit_expr import expression
from graft.llvm.gpu import KernelWriter
from graft.llvm.text import Value, constant
from graft.llvm.types import byte_size
from graft.loop.ir import Expr, Load, Scope, Select, Stmt, Store, Var
from graft.loop.traverse import map_expr, walk_expr
from graft.loop.vectors import is_mask

_LOADED_AHEAD = 48  # registers of operands of the epilogue
_REGISTERS, _OCCUPIED = 1 << 16, 56  # of a multiprocessor, and for addresses and the like


@dataclass(frozen=True, slots=True)
class _Vector:
    """Some columns of a row of results: their place in the tile, and as the epilogue counts it."""

    row: Int
    column: Int
    m: Int
    n: Int
    inside: Value


class TileResults(TensorCode):
    """A kernel that finishes tiles of sums. Whoever inherits from it says where the tile lies, and
    computes `sums`, a fragment of each warp's."""

    thread: Int
    lane: Int
    warp: tuple[Int, Int, Int]
    base: Int  # of shared memory
    rank: Int  # among the blocks that share the tile
    peers: Int  # the first of these in the cluster
    member: Int  # of the batch
    first_row: Int
    first_column: Int
    sums: Variable

    def __init__(
        self,
        writer: KernelWriter,
        product: Product,
        schedule: ProductSchedule,
        epilogue: Epilogue,
    ) -> None:
        super().__init__(writer, product.dtype)
        self.product, self.schedule, self.epilogue = product, schedule, epilogue
        self.operands, self.body = _separated(epilogue.body)

    def _store_sums(self) -> None:
        tall, wide = self.schedule.warp_tile
        pitch = self.schedule.columns + PARTIAL_PAD
        row = self.warp[2] * self.schedule.rows + self.warp[0] * tall + self.lane // 4
        column = self.warp[1] * wide + (self.lane & 3) * 2
        place = self.base + (row * pitch + column) * 4
        for i in range(tall // 16):
            for j in range(wide // 8):
                first = (i * (wide // 8) + j) * 4
                for half in range(2):
                    pair = [self.sums.get(first + 2 * half + index) for index in range(2)]
                    self.store_pair(place + ((i * 16 + half * 8) * pitch + j * 8) * 4, pair)

    def _meet(self) -> None:
        """All that share a tile's sums meet: the block, or the cluster."""
        if self.schedule.split == 1:
            self.writer.barrier()
            return
        self.writer.assembly("barrier.cluster.arrive.release.aligned;", "", ())
        self.writer.assembly("barrier.cluster.wait.acquire.aligned;", "", ())

    def finish(self) -> None:
        """Add up what all have summed, a vector of columns at a time, and store the results.

        What else they need is loaded for several vectors at once, the first time ahead of meeting
        the others: so it is there when the sums are."""
        schedule = self.schedule
        vectors = schedule.rows * schedule.columns // self.epilogue.lanes
        iterations = math.ceil(vectors / (schedule.threads * schedule.split))
        registers = sum(math.ceil(one.lanes * byte_size(one.dtype) / 4) for one in self.operands)
        batch = max(1, self._free_registers() // max(registers, 1))
        for start in range(0, iterations, batch):
            few = [self._vector(one) for one in range(start, min(start + batch, iterations))]
            loaded = [self._load_operands(one) for one in few]
            if start == 0:
                self._store_sums()
                self._meet()
            for one, operands in zip(few, loaded, strict=True):
                self.writer.when(one.inside, partial(self._result, one, operands))
        if schedule.split > 1:  # nobody leaves while others read its memory
            self._meet()

    def _free_registers(self) -> int:
        """How many registers of a thread operands of the epilogue may take."""
        room = min(255, _REGISTERS // self.schedule.threads) - _OCCUPIED
        return min(_LOADED_AHEAD, room - math.prod(self.schedule.warp_tile) // 32)

    def _vector(self, iteration: int) -> _Vector:
        """What this thread finishes in an iteration."""
        schedule, product, lanes = self.schedule, self.product, self.epilogue.lanes
        threads, across = schedule.threads * schedule.split, schedule.columns // lanes
        number = self.thread + self.rank * schedule.threads + iteration * threads
        row, column = number // across, number % across
        m, n = self.first_row + row, self.first_column // lanes + column
        inside = self.builder.binary(
            "and", m.below(product.rows), n.below(product.columns // lanes)
        )
        vectors = schedule.rows * across
        if vectors % threads:
            inside = self.builder.binary("and", inside, number.below(vectors))
        return _Vector(row, column * lanes, m, n, inside)

    def _load_operands(self, vector: _Vector) -> list[Value]:
        """What the epilogue needs beside the sums; of the last vector where there is none."""
        ends = self.product.rows - 1, self.product.columns // self.epilogue.lanes - 1
        inside = [
            Int(self.writer, self.builder.elementwise("smin", one.value, constant(end, "i32")))
            for one, end in zip((vector.m, vector.n), ends, strict=True)
        ]
        self._set_place(*inside)
        return [expression(self.writer.context, operand) for operand in self.operands]

    def _set_place(self, m: Int, n: Int) -> None:
        """Tell the epilogue where it is in the matrix of all results."""
        product, variables = self.product, self.writer.context.variables
        if product.batch > 1 and product.by_columns:
            n = n + self.member * (product.columns // self.epilogue.lanes)
        elif product.batch > 1:
            m = m + self.member * product.rows
        variables["m"], variables["n"] = m.wide(), n.wide()

    def _result(self, vector: _Vector, operands: Sequence[Value]) -> None:
        schedule = self.schedule
        pitch = schedule.columns + PARTIAL_PAD
        place = self.base + (vector.row * pitch + vector.column) * 4
        totals: list[Value] = []
        for rank in range(schedule.split):
            for layer in range(schedule.warps[2]):
                at = place + layer * schedule.rows * pitch * 4
                parts = self._partial(at, rank)
                sums = zip(totals, parts, strict=True) if totals else ()
                totals = [self.builder.binary("fadd", *pair) for pair in sums] or parts
        self._set_place(vector.m, vector.n)
        for number, value in enumerate(operands):
            self.writer.context.variables[_operand_name(number)] = value
        self.store_results(self.epilogue, self.body, totals)

    def _partial(self, place: Int, rank: int) -> list[Value]:
        """Sums of some columns, of one block of the cluster."""
        if self.schedule.split == 1:
            return self.load_floats(place.value, self.epilogue.lanes)
        text, which = "mapa.shared::cluster.u32 $0, $1, $2;", (self.peers + rank).value
        made = self.writer.assembly(text, "=r,r,r", ["i32"], place.value, which)
        return self.load_floats(Value("i32", 1, made), self.epilogue.lanes, "shared::cluster")


def _operand_name(number: int) -> str:
    return f"operand{number}"


def _separated(body: Stmt) -> tuple[list[Load], Stmt]:
    """What an epilogue loads from memory, and the rest of it, which has variables instead.

    Loads that a mask guards stay where they are."""
    if not isinstance(body, Store):
        return [], body
    parts = list(walk_expr(body.value))
    if any(isinstance(part, Select) and is_mask(part.condition) for part in parts):
        return [], body
    loads: dict[Load, Var] = {}

    def change(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.buffer.scope is Scope.REGISTER:
            return expr
        variable = Var(_operand_name(len(loads)), expr.dtype, expr.lanes)
        return loads.setdefault(expr, variable)

    rest = replace(body, value=map_expr(change, body.value))
    return list(loads), rest
