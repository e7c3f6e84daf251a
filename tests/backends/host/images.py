"""Runs kernel templates on blocked images and compares them with the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graft.backends.host.group import Algorithm, Group, group_of
from graft.backends.host.kernel import Kernel, Repacked
from graft.backends.host.kernel_template import KernelTemplate
from graft.backends.host.storage import NO_HALO, Halo, Storage, row_major, static_shape
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.llvm import load
from graft.llvm.compile import object_code
from graft.passes.group_fusion import group_fusion
from graft.rewrite.rule import Refusal
from graft.target.target import Target, host_target

# By name of a value: how it lies in memory. Values not named are row-major.
Layout = Mapping[str, tuple[int, Halo] | int]


def blocks_of(channels: int, candidates: Sequence[int]) -> int:
    """The first block size that divides the channels, or 0."""
    return next((block for block in candidates if channels % block == 0), 0)


@dataclass(frozen=True)
class Case:
    """A graph of one group, and where its values lie."""

    graph: Graph
    group: Group
    stores: Mapping[Value, Storage]

    def kernel(self, template: KernelTemplate, target: Target | None = None) -> Kernel:
        made = template(self.group, self.stores, target or host_target())
        assert not isinstance(made, Refusal), made.reason
        return made

    def refusal(self, template: KernelTemplate) -> str:
        made = template(self.group, self.stores, host_target())
        assert isinstance(made, Refusal)
        return made.reason


def case(
    write: Callable[[Builder], Value], layout: Layout, algorithm: Algorithm | None = None
) -> Case:
    """What `write` builds, fused into one group; the result is named `result` in the layout."""
    builder = Builder()
    graph = group_fusion(builder.build(write(builder)))
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    assert len(nodes) == 1, [node.op.name for node in nodes]
    constants = {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    names = {**{value: value.name for value in graph.inputs}, nodes[0].output: "result"}
    stores = {value: _storage(value, layout.get(name, 0)) for value, name in names.items()}
    return Case(graph, replace(group_of(nodes[0], constants), algorithm=algorithm), stores)


def _storage(value: Value, place: tuple[int, Halo] | int) -> Storage:
    block, halo = (place, NO_HALO) if isinstance(place, int) else place
    return Storage(value.dtype, static_shape(value), block, halo) if block else row_major(value)


def random_inputs(graph: Graph, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal(static_shape(value)).astype(value.dtype.numpy)
        for value in graph.inputs
    ]


def run(
    case: Case,
    kernel: Kernel,
    inputs: list[Array],
    threads: int = 1,
    target: Target | None = None,
    packed: Mapping[Value, Array] | None = None,
) -> Array:
    """The result as memory has it, from inputs in their storage; all of it was NaN before.

    `packed` are inputs as memory has them already."""
    data = dict(zip(case.graph.inputs, inputs, strict=True))
    code = load.load(kernel.function, object_code(kernel.function, target or host_target()))
    buffers, result = {}, None
    for parameter, argument in zip(kernel.function.parameters, kernel.arguments, strict=True):
        if isinstance(argument, np.ndarray):
            buffers[parameter.name] = argument
        elif isinstance(argument, Repacked):
            buffers[parameter.name] = repacked(argument, data[argument.value], threads, target)
        elif argument in data:
            own = (packed or {}).get(argument)
            stored = case.stores[argument].pack(data[argument]) if own is None else own
            buffers[parameter.name] = _as(parameter, stored)
        else:
            storage = case.stores[argument]
            result = storage.pack(np.zeros(storage.shape, storage.dtype.numpy))
            result[...] = np.nan if storage.dtype.is_float else 93
            buffers[parameter.name] = _as(parameter, result)
    code(buffers, threads)
    assert result is not None
    return result


def repacked(
    argument: Repacked, array: Array, threads: int = 1, target: Target | None = None
) -> Array:
    """A tensor in the order of a kernel's own; all of it was NaN before."""
    function, storage = argument.function, argument.storage
    result = storage.pack(np.full(storage.sizes, np.nan, storage.dtype.numpy))
    code = load.load(function, object_code(function, target or host_target()))
    code({"source": load.aligned(array), "packed": result}, threads)
    return result


def _as(parameter: Any, array: Array) -> Array:
    """Memory as a kernel sees it, which may take bytes four at a time."""
    extents = [extent.value for extent in parameter.extents]
    return array.reshape(-1).view(parameter.dtype.numpy).reshape(extents)


def check(
    case: Case,
    template: KernelTemplate,
    threads: int = 1,
    inputs: list[Array] | None = None,
    target: Target | None = None,
) -> None:
    """The kernel agrees with the evaluator in all of the result's memory, its halo included."""
    inputs = random_inputs(case.graph) if inputs is None else inputs
    (wanted,) = evaluate(case.graph, inputs)
    found = run(case, case.kernel(template, target), inputs, threads)
    packed = case.stores[case.group.output].pack(wanted)
    tolerance = 1e-5 if packed.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, packed, rtol=tolerance, atol=tolerance)
