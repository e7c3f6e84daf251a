"""Checks a kernel template on a sample: against the reference, the interpreter, and its own bounds.

The kernel runs as machine code with one, two and three threads between guard pages. Every element
of the results' memory has to be right, halos included, and the same for any number of threads; no
byte outside may be touched. A small sample is interpreted as well, on the same memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tests.backends.host.property.guarded import Guarded, guarded_copy, in_child
from tests.backends.host.property.sketch import Sample
from tests.backends.host.property.unknown import Unknown

from graft.backends.host.group import Group, group_of
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.storage import Storage
from graft.base.dims import evaluate_dim
from graft.base.dtypes import Array
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.llvm.compile import object_code
from graft.llvm.load import load, shape_of
from graft.loop.interpret import interpret
from graft.loop.ir import Block, Buffer, Const, Expr, For, Function, If, Let, Stmt, Var
from graft.loop.traverse import statements
from graft.loop.verify import verify
from graft.rewrite.rule import Refusal
from graft.target.target import Target

THREADS = (1, 2, 3)
UNWRITTEN = 0xFF  # in every byte of a result before it is computed: NaN, or -1
UNKNOWN_EXTENT = 4  # what a loop is taken for whose extent is computed
MOST_STEPS = 30_000  # that the interpreter is given


# A kernel template, or a function that makes a kernel without one.
Template = Callable[[Group, Stores, Target], Kernel | Refusal]


@dataclass
class Tally:
    """What became of the samples."""

    accepted: int = 0
    interpreted: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def only_group(sample: Sample) -> Group:
    graph = sample.graph
    constants = {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    assert len(nodes) == 1, [node.op.name for node in nodes]
    return replace(group_of(nodes[0], constants), algorithm=sample.algorithm)


def check_template(template: Template, sample: Sample, target: Target, tally: Tally) -> None:
    """The template's kernel for the sample does what it should, or there is a refusal."""
    made = template(only_group(sample), sample.stores, target)
    if isinstance(made, Refusal):
        tally.refused[made.reason] += 1
        return
    tally.accepted += 1
    with np.errstate(all="ignore"):
        wanted = evaluate(sample.graph, list(sample.data))
    tally.interpreted += check_kernel(made, sample, wanted, target)


def check_unknown(template: Template, unknown: Unknown, target: Target, tally: Tally) -> None:
    """The same of a kernel for any extents, run at those that the sample had."""
    made = template(only_group(unknown.symbolic), unknown.symbolic.stores, target)
    if isinstance(made, Refusal):
        tally.refused[made.reason] += 1
        return
    tally.accepted += 1
    with np.errstate(all="ignore"):
        wanted = evaluate(unknown.known.plain, list(unknown.known.data))
    symbolic = unknown.symbolic
    stores = {value: _bound(store, unknown.binding) for value, store in symbolic.stores.items()}
    sample = replace(symbolic, stores=stores)
    tally.interpreted += check_kernel(made, sample, wanted, target, unknown.binding)


def _bound(storage: Storage, binding: Mapping[str, int]) -> Storage:
    shape = tuple(evaluate_dim(dim, binding) for dim in storage.shape)
    return replace(storage, shape=shape)


