"""What contenders run: a path and the options in; a file that any runtime can read, and inputs out.

The file is a copy with all weights inside, also those that are drawn from seeds, which only Graft
knows about. `--batch` changes the first dim of the inputs, in models of a fixed batch size as well;
that is refused where the outputs do not follow, since the result would be another computation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from graft.base.errors import UserError
from graft.cli.bench_data import Description, write_data
from graft.cli.inputs import Fed, feed
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.skeleton import write_skeleton_filled
from graft.ir.graph import Graph
from graft.ir.types import TensorType

_FIXED = "the model may hold its batch size inside: leave out --batch, or export it with another"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be timed, and what it is run on."""

    path: Path  # as the user knows it
    file: Path
    graph: Graph
    inputs: Sequence[Fed]
    feeds: Sequence[tuple[str, Description]]  # the inputs' data, beside the file


def prepared(path: Path, options: argparse.Namespace, folder: Path) -> Subject:
    """Read and import the model, make up its inputs, and write it into the folder."""
    source = read_model(path)
    if options.batch is None:
        graph = import_source(source)
    else:
        source, graph = _with_batch(source, options.batch)
    inputs = feed(graph, options)
    file = folder / "model.onnx"
    write_skeleton_filled(source.model, source.weights, source.seeded, file)
    feeds = [
        (fed.value.name, write_data(folder, f"input-{position}", fed.data))
        for position, fed in enumerate(inputs)
    ]
    return Subject(path, file, graph, inputs, feeds)


def _with_batch(source: Source, batch: int) -> tuple[Source, Graph]:
    """The model with another batch size, and its graph."""
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
    changed = replace(source, model=model)
    try:
        graph = import_source(changed)
    except UserError as error:
        message = f"the model does not work with a batch of {batch}: {error.message}"
        raise UserError(message, error.place, _FIXED) from error
    _declare_outputs(model.graph, graph, batch)
    return changed, graph


def _batch_dims(
    graph: onnx.GraphProto, source: Source
) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The first dim of the first input, and those of other inputs that are the same."""
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
    """Tell the model the shapes that its outputs have now."""
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
