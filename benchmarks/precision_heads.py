"""Cuts files of detectors before they select boxes, so that errors can be measured.

The cut file computes the heads of `graft quantize` (docs/quantization.md): the results of the last
layers before a decision. Boxes selected by the float network become inputs, so that every quantised
file computes on the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from graft.quantize.heads import find_heads, measured_units
from graft.quantize.units import find_units
from graft.stages import import_graph, optimize

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class HeadNames:
    """Names of the tensors to compare, and of those that the float network selects for all files.

    Quantisers keep these names. If `values` is empty, the outputs are compared."""

    values: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path) -> HeadNames:
        graph = optimize(import_graph(path)).graph
        heads = find_heads(graph, measured_units(graph, find_units(graph)))
        values, chosen = ([one.name for one in some] for some in (heads.values, heads.chosen))
        return HeadNames(tuple(values), tuple(chosen))

    def observed(self, path: Path) -> Path | bytes:
        """The model whose outputs are the heads and the selected tensors."""
        return _cut(path, (*self.values, *self.chosen), {}) if self.values else path

    def choices(self, results: Sequence[NDArray[Any]]) -> Arrays:
        """The selected tensors by name, from the outputs of `observed`."""
        chosen = results[len(self.values) :] if self.chosen else ()
        return dict(zip(self.chosen, chosen, strict=True))

    def compared(self, path: Path, feeds: Arrays) -> Path | bytes:
        """The model whose outputs are the heads, and whose inputs are the names in `feeds`."""
        return _cut(path, self.values, feeds) if self.values else path


def _cut(path: Path, outputs: Sequence[str], feeds: Arrays) -> bytes:
    """The part of a model between `feeds`, some of them inner tensors, and the `outputs`."""
    model = onnx.load(path)
    graph = model.graph
    known = {one.name for some in (graph.input, graph.initializer) for one in some}
    inputs = {name: array for name, array in feeds.items() if name not in known}
    needed, kept = set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if any(name in needed and name not in inputs for name in node.output):
            kept.insert(0, node)
            needed.update(_reads(node))
            for position, name in enumerate(node.output):
                if name in inputs:
                    node.output[position] = f"{name} as computed"
    missing = needed.difference(known, inputs, *(node.output for node in kept))
    if missing:
        raise ValueError(f"{path.name} has no tensor {min(missing)}")
    left = onnx.GraphProto(
        name=graph.name,
        node=kept,
        initializer=(one for one in graph.initializer if one.name in needed),
        input=graph.input,
    )
    left.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    for name, array in inputs.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        left.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * array.ndim))
    model.graph.CopyFrom(left)
    return model.SerializeToString()


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, also those that its bodies read from outside."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {one.name for some in (body.input, body.initializer) for one in some}
            own.update(name for inner in body.node for name in inner.output)
            read = {one.name for one in body.output}.union(*map(_reads, body.node))
            yield from read - own
