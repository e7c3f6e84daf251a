"""Makes a failing case small: a case and a test in, a smaller case that still fails out.

One output is kept; values inside the model become inputs with the numbers they had, so that the
nodes before them go; nodes are left out; extents that inputs share are cut down together. What
ONNX Runtime does not take is not smaller but another model, and is not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzzing.generate import Case, needed, operators, read_by
from fuzzing.peer import Peer, PeerError, model_of, tensor_type
from graft.base.dtypes import Array

Fails = Callable[[Case], bool]

BUDGET = 20.0  # seconds


def reduced(case: Case, fails: Fails, budget: float = BUDGET) -> Case:
    """The smallest case found in the time that still fails."""
    deadline = time.monotonic() + budget
    going = True
    while going:
        going = False
        for smaller in _smaller(case):
            if time.monotonic() > deadline:
                return case
            if fails(smaller):
                case, going = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    graph = case.model.graph
    if len(case.feeds) > 1:
        yield from (replace(case, feeds=(feeds,)) for feeds in case.feeds)
    if len(graph.output) > 1:
        yield from (_with(case, outputs=[output]) for output in graph.output)
    yield from _cut(case)
    yield from _skipped(case)
    yield from _pruned(case)
    yield from _shrunk(case)


def _with(
    case: Case,
    nodes: list[onnx.NodeProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    arrays: Mapping[str, tuple[Array, ...]] | None = None,
) -> Case:
    """The case with other nodes or outputs, or other inputs instead of those that it had."""
    graph = case.model.graph
    outputs = list(graph.output) if outputs is None else outputs
    known = arrays or {}
    left = [n for n in (graph.node if nodes is None else nodes) if not known.keys() & set(n.output)]
    kept = needed(left, {output.name for output in outputs})
    read = read_by(kept)
    constants = [t for t in graph.initializer if t.name in read and t.name not in known]
    inputs = [i for i in graph.input if i.name in read and i.name not in known]
    new = {name: value for name, value in known.items() if name in read}
    made = [
        helper.make_tensor_value_info(name, tensor_type(v[0]), _dims(v)) for name, v in new.items()
    ]
    opset = case.model.opset_import[0].version
    model = model_of(kept, [*inputs, *made], outputs, constants, opset)
    names = [value.name for value in inputs]
    feeds = tuple(
        {name: before[name] for name in names} | {name: v[at] for name, v in new.items()}
        for at, before in enumerate(case.feeds)
    )
    return Case(case.seed, model, feeds, case.tolerances, operators(kept))


def _dims(arrays: tuple[Array, ...]) -> list[int | None]:
    shapes = zip(*(array.shape for array in arrays), strict=True)
    return [extents[0] if len(set(extents)) == 1 else None for extents in shapes]


def _values(case: Case) -> dict[str, tuple[Array, ...]]:
    """What every node of the model gives, by the peer."""
    names = [name for node in case.model.graph.node for name in node.output if name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    try:
        session = Peer(model, optimized=False)
        results = [session.run(feeds) for feeds in case.feeds]
    except PeerError:
        return {}
    return {name: tuple(r[at] for r in results) for at, name in enumerate(names)}


def _cut(case: Case) -> Iterator[Case]:
    """Values become inputs: all that a node reads, or a single one."""
    graph = case.model.graph
    values = _values(case)
    outputs = {output.name for output in graph.output}
    producers = {name: set(node.output) for node in graph.node for name in node.output}
    cuts = [
        {name for read in read_by([node]) & values.keys() for name in producers[read]}
        for node in reversed(graph.node)
    ]
    for names in [*cuts, *producers.values()]:
        if names and not names & outputs and names <= values.keys():
            yield _with(case, arrays={name: values[name] for name in names})


def _skipped(case: Case) -> Iterator[Case]:
    """A node's readers read what it reads."""
    nodes = list(case.model.graph.node)
    outputs = {output.name for output in case.model.graph.output}
    for position, node in enumerate(nodes):
        for source in node.input:
            if source and len(node.output) == 1 and node.output[0] not in outputs:
                rest = [_reading(n, node.output[0], source) for n in nodes[position + 1 :]]
                yield _with(case, nodes=[*nodes[:position], *rest])


def _reading(node: onnx.NodeProto, old: str, new: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for at, name in enumerate(copy.input):
        if name == old:
            copy.input[at] = new
    return copy


def _pruned(case: Case) -> Iterator[Case]:
    """Nested graphs lose the nodes that nobody reads."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in case.model.graph.node]
    fewer = False
    for graph in (a.g for node in nodes for a in node.attribute if a.HasField("g")):
        kept = needed(list(graph.node), {output.name for output in graph.output})
        fewer = fewer or len(kept) < len(graph.node)
        del graph.node[:]
        graph.node.extend(kept)
    if fewer:
        yield _with(case, nodes=nodes)


def _shrunk(case: Case) -> Iterator[Case]:
    """Equal extents of inputs and constants are cut to a smaller one, together or one by one."""
    if len(case.feeds) > 1:
        return
    graph = case.model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    arrays = {**case.feeds[0], **constants}
    places = [(name, axis) for name, array in arrays.items() for axis in range(array.ndim)]
    extents = sorted({arrays[name].shape[axis] for name, axis in places}, reverse=True)
    groups = [[p for p in places if arrays[p[0]].shape[p[1]] == n] for n in extents]
    for group in [*groups, *([place] for place in places)]:
        extent = arrays[group[0][0]].shape[group[0][1]]
        for target in dict.fromkeys((1, 2, extent // 2, extent - 1)):
            if 0 < target < extent:
                yield _resized(case, arrays, set(constants), group, target)


def _resized(
    case: Case,
    arrays: Mapping[str, Array],
    constants: set[str],
    group: list[tuple[str, int]],
    target: int,
) -> Case:
    changed = dict(arrays)
    for name, axis in group:
        changed[name] = np.take(changed[name], range(target), axis=axis)
    made = _with(case, arrays={n: (a,) for n, a in changed.items() if n not in constants})
    del made.model.graph.initializer[:]
    read = read_by(list(made.model.graph.node))
    made.model.graph.initializer.extend(
        numpy_helper.from_array(changed[name], name) for name in constants if name in read
    )
    for output in made.model.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()
    return made
