"""The benchmarked model: a path and options in; a file for any runtime, and inputs, out.

The file is a copy with all weights, including those generated from seeds, which only Graft knows.
`--batch` changes the first dim of the inputs in it, so that all contenders read the same model,
also in models of a fixed batch size. Some exporters write the batch size into the targets of
Reshape and Expand; targets that begin with the old size are changed, too. A model whose outputs do
not follow is refused, since it would compute something else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from graft.base.errors import UserError
from graft.cli.arrays import Description, write_data
from graft.cli.inputs import InputData, feed
from graft.cli.survey import index_bounds
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.skeleton import write_skeleton_filled
from graft.ir.graph import Graph
from graft.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to time, and its inputs."""

    path: Path  # as the user knows it
    file: Path
    graph: Graph
    inputs: Sequence[InputData]
    feeds: Sequence[tuple[str, Description]]  # the inputs' data, beside the file


def prepared(path: Path, options: argparse.Namespace, folder: Path) -> Subject:
    """Read and import the model, generate its inputs, and write it into the folder."""
    source = read_model(path, strict=options.strict_import)
    if options.batch is None:
        graph = import_source(source)
    else:
        source, graph = with_batch(source, options.batch)
    inputs = feed(graph, options, index_bounds(graph))
    file = folder / "model.onnx"
    write_skeleton_filled(source.model, source.weights, source.seeded, file)
    feeds = [
        (fed.name, write_data(folder, f"input-{position}", fed.data))
        for position, fed in enumerate(inputs)
    ]
    return Subject(path, file, graph, inputs, feeds)


_FIXED = "the model may hold its batch size inside: leave out --batch, or export it with another"
_SHAPED = ("Reshape", "Expand")


def with_batch(source: Source, batch: int) -> tuple[Source, Graph]:
    """The model with another batch size, and its graph."""
    changed = _with_inputs(source, batch)
    try:
        graph = import_source(changed)
    except UserError as error:
        changed = _with_targets(source, changed, batch)
        graph = _imported(changed, batch, error)
    _declare_outputs(changed.model.graph, graph, batch)
    return changed, graph


def _with_inputs(source: Source, batch: int) -> Source:
    """The model with the batch in its inputs, and without other shapes."""
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    dims = list(_batch_dims(model.graph, source))
    if not dims:
        raise UserError("no input has a dim that could be the batch", hint="leave out --batch")
    for dim in dims:
        dim.dim_value = batch
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return replace(source, model=model)


def _with_targets(source: Source, changed: Source, batch: int) -> Source:
    """The same with changed targets, whose other extents are those of the original model."""
    before = next(_batch_dims(source.model.graph, source)).dim_value
    types = dict(_types(import_source(source)))
    model = onnx.ModelProto()
    model.CopyFrom(changed.model)
    for number, node in enumerate(model.graph.node):
        if node.op_type not in _SHAPED or node.domain or len(node.input) < 2:
            continue
        # The importer leaves out what changes nothing; the result is the operand then.
        result = types.setdefault(node.output[0], types.get(node.input[0]))
        shape = _static_shape(result)
        if shape and shape[0] == before and 0 not in shape:
            name = f"graft_target_{number}"
            target = np.array([batch, *shape[1:]], np.int64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(target, name))
            node.input[1] = name
    return replace(changed, model=model)


def _imported(changed: Source, batch: int, first: UserError) -> Graph:
    """The graph; if the import fails again, the first error is the one to report."""
    try:
        return import_source(changed)
    except UserError:
        message = f"the model does not work with a batch of {batch}: {first.message}"
        raise UserError(message, first.location, _FIXED) from first


def _types(graph: Graph) -> Iterator[tuple[str, Type | None]]:
    """Of all values, by name."""
    for value in graph.inputs:
        yield value.name, value.type
    for node in graph.nodes:
        yield from ((value.name, value.type) for value in node.outputs)


def _static_shape(type_: Type | None) -> tuple[int, ...]:
    """The extents if all of them are known, else an empty shape."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return ()
    extents = tuple(dim for dim in type_.shape if isinstance(dim, int))
    return extents if len(extents) == len(type_.shape) else ()


def _batch_dims(
    graph: onnx.GraphProto, source: Source
) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The first dim of the first input, and equal ones of other inputs."""
    constant = {tensor.name for tensor in graph.initializer} | source.seeded.keys()
    first = None
    for info in graph.input:
        dims = info.type.tensor_type.shape.dim
        if info.name in constant or not dims:
            continue
        if first is None:
            first = onnx.TensorShapeProto.Dimension()
            first.CopyFrom(dims[0])
        if dims[0] == first:
            yield dims[0]


def _declare_outputs(proto: onnx.GraphProto, graph: Graph, batch: int) -> None:
    """Declare the new shapes of outputs in the model."""
    for output, value in zip(proto.output, graph.outputs, strict=True):
        type_ = value.type
        if not isinstance(type_, TensorType) or not type_.shape or type_.shape[0] != batch:
            message = (
                f"the output '{output.name}' does not follow the batch of {batch}: it is {type_}"
            )
            raise UserError(message, hint=_FIXED)
        dims = [dim if isinstance(dim, int) else None for dim in type_.shape]
        shape = onnx.helper.make_tensor_type_proto(output.type.tensor_type.elem_type, dims)
        output.type.CopyFrom(shape)
