"""What follows a product: tensors in, a statement on some columns of its sums out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from graft.backends.cuda.problem import Epilogue
from graft.base.dtypes import DType
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Buffer,
    Const,
    Expr,
    For,
    Load,
    LoopKind,
    Scope,
    Store,
    Var,
)
from graft.loop.ranges import Context
from graft.loop.schedule import Inline, Schedule
from graft.loop.simplify import simplify
from graft.loop.stages import rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.loop.traverse import map_expr, substitute, walk_expr
from graft.loop.vectorize import vectorize


def epilogue_of(
    inputs: Sequence[Tensor],
    result: Tensor,
    sums: Tensor,
    lanes: int,
    columns_of: tuple[int, int] | None = None,
) -> Epilogue | None:
    """The statement that stores some columns of a result; None where it needs other sums.

    `columns_of` are the first column and the number of columns where the result is part of a wider
    matrix."""
    stages = [one for one in in_order([result]) if one.body is not None and one is not result]
    if any(isinstance(stage.body, Reduce) for stage in stages):
        return None
    names = {one.name for one in (*inputs, result)}
    inlined = Schedule.of({stage.name: [Inline()] for stage in stages})
    written = rewrite_stages(in_order([result]), names, inlined)[result.name]
    assert isinstance(written.body, Expr)
    extents = [int(extent.value) for extent in result.shape if isinstance(extent, Const)]
    columns, rows = extents[-1], math.prod(extents[:-1])
    lane, m, n = Var("lane"), Var("m"), Var("n")
    column = Binary(BinaryKind.ADD, Binary(BinaryKind.MULTIPLY, n, Const(lanes)), lane)
    at: dict[str, Expr] = {result.axes[-1].name: column}
    after = rows
    for axis, extent in zip(result.axes[:-1], extents[:-1], strict=True):
        after //= extent
        quotient = Binary(BinaryKind.FLOOR_DIVIDE, m, Const(after))
        at[axis.name] = simplify(Binary(BinaryKind.FLOOR_MODULO, quotient, Const(extent)))
    registers = Buffer("sums", DType.FLOAT32, (Const(lanes),), Scope.REGISTER)
    flat = _flat(written.body, result, (rows, columns))

    def change(node: Expr) -> Expr:
        if not isinstance(node, Load):
            return node
        if node.buffer.name == sums.name:
            return Load(registers, (lane,))
        if node.buffer.name in flat:
            return Load(flat[node.buffer.name], (m, column))
        return node

    for part in walk_expr(written.body):
        if isinstance(part, Load) and part.buffer.name == sums.name and not _is_own(part, result):
            return None
    value = simplify(substitute(map_expr(change, written.body), at))
    start, width = columns_of or (0, columns)
    target = replace(result.buffer, extents=(Const(rows), Const(width)))
    place = simplify(Binary(BinaryKind.ADD, column, Const(start)))
    store = Store(target, (m, place), value)
    loop = For(lane, Const(0), Const(lanes), store, LoopKind.VECTOR)
    read = tuple(flat.get(one.name, one.buffer) for one in inputs if one is not sums)
    return Epilogue(vectorize(loop, Context()), registers, lanes, (*read, target))


def _is_own(load: Load, result: Tensor) -> bool:
    """Whether a sum is read at the place where the result is written."""
    own = {axis.name for axis in result.axes}
    large = [i for i, e in zip(load.indices, load.buffer.extents, strict=True) if e != Const(1)]
    return all(isinstance(index, Var) and index.name in own for index in large)


def _flat(body: Expr, result: Tensor, extents: tuple[int, int]) -> dict[str, Buffer]:
    """Buffers of the result's shape that are read at its own place only, as matrices."""
    found: dict[str, Buffer] = {}
    other: set[str] = set()
    for part in walk_expr(body):
        if isinstance(part, Load):
            same = part.indices == result.axes and part.buffer.extents == result.shape
            flat = replace(part.buffer, extents=tuple(map(Const, extents)))
            found[part.buffer.name] = flat
            other |= set() if same else {part.buffer.name}
    return {name: buffer for name, buffer in found.items() if name not in other}
