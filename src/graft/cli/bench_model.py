"""What contenders run: a path and the options in; a file that any runtime can read, and inputs out.

The file is a copy with all weights inside, also those that are drawn from seeds, which only Graft
knows about. `--batch` changes the batch size in it, so that all contenders read the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graft.cli.bench_batch import with_batch
from graft.cli.bench_data import Description, write_data
from graft.cli.index_bounds import index_bounds
from graft.cli.inputs import Fed, feed
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import read_model
from graft.frontends.onnx.skeleton import write_skeleton_filled
from graft.ir.graph import Graph


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
    source = read_model(path, strict=options.strict_import)
    if options.batch is None:
        graph = import_source(source)
    else:
        source, graph = with_batch(source, options.batch)
    inputs = feed(graph, options, index_bounds(graph))
    file = folder / "model.onnx"
    write_skeleton_filled(source.model, source.weights, source.seeded, file)
    feeds = [
        (fed.value.name, write_data(folder, f"input-{position}", fed.data))
        for position, fed in enumerate(inputs)
    ]
    return Subject(path, file, graph, inputs, feeds)
