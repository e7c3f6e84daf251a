#!/usr/bin/env python3
"""How fast is the inner loop of a matrix product?

    python tools/microkernel.py [--target NAME] [--assembly]

In goes nothing, or the name of a target whose code this machine runs; out come the register tile
that the target asks for, the speed of its micro-kernel on one core, and that of independent
multiply-adds in registers alone, which is as fast as the core can be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from graft.base.dtypes import DType
from graft.llvm.compile import assembly, object_code
from graft.llvm.load import Kernel, aligned, load
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
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
from graft.target.target import Target, known_targets, named_target

DEPTH = Var("depth")
TURNS = Var("turns")
REPEATS = 20


def micro_kernel(target: Target, dtype: DType = DType.FLOAT32) -> Function:
    """c = turns · a[depth, rows]ᵀ b[depth, columns], all sums in registers."""
    rows, columns = target.register_tile(dtype)
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


def peak_kernel(target: Target, dtype: DType = DType.FLOAT32) -> Function:
    """Multiply-adds in registers alone, enough of them at once to hide how long each takes."""
    lanes, chains = target.lanes(dtype), 12
    c = Buffer("c", dtype, (Const(chains * lanes),))
    sums = Buffer("sums", dtype, (Const(chains * lanes),), Scope.REGISTER)
    ramps = [Ramp(Const(start * lanes), 1, lanes) for start in range(chains)]
    factor = Var("factor", dtype, lanes)
    fill = [Store(sums, (ramp,), Load(c, (ramp,))) for ramp in ramps]
    step = [
        Store(sums, (ramp,), Call("fma", (factor, Load(sums, (ramp,)), factor), dtype))
        for ramp in ramps
    ]
    write = [Store(c, (ramp,), Load(sums, (ramp,))) for ramp in ramps]
    loop = For(Var("turn"), Const(0), TURNS, Block(tuple(step)))
    body = Block((*fill, loop, *write))
    half = Binary(BinaryKind.MULTIPLY, Load(c, (ramps[0],)), Const(0.5, dtype, lanes))
    return Function("peak", (c, TURNS), Allocate(sums, Let(factor, half, body)))


def gigaflops(kernel: Kernel, arguments: dict[str, object], operations: float) -> float:
    """The best of several runs."""
    best = 0.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        kernel(arguments)  # type: ignore[arg-type]
        best = max(best, operations / (time.perf_counter() - start) / 1e9)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="host", choices=known_targets())
    parser.add_argument("--assembly", action="store_true", help="print the code instead")
    options = parser.parse_args()
    target = named_target(options.target)
    function = micro_kernel(target)
    if options.assembly:
        print(assembly(function, target))
        return
    rows, columns = target.register_tile(DType.FLOAT32)
    random = np.random.default_rng(0)
    # a and b stay in the nearest cache; enough turns that calling costs nothing.
    depth, turns = 128, 1 << 10
    arguments: dict[str, object] = {
        "a": aligned(random.normal(size=(depth, rows)).astype(np.float32)),
        "b": aligned(random.normal(size=(depth, columns)).astype(np.float32)),
        "c": aligned(np.zeros((rows, columns), np.float32)),
        "depth": depth,
        "turns": turns,
    }
    kernel = load(function, object_code(function, target))
    speed = gigaflops(kernel, arguments, 2.0 * turns * depth * rows * columns)
    peak = peak_kernel(target)
    turns, width = 1 << 18, 12 * target.lanes(DType.FLOAT32)
    filled = {"c": aligned(np.ones(width, np.float32)), "turns": turns}
    limit = gigaflops(load(peak, object_code(peak, target)), filled, 2.0 * turns * width)
    print(f"{target.cpu}: tile {rows}x{columns}, {target.vector_bits}-bit vectors")
    print(f"micro-kernel {speed:.1f} GFLOP/s, {speed / limit:.0%} of {limit:.1f} in registers")


if __name__ == "__main__":
    main()
