"""A GPU of NumPy: plans run launch by launch, kernels of expressions by the loop interpreter and
products by their definition, on the memory that the plan lays out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from graft.backends.cuda.attention import Attention
from graft.backends.cuda.plan import Launch, Options, ProductLibrary, RegionPlan, plan_region
from graft.backends.cuda.problem import PANEL, ROW, Epilogue, Product, ProductSchedule, Window
from graft.base.dtypes import Array
from graft.byoc.region import for_backend
from graft.ir.graph import Graph
from graft.llvm.gpu import Kernel
from graft.loop.interpret import interpret
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Buffer,
    Const,
    For,
    Function,
    Let,
    Load,
    Store,
    Var,
)
from graft.loop.traverse import block

Memory = dict[str, Array]
Tile = tuple[range, range, range]  # members of a batch, rows, columns


def run_simulated(
    graph: Graph,
    inputs: Sequence[Array],
    options: Options,
    library: ProductLibrary | None = None,
    call: Callable[[Launch, Memory], None] | None = None,
) -> list[Array]:
    """What the kernels of a region compute, launch by launch; `call` does what the library does."""
    region = for_backend(graph)
    plan = plan_region(region, options, library=library)
    return run_plan(region, inputs, plan, plan.launches, call)


def run_plan(
    region: Graph,
    inputs: Sequence[Array],
    plan: RegionPlan,
    launches: Iterable[Launch | tuple[Launch, Kernel, int]],
    call: Callable[[Launch, Memory], None] | None = None,
) -> list[Array]:
    """Run launches, or single blocks of kernels, in the memory that a plan lays out."""
    offsets, total = plan.offsets()
    arena = np.full(total, 0xFF, np.uint8)  # NaN, to begin with
    memory = {name: _bytes(array) for name, array in plan.constants.items()}
    memory |= {v.name: _bytes(a) for v, a in zip(region.inputs, inputs, strict=True)}
    for name, start in offsets.items():
        memory[name] = arena[start : start + plan.sizes[name]]
    outputs = [np.empty(value.shape, value.dtype.numpy) for value in region.outputs]
    memory |= {
        v.name: a.reshape(-1).view(np.uint8) for v, a in zip(region.outputs, outputs, strict=True)
    }
    for one in launches:
        if isinstance(one, Launch) and one.call is not None:
            assert call is not None
            call(one, memory)
        elif isinstance(one, Launch):
            _run(plan.code[one.kernel], one, memory, None)
        else:
            _run(one[1], one[0], memory, one[2])
    return outputs


def _run(kernel: Kernel, launch: Launch, memory: Memory, block: int | None) -> None:
    """Run a kernel, or one of its blocks."""
    match kernel.problem:
        case Function() as function:
            if not block:  # the interpreter has no blocks: the first does it all
                interpret(function, _arguments(function.parameters, launch.buffers, memory))
        case (Product() as product, ProductSchedule() as schedule, epilogue):
            whole = range(product.batch), range(product.rows), range(product.columns)
            tile = whole if block is None else _tile(product, schedule, block)
            _product(product, epilogue, launch, memory, tile)
        case (Attention() as attention, epilogue):
            if not block:
                _attention(attention, epilogue, launch, memory)


def _tile(product: Product, schedule: ProductSchedule, block: int) -> Tile:
    """The members of the batch, the rows and the columns that a block computes: none where it helps
    another, or only completes a cluster."""
    across, blocks = math.ceil(product.columns / schedule.columns), schedule.grid(product)[0]
    member, number = divmod(block, blocks)
    row, column = divmod(number // schedule.split, across)
    rows = range(row * schedule.rows, min((row + 1) * schedule.rows, product.rows))
    columns = range(
        column * schedule.columns, min((column + 1) * schedule.columns, product.columns)
    )
    is_first = member < product.batch and block % schedule.split == 0
    return (range(member, member + 1) if is_first else range(0)), rows, columns


def _product(
    product: Product, epilogue: Epilogue, launch: Launch, memory: Memory, tile: Tile
) -> None:
    a, b = (memory[n].view(product.dtype.numpy) for n in launch.buffers[:2])
    members, rows, columns = tile
    for member in members if rows else ():
        sums = np.zeros((product.batch, product.rows, product.columns), np.float32)
        sums[member] = _multiplied(product, a, b, member)
        matrix = sums.reshape(-1, product.columns)
        down, right = member * product.rows, 0
        if product.by_columns:
            matrix = sums.transpose(1, 0, 2).reshape(product.rows, -1)
            down, right = 0, member * product.columns
        there = [range(one.start + n, one.stop + n) for one, n in ((rows, down), (columns, right))]
        arguments = _arguments(epilogue.buffers, launch.buffers[2:], memory)
        arguments["all_sums"] = np.ascontiguousarray(matrix)
        interpret(_stored(epilogue, matrix.shape, *there), arguments)


def _attention(attention: Attention, epilogue: Epilogue, launch: Launch, memory: Memory) -> None:
    query, key, value = (
        _heads(attention, memory[n].view(attention.dtype.numpy), number)
        for number, n in enumerate(launch.buffers[:3])
    )
    scores = query @ key.swapaxes(-1, -2) * np.float32(attention.scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    sums = weights / weights.sum(axis=-1, keepdims=True) @ value
    rows = sums.transpose(0, 2, 1, 3).reshape(-1, attention.size)
    function = _stored(epilogue, rows.shape, *map(range, rows.shape))
    arguments = _arguments(epilogue.buffers, launch.buffers[3:], memory)
    interpret(function, {**arguments, "all_sums": np.ascontiguousarray(rows)})


def _heads(attention: Attention, data: Array, number: int) -> Array:
    """An operand of attention in rows, in float32."""
    one, rows = attention.operands[number], attention.keys if number else attention.queries
    shape = attention.batch, attention.heads, rows, attention.size
    steps = [step * data.itemsize for step in (one.batch, one.head, one.row, 1)]
    return np.lib.stride_tricks.as_strided(data[one.offset :], shape, steps).astype(np.float32)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()


def _arguments(
    parameters: Sequence[Any], names: Sequence[str], memory: dict[str, Array]
) -> dict[str, Array]:
    found = {}
    for parameter, name in zip(parameters, names, strict=True):
        assert isinstance(parameter, Buffer)
        extents = [int(extent.value) for extent in parameter.extents]  # type: ignore[union-attr]
        found[parameter.name] = memory[name].view(parameter.dtype.numpy).reshape(extents)
    return found


def _multiplied(product: Product, a: Array, b: Array, member: int) -> Array:
    """The sums of one member of the batch, in float32."""
    rows = _rows(product.window, a.reshape(-1)[member * product.steps[0] :])
    here = b.reshape(-1)[member * product.b_step :]
    if product.is_constant:
        panels = here[: product.b_step].reshape(-1, product.k_steps, PANEL, ROW // product.size)
        columns = panels.swapaxes(1, 2).reshape(math.ceil(product.columns / PANEL) * PANEL, -1)
    else:
        columns = here[: product.columns * product.lead].reshape(product.columns, -1)
    columns = columns[: product.columns, : product.depth]
    return rows.astype(np.float32) @ columns.astype(np.float32).T


def _rows(window: Window, data: Array) -> Array:
    """The matrix A, row by row."""
    rows = []
    for m in range(window.images * window.out_height * window.out_width):
        image, pixel = divmod(m, window.out_height * window.out_width)
        row, column = divmod(pixel, window.out_width)
        parts = []
        for i in range(window.kernel[0]):
            for j in range(window.kernel[1]):
                y = row * window.strides[0] - window.padding[0] + i * window.dilation[0]
                x = column * window.strides[1] - window.padding[1] + j * window.dilation[1]
                inside = 0 <= y < window.height and 0 <= x < window.width
                at = ((image * window.height + y) * window.width + x) * window.pixel
                part = data[at : at + window.channels] if inside else data[:0]
                parts.append(np.pad(part, (0, window.channels - part.size)))
        rows.append(np.concatenate(parts))
    return np.stack(rows)


def _stored(epilogue: Epilogue, shape: Sequence[int], rows: range, columns: range) -> Function:
    """The epilogue of some rows and columns of a matrix of sums as a function."""
    lanes, m, step, lane = epilogue.lanes, Var("m"), Var("step"), Var("copied")
    sums = Buffer("all_sums", epilogue.sums.dtype, (Const(shape[0]), Const(shape[1])))
    first = Binary(BinaryKind.MULTIPLY, step, Const(lanes))
    source = Load(sums, (m, Binary(BinaryKind.ADD, first, lane)))
    copy = For(lane, Const(0), Const(lanes), Store(epilogue.sums, (lane,), source))
    body = Allocate(epilogue.sums, block(copy, Let(Var("n"), step, epilogue.body)))
    inner = For(step, Const(columns.start // lanes), Const(len(columns) // lanes), body)
    outer = For(m, Const(rows.start), Const(len(rows)), inner)
    return Function("stored", (sums, *epilogue.buffers), outer)