def check_kernel(
    kernel: Kernel,
    sample: Sample,
    wanted: Sequence[Array],
    target: Target,
    binding: Mapping[str, int] | None = None,
) -> bool:
    """The kernel gives these results; true if the interpreter was asked as well."""
    function = verify(kernel.function)
    scalars = [one.name for one in function.parameters if isinstance(one, Var)]
    numbers = (evaluate_dim(dim, binding or {}) for dim in kernel.scalars)
    passed = dict(zip(scalars, numbers, strict=True))
    runs = [_Memory(kernel, function, sample, number, passed) for number in range(len(THREADS))]
    code = load(function, object_code(function, target))
    in_child(
        [
            lambda run=run, threads=threads: code({**run.arrays, **passed}, threads)
            for run, threads in zip(runs, THREADS, strict=True)
        ]
    )
    for run, threads in zip(runs, THREADS, strict=True):
        run.check_bounds()
        for position, (value, right) in enumerate(zip(sample.graph.outputs, wanted, strict=True)):
            what = f"result {position} of {threads} threads"
            if right.size:  # the halo of an image without pixels is undefined
                packed = sample.stores[value].pack(right)
                agree(run.result(value), packed, sample.errors[position], what)
            np.testing.assert_array_equal(run.result(value), runs[0].result(value), what)
    is_short = sample.small and (bool(passed) or steps(function.body) <= MOST_STEPS)
    if is_short:
        _interpret(kernel, function, sample, runs[0], passed)
    return is_short


class _Memory:
    """A kernel's buffers between guards: operands filled, results not written yet."""

    def __init__(
        self,
        kernel: Kernel,
        function: Function,
        sample: Sample,
        number: int,
        passed: Mapping[str, int],
    ) -> None:
        self.sample = sample
        self.given = dict(zip(sample.graph.inputs, sample.data, strict=True))
        self.guarded: dict[str, Guarded] = {}
        self.results: dict[Value, str] = {}
        buffers = [one for one in function.parameters if isinstance(one, Buffer)]
        for parameter, argument in zip(buffers, kernel.arguments, strict=True):
            shape = shape_of(parameter, function, dict(passed))
            dtype, alignment = parameter.dtype.numpy, parameter.alignment
            at_end = number != 1  # at the beginning of a page for a change
            if isinstance(argument, Value) and argument not in self.given:
                made = Guarded(shape, dtype, alignment, at_end)
                made.array.reshape(-1).view(np.uint8)[...] = UNWRITTEN
                self.results[argument] = parameter.name
            else:
                made = guarded_copy(self.packed(argument).reshape(shape), alignment, at_end)
            self.guarded[parameter.name] = made

    def packed(self, argument: Value | Array) -> Array:
        if isinstance(argument, Value):
            return self.sample.stores[argument].pack(self.given[argument])
        return argument

    @property
    def arrays(self) -> dict[str, Array]:
        return {name: guarded.array for name, guarded in self.guarded.items()}

    def result(self, value: Value) -> Array:
        return self.arrays[self.results[value]].reshape(self.sample.stores[value].extents)

    def check_bounds(self) -> None:
        for name, guarded in self.guarded.items():
            assert not guarded.damaged(), f"'{name}' is left at {guarded.damaged()}"


def _interpret(
    kernel: Kernel,
    function: Function,
    sample: Sample,
    native: _Memory,
    passed: Mapping[str, int],
) -> None:
    memory = _Memory(kernel, function, sample, 0, passed)
    interpret(function, {**memory.arrays, **passed})
    for position, value in enumerate(sample.graph.outputs):
        what = f"result {position}, interpreted and as machine code"
        agree(memory.result(value), native.result(value), sample.errors[position], what)


def agree(found: Array, wanted: Array, error: float, what: str) -> None:
    """Equal, or as near as rounding allows; where one is not finite the other is the same."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    if not error:
        np.testing.assert_array_equal(found, wanted, what)
        return
    tolerance = 2 * error * float(np.finfo(wanted.dtype).eps)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance, err_msg=what)


def steps(stmt: Stmt) -> int:
    """About how many statements an interpreter runs."""
    match stmt:
        case Block():
            return sum(steps(inner) for inner in stmt.statements)
        case For():
            return _count(stmt.extent) * steps(stmt.body)
        case If():
            return 1 + max(steps(branch) for branch in statements(stmt))
        case Let():
            return 1 + steps(stmt.body)
    return 1 + sum(steps(inner) for inner in statements(stmt))


def _count(extent: Expr) -> int:
    return int(extent.value) if isinstance(extent, Const) else UNKNOWN_EXTENT
