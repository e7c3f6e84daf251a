"""What the tests of row-major kernels share: one fusion group, compiled, run and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.host.group import Algorithm, Group, group_of
from graft.backends.host.kernel import Kernel
from graft.backends.host.kernel_template import KernelTemplate
from graft.backends.host.storage import row_major, static_shape
from graft.base.dtypes import Array, dtype_of
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.llvm.compile import object_code
from graft.llvm.load import aligned, load, shape_of
from graft.loop.ir import Buffer
from graft.loop.verify import verify
from graft.passes.group_fusion import group_fusion
from graft.rewrite.rule import Refusal
from graft.target.target import Target, host_target, named_target

AVX2 = named_target("x86-64-v3")


@dataclass
class Case:
    """A graph under construction, with data for its inputs."""

    seed: int = 0
    builder: Builder = field(default_factory=Builder)
    data: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def array(self, *shape: int, dtype: str = "float32") -> Array:
        return np.asarray(self.random.standard_normal(shape), dtype)

    def input(self, *shape: int, dtype: str = "float32") -> Value:
        return self.given(self.array(*shape, dtype=dtype))

    def given(self, array: Array) -> Value:
        """An input with these data."""
        self.data.append(array)
        type_ = TensorType(dtype_of(array.dtype), array.shape)
        return self.builder.input(f"x{len(self.data)}", type_)

    def constant(self, *shape: int, dtype: str = "float32") -> Value:
        return self.builder.constant(self.array(*shape, dtype=dtype))

    def __call__(self, op: str, *operands: Value | None, **attrs: object) -> Value:
        return self.builder(op, *operands, **attrs)

    def graph(self, *outputs: Value) -> Graph:
        return group_fusion(self.builder.build(*outputs))


def only_group(graph: Graph, algorithm: Algorithm | None = None) -> Group:
    """The one group of a graph that is one."""
    constants = {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    assert len(nodes) == 1, [node.op.name for node in nodes]
    return replace(group_of(nodes[0], constants), algorithm=algorithm)


def made(
    template: KernelTemplate,
    graph: Graph,
    target: Target | None = None,
    algorithm: Algorithm | None = None,
) -> Kernel | Refusal:
    """What the template says to the graph's only group."""
    group = only_group(graph, algorithm)
    outer = [group.outer(value) for value in group.reads() if value not in group.constants]
    stores = {value: row_major(value) for value in (*outer, *group.node.outputs)}
    return template(group, stores, target or host_target())


def refusal(template: KernelTemplate, case: Case, *outputs: Value) -> str:
    """Why the template does not take what the case builds."""
    said = made(template, case.graph(*outputs))
    assert isinstance(said, Refusal)
    return said.reason


def results(
    kernel: Kernel, graph: Graph, data: Sequence[Array], target: Target
) -> Iterator[list[Array]]:
    """What the kernel computes on the data, with one thread, two and three."""
    function = verify(kernel.function)
    code = load(function, object_code(function, target))
    given = dict(zip(graph.inputs, data, strict=True))
    for threads in (1, 2, 3):
        outputs: dict[Value, Array] = {}
        buffers: dict[str, Array] = {}
        for parameter, argument in zip(function.parameters, kernel.arguments, strict=True):
            assert isinstance(parameter, Buffer)
            extents = shape_of(parameter, function, {})
            if isinstance(argument, Value) and argument not in given:
                empty = np.full(extents, np.array(-77).astype(parameter.dtype.numpy))
                buffers[parameter.name] = outputs[argument] = aligned(empty)
            else:
                array = given[argument] if isinstance(argument, Value) else argument
                buffers[parameter.name] = aligned(array.reshape(extents))
        code(buffers, threads)
        yield [outputs[value].reshape(static_shape(value)) for value in graph.outputs]


def check(
    template: KernelTemplate,
    case: Case,
    *outputs: Value,
    tolerance: float = 1e-5,
    algorithm: Algorithm | None = None,
) -> None:
    """The kernel agrees with the reference evaluator, here and on a machine with less."""
    graph = case.graph(*outputs)
    wanted = evaluate(graph, case.data)
    host = host_target()
    targets = [host, *([AVX2] if set(AVX2.features) <= set(host.features) else [])]
    for target in targets:
        kernel = made(template, graph, target, algorithm)
        assert isinstance(kernel, Kernel), kernel
        for found in results(kernel, graph, case.data, target):
            for array, right in zip(found, wanted, strict=True):
                assert array.dtype == right.dtype
                np.testing.assert_allclose(array, right, rtol=tolerance, atol=tolerance)
