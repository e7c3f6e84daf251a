"""A GPU of NumPy: plans run launch by launch, kernels of expressions by the loop interpreter and
products by their definition, on the memory that the plan lays out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from graft.backends.cuda import plan as plan_module
from graft.backends.cuda.attention import Attention
from graft.backends.cuda.plan import Launch, Options, ProductLibrary, plan_region
from graft.backends.cuda.problem import Epilogue, Product, ProductSchedule, Window
from graft.base.dtypes import Array
from graft.byoc.region import for_backend
from graft.ir.graph import Graph
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

Kernel = Callable[[Launch, dict[str, Array]], None]


class SimulatedGpu:
    """Collects kernels as they are planned, and runs them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: dict[str, Kernel] = {}
        monkeypatch.setattr(plan_module, "loop_kernel", self._loops)
        monkeypatch.setattr(plan_module, "product_kernel", self._product)
        monkeypatch.setattr(plan_module, "attention_kernel", self._attention)

    def run(
        self,
        graph: Graph,
        inputs: Sequence[Array],
        options: Options,
        library: ProductLibrary | None = None,
    ) -> list[Array]:
        region = for_backend(graph)
        plan = plan_region(region, options, library=library)
        offsets, total = plan.offsets()
        arena = np.full(total, 0xFF, np.uint8)  # NaN, to begin with
        memory = {name: _bytes(array) for name, array in plan.constants.items()}
        memory |= {v.name: _bytes(a) for v, a in zip(region.inputs, inputs, strict=True)}
        for name, start in offsets.items():
            memory[name] = arena[start : start + plan.sizes[name]]
        outputs = [np.empty(value.shape, value.dtype.numpy) for value in region.outputs]
        memory |= {
            v.name: a.reshape(-1).view(np.uint8)
            for v, a in zip(region.outputs, outputs, strict=True)
        }
        for launch in plan.launches:
            self.kernels[launch.kernel](launch, memory)
        return outputs

    def _loops(self, function: Function, threads: int) -> str:
        def run(launch: Launch, memory: dict[str, Array]) -> None:
            interpret(function, _arguments(function.parameters, launch.buffers, memory))

        self.kernels[function.name] = run
        return ""

    def _product(
        self, name: str, product: Product, schedule: ProductSchedule, epilogue: Epilogue
    ) -> str:
        def run(launch: Launch, memory: dict[str, Array]) -> None:
            a, b = (memory[n].view(product.dtype.numpy) for n in launch.buffers[:2])
            sums = np.stack([_multiplied(product, a, b, n) for n in range(product.batch)])
            if product.by_columns:
                sums = sums.transpose(1, 0, 2).reshape(product.rows, -1)
            function = _stored(epilogue, *sums.reshape(-1, sums.shape[-1]).shape)
            arguments = _arguments(epilogue.buffers, launch.buffers[2:], memory)
            interpret(function, {**arguments, "all_sums": sums.reshape(-1, sums.shape[-1])})

        self.kernels[name] = run
        return ""

    def _attention(self, name: str, attention: Attention, epilogue: Epilogue) -> str:
        def run(launch: Launch, memory: dict[str, Array]) -> None:
            query, key, value = (
                _heads(attention, memory[n].view(attention.dtype.numpy), number)
                for number, n in enumerate(launch.buffers[:3])
            )
            scores = query @ key.swapaxes(-1, -2) * np.float32(attention.scale)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            sums = weights / weights.sum(axis=-1, keepdims=True) @ value
            rows = sums.transpose(0, 2, 1, 3).reshape(-1, attention.size)
            function = _stored(epilogue, *rows.shape)
            arguments = _arguments(epilogue.buffers, launch.buffers[3:], memory)
            interpret(function, {**arguments, "all_sums": np.ascontiguousarray(rows)})

        self.kernels[name] = run
        return ""


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
    window, (a_step, b_step) = product.window, product.steps
    rows = _rows(window, a.reshape(-1)[member * a_step :])
    size = product.columns * product.lead
    columns = b.reshape(-1)[member * b_step : member * b_step + size].reshape(product.columns, -1)
    depth = product.depth
    return rows.astype(np.float32) @ columns[:, :depth].astype(np.float32).T


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


def _stored(epilogue: Epilogue, rows: int, columns: int) -> Function:
    """The epilogue of all columns of all rows as a function."""
    lanes, m, step, lane = epilogue.lanes, Var("m"), Var("step"), Var("copied")
    sums = Buffer("all_sums", epilogue.sums.dtype, (Const(rows), Const(columns)))
    first = Binary(BinaryKind.MULTIPLY, step, Const(lanes))
    source = Load(sums, (m, Binary(BinaryKind.ADD, first, lane)))
    copy = For(lane, Const(0), Const(lanes), Store(epilogue.sums, (lane,), source))
    body = block(copy, Let(Var("n"), step, epilogue.body))
    inner = For(step, Const(0), Const(columns // lanes), Allocate(epilogue.sums, body))
    return Function("stored", (sums, *epilogue.buffers), For(m, Const(0), Const(rows), inner))
