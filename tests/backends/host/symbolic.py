"""What tests of kernels with symbolic extents share: one group, compiled once, run at any size.

A graph is described by a function of a `Sizes`, which gives it dims by name: symbols when the
kernel is made, numbers when the evaluator tells what is right for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.backends.host.row_kernels import only_group
from tests.ops.expression.test_expressions import assert_close

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.host.kernel import Kernel
from graft.backends.host.storage import row_major
from graft.backends.host.templates import kernel_for
from graft.base.dims import Dim, evaluate_dim, symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.llvm.compile import object_code
from graft.llvm.load import Kernel as Code
from graft.llvm.load import aligned, load, shape_of
from graft.loop.ir import Buffer, Var
from graft.loop.verify import verify
from graft.passes.group_fusion import group_fusion
from graft.rewrite.rule import Refusal
from graft.target.target import Target, host_target

Binding = Mapping[str, int]


@dataclass
class Sizes:
    """A graph under construction, over symbols where they are not bound."""

    binding: Binding = field(default_factory=dict)
    builder: Builder = field(default_factory=Builder)
    inputs: int = 0

    def __getattr__(self, name: str) -> Dim:
        """A dim, whose name is one letter."""
        if len(name) != 1:
            raise AttributeError(name)
        return self.binding.get(name, symbol(name))

    def input(self, *shape: Dim, dtype: str = "float32") -> Value:
        self.inputs += 1
        return self.builder.input(f"x{self.inputs}", TensorType(DType(dtype), shape))

    def constant(self, *shape: int, dtype: str = "float32") -> Value:
        random = np.random.default_rng(sum(shape))
        return self.builder.constant(np.asarray(random.standard_normal(shape), dtype))

    def __call__(self, op: str, *operands: Value | None, **attrs: Any) -> Value:
        return self.builder(op, *operands, **attrs)


Build = Callable[[Sizes], Value | Sequence[Value]]


def graph_of(build: Build, binding: Binding) -> Graph:
    """The graph for these sizes; for symbols, if there are none."""
    sizes = Sizes(binding)
    made = build(sizes)
    return group_fusion(sizes.builder.build(*([made] if isinstance(made, Value) else made)))


def kernel_of(graph: Graph, target: Target) -> Kernel | Refusal:
    """The kernel of the graph's only group."""
    group = only_group(graph)
    outer = [group.outer(value) for value in group.reads() if value not in group.constants]
    stores = {value: row_major(value) for value in (*outer, *group.node.outputs)}
    return kernel_for(group, stores, target)


Draw = Callable[[Value], Array]


def check(
    build: Build,
    *bindings: Binding,
    low: float = -4.0,
    high: float = 4.0,
    draw: Draw | None = None,
) -> Kernel:
    """One kernel agrees with the evaluator at all these sizes, with one thread and two.

    `draw` makes the inputs where random numbers between two will not do."""
    target, whole = host_target(), graph_of(build, {})
    kernel = kernel_of(whole, target)
    assert isinstance(kernel, Kernel), kernel
    function = verify(kernel.function)
    code = load(function, object_code(function, target))
    for binding in bindings:
        static = graph_of(build, binding)
        drawn = draw or (lambda value: random_numbers(value, low, high))
        numbers = [drawn(value) for value in static.inputs]
        wanted = evaluate(static, numbers)
        for threads in (1, 2):
            given = dict(zip(whole.inputs, numbers, strict=True))
            found = run(code, kernel, given, binding, threads)
            for value, right in zip(whole.outputs, wanted, strict=True):
                mine = found[value].reshape(np.shape(right))
                assert_close(mine, np.asarray(right))
    return kernel


def run(
    code: Code, kernel: Kernel, given: Mapping[Value, Array], binding: Binding, threads: int
) -> dict[Value, Array]:
    """The results at some size."""
    parameters = kernel.function.parameters
    buffers = [one for one in parameters if isinstance(one, Buffer)]
    variables = [one for one in parameters if isinstance(one, Var)]
    numbers = (evaluate_dim(dim, binding) for dim in kernel.scalars)
    passed: dict[str, Any] = {
        variable.name: number for variable, number in zip(variables, numbers, strict=True)
    }
    outputs: dict[Value, Array] = {}
    for buffer, argument in zip(buffers, kernel.arguments, strict=True):
        extents = shape_of(buffer, kernel.function, passed)
        if isinstance(argument, Value) and argument not in given:
            empty = np.full(extents, np.array(-77).astype(buffer.dtype.numpy))
            before = empty if kernel.initial is None else given[kernel.initial].reshape(extents)
            passed[buffer.name] = outputs[argument] = aligned(before)
        else:
            array = given[argument] if isinstance(argument, Value) else argument
            passed[buffer.name] = aligned(array.reshape(extents))
    code(passed, threads)
    return outputs


def random_numbers(value: Value, low: float, high: float) -> Array:
    """Numbers between two for an input of static shape."""
    shape = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    random = np.random.default_rng([*shape, len(value.name)])
    if value.dtype is DType.BOOL:
        return random.random(shape) < 0.5
    if value.dtype.is_integer:
        least = max(0, int(low)) if value.dtype.is_unsigned_integer else int(low)
        return random.integers(least, max(int(high), least) + 1, shape).astype(value.dtype.numpy)
    return random.uniform(low, high, shape).astype(value.dtype.numpy)
