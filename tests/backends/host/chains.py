"""Graphs of convolutions that one kernel computes, for tests of such kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case

import graft
from graft.backends.host.group import group_of
from graft.backends.host.kernel import Kernel
from graft.backends.host.passes import fuse_chains
from graft.backends.host.passes.fuse_chains import merged_group
from graft.backends.host.storage import NO_HALO, Halo, Storage, row_major, static_shape
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.loop.interpret import interpret
from graft.passes.group_fusion import group_fusion

Step = Callable[[Builder, Value], Value]


def clipped(builder: Builder, value: Value) -> Value:
    return builder("clip", value, a_min=0.0, a_max=6.0)


def silu(builder: Builder, value: Value) -> Value:
    return builder("multiply", value, builder("sigmoid", value))


def same(_: Builder, value: Value) -> Value:
    return value


def numbers(builder: Builder, *shape: int) -> Value:
    generator = np.random.default_rng(shape)
    scale = np.float32(max(1, np.prod(shape[1:])) ** 0.5)
    return builder.constant(generator.standard_normal(shape, np.float32) / scale)


def chain(
    graph: Graph, blocks: tuple[int, int] = (16, 16), halos: tuple[Halo, Halo] = (NO_HALO, NO_HALO)
) -> Case:
    """A graph of several groups as a case of one, its data and its result in these blocks."""
    fused = group_fusion(graph)
    whole = merged_group(*(node for node in fused.nodes if node.op.name != "constant"))
    stores = {value: row_major(value) for value in graph.inputs}
    ends = zip((graph.inputs[0], whole.output), blocks, halos, strict=True)
    for value, block, halo in ends:
        stores[value] = Storage(value.dtype, static_shape(value), block, halo)
    return Case(graph, group_of(whole, fused.constants), stores)


def interpreted(case: Case, kernel: Kernel, image: Array) -> Array:
    """What a kernel makes of the first input, by the interpreter of loops, with three threads."""
    result = case.stores[case.group.output]
    memory = {
        parameter.name: argument
        if isinstance(argument, np.ndarray)
        else case.stores[argument].pack(image)
        if argument is case.graph.inputs[0]
        else result.pack(np.zeros(result.shape, np.float32))
        for parameter, argument in zip(kernel.function.parameters, kernel.arguments, strict=True)
    }
    interpret(kernel.function, memory, threads=3)
    return memory["result"]


def compiled(graph: Any, monkeypatch: pytest.MonkeyPatch, fused: bool, **options: Any) -> Any:
    """A module in which all such pairs share kernels, or none does."""
    with monkeypatch.context() as patch:
        price(patch, math.inf if fused else -math.inf)
        return graft.compile(graph, strict=True, **options)


def price(patch: pytest.MonkeyPatch, cycles: float) -> None:
    """Let kernels of single anchors cost so much."""
    patch.setattr(fuse_chains, "layouts_for", lambda *_: [({}, cycles)])
