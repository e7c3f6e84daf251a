"""The inner loop of a matrix product: a target in, the loop IR of its register tile out."""

from __future__ import annotations

from collections.abc import Callable

from graft.base.dtypes import DType
from graft.loop.ir import (
    Allocate,
    Block,
    Broadcast,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    Function,
    Let,
    Load,
    LoopKind,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.target.target import Target

DEPTH = Var("depth")
TURNS = Var("turns")


def register_tile(target: Target, dtype: DType) -> tuple[int, int]:
    """Rows and columns of the matrix product tile whose sums fill the registers.

    x86 multiplies by an element straight from memory, so one register beside a row of vectors
    is enough; NEON multiplies by a lane, so a register holds as many elements as it has lanes.
    """
    width = 3 if target.is_aarch64 else 2
    per_row = width + (1 / target.lanes(dtype) if target.is_aarch64 else 0)
    spare = target.vector_registers - width - (0 if target.is_aarch64 else 1)
    rows = max(1, int(spare / per_row))
    if rows % 2 and rows > 1:
        rows -= 1
    return rows, width * target.lanes(dtype)


def micro_kernel(target: Target, dtype: DType = DType.FLOAT32) -> Function:
    """c = turns · a[depth, rows]ᵀ b[depth, columns], all sums in registers."""
    rows, columns = register_tile(target, dtype)
    lanes = target.lanes(dtype)
    a = Buffer("a", dtype, (DEPTH, Const(rows)))
    b = Buffer("b", dtype, (DEPTH, Const(columns)))
    c = Buffer("c", dtype, (Const(rows), Const(columns)))
    sums = Buffer("sums", dtype, (Const(rows), Const(columns)), Scope.REGISTER)
    row, k = Var("row"), Var("k")
    ramps = [Ramp(Const(start), 1, lanes) for start in range(0, columns, lanes)]

    def each_row(name: str, stores: Callable[[Var], list[Stmt]]) -> Stmt:
        var = Var(name)
        body = Block(tuple(stores(var)))
        return For(var, Const(0), Const(rows), body, LoopKind.UNROLLED)

    zero = Const(0.0, dtype, lanes)
    clear = each_row("cleared", lambda i: [Store(sums, (i, ramp), zero) for ramp in ramps])
    factor = Var("factor", dtype, lanes)
    vectors = [Var(f"b{number}", dtype, lanes) for number in range(len(ramps))]
    updates: list[Stmt] = [
        Store(sums, (row, ramp), Call("fma", (factor, vector, Load(sums, (row, ramp))), dtype))
        for ramp, vector in zip(ramps, vectors, strict=True)
    ]
    spread: Expr = Broadcast(Load(a, (k, row)), lanes)
    step: Stmt = Let(factor, spread, Block(tuple(updates)))
    step = For(row, Const(0), Const(rows), step, LoopKind.UNROLLED)
    for ramp, vector in zip(ramps, vectors, strict=True):
        step = Let(vector, Load(b, (k, ramp)), step)
    loop = For(Var("turn"), Const(0), TURNS, For(k, Const(0), DEPTH, step))
    write = each_row(
        "written", lambda i: [Store(c, (i, ramp), Load(sums, (i, ramp))) for ramp in ramps]
    )
    body = Allocate(sums, Block((clear, loop, write)))
    return Function("micro_kernel", (a, b, c, DEPTH, TURNS), body)
