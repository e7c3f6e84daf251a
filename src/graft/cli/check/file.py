"""`graft check` of a `.graft` file: the file and possibly its model in, a verdict out.

Without the model, the check is that checksums match, and that the file loads, runs and gives the
same results twice. With it, results are compared with the reference evaluator's on the imported
graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graft.base.compare import Difference
from graft.base.errors import UserError
from graft.base.quantities import counted, number
from graft.cli.compare import compare, difference_figures, tolerance_of
from graft.cli.inputs import feeds_of, telling_sizes
from graft.cli.report import Block, print_result, section, table
from graft.cli.runnable import Runnable, loaded, refuse_options, refuse_placement_of_file
from graft.cli.survey import index_bounds
from graft.cli.terminal import spoken_warnings, status
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import read_model
from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph
from graft.ops import OPS, get_op
from graft.runtime.artifact import load as load_artifact


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The comparison of one output, and the number of its elements that are not finite."""

    name: str
    difference: Difference
    not_finite: int


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The result of a check; `incidents` are faults of other backends' regions."""

    path: Path
    against: Path | None
    placement: str
    outputs: Sequence[OutputCheck]
    incidents: Sequence[str]
    random_operator: str  # one that draws random numbers, if any

    @property
    def same(self) -> bool:
        """Whether the outputs agree with what they were compared with."""
        return all(one.difference.agrees for one in self.outputs)

    @property
    def agrees(self) -> bool:
        """Whether the check has passed: outputs agree, and there were no incidents."""
        return self.same and not self.incidents


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for checking a file."""
    group = parser.add_argument_group("checking a compiled file")
    group.add_argument(
        "--against",
        metavar="MODEL",
        type=Path,
        help="the ONNX file that it was compiled from: compare with the reference evaluator on it",
    )


def check_file(options: argparse.Namespace) -> int:
    """Check the file and print the verdict; gives the exit code."""
    refuse_placement_of_file(options)
    is_strict = options.strict_import and options.against is None
    is_reducing = options.reduce is not None
    about_models = {"--nodes": options.nodes, "--reduce": is_reducing}
    refuse_options({**about_models, "--strict-import": is_strict})
    verdict = _verdict(options)
    print_result(options.json, _json(verdict), _text(verdict))
    return 0 if verdict.agrees else 1


def _verdict(options: argparse.Namespace) -> FileVerdict:
    path: Path = options.model
    with status(f"reading {path.name}"):
        operators = load_artifact(path, verify=True).operators  # after all of its checksums
    drawing = [name for name in operators if name in OPS and not get_op(name).pure]
    graph = _graph(options)
    runnable = loaded(path, None, options.verify, options.deadline)
    if graph is not None:
        _require_same(runnable, graph, options.against)
    bounds: Mapping[str, int] = {} if graph is None else index_bounds(graph)
    feeds = feeds_of(runnable, options, bounds)
    with status(f"running {path.name}"), spoken_warnings(), telling_sizes(runnable, options):
        result = [runnable.run(feeds) for _ in range(2)]
    expected: Sequence[Data] = result[0]
    if graph is not None:
        with status("running the model on the reference evaluator"):
            expected = evaluate(graph, [feeds[value.name] for value in graph.inputs])
    tolerance = tolerance_of(options)
    outputs = [
        OutputCheck(name, compare(mine, other, tolerance), _not_finite(mine))
        for name, mine, other in zip(runnable.output_names, result[1], expected, strict=True)
    ]
    incidents = [f"{one.region}: {one.reason}" for one in runnable.session.incidents]
    placement = str(runnable.session.placement)
    random = "".join(drawing[:1])
    return FileVerdict(path, options.against, placement, outputs, incidents, random)


def _graph(options: argparse.Namespace) -> Graph | None:
    if options.against is None:
        return None
    with status(f"importing {options.against.name}"):
        return import_source(read_model(options.against, strict=options.strict_import))


def _require_same(runnable: Runnable, graph: Graph, model: Path) -> None:
    """Refuse a model that the file was not compiled from, judging by names."""
    for kind, own, other in (
        ("inputs", [one.name for one in runnable.inputs], [one.name for one in graph.inputs]),
        ("outputs", list(runnable.output_names), list(graph.output_names)),
    ):
        if own != other:
            raise UserError(
                f"the file was not compiled from '{model}': its {kind} are {', '.join(own)},"
                f" and the model's {', '.join(other)}"
            )


def _not_finite(data: Data) -> int:
    if isinstance(data, list):
        return sum(map(_not_finite, data))
    if not isinstance(data, np.ndarray) or data.dtype == object:
        return 0
    numbers = data if data.dtype.kind in "biufc" else data.astype(np.float32)
    return int(numbers.size - np.isfinite(numbers).sum())


def _text(verdict: FileVerdict) -> Iterator[Block]:
    yield str(verdict.path)
    yield f"  {verdict.placement or 'the file contains no placement'}"
    other = "a second run" if verdict.against is None else f"{verdict.against} on the evaluator"
    header = ("name", "max abs error", "max rel error", "wrong", "not finite", "verdict")
    rows = [_row(output) for output in verdict.outputs]
    yield from section(f"Outputs, compared with {other}", table(rows, header, right=(1, 2, 3, 4)))
    if verdict.incidents:
        title = f"What went wrong on the way: {counted(len(verdict.incidents), 'incident')}"
        yield from section(title, verdict.incidents)
    yield ""
    yield "All checksums match."
    if verdict.random_operator and not verdict.same:
        yield f"'{verdict.random_operator}' draws random numbers, which never agree."
    if verdict.against is None:
        same = "It runs, and gives the same twice." if verdict.same else "It runs, but DIFFERS."
        yield f"{same} Whether that is right, only its model tells: --against MODEL."
    else:
        yield "File and model agree." if verdict.same else "File and model DIFFER."
    if verdict.incidents:
        yield "Not all of it ran where it was compiled for: the check has failed."


def _row(one: OutputCheck) -> tuple[str, ...]:
    *figures, verdict = difference_figures(one.difference)
    return one.name, *figures, number(one.not_finite), verdict


def _json(verdict: FileVerdict) -> dict[str, Any]:
    return {
        "file": str(verdict.path),
        "against": None if verdict.against is None else str(verdict.against),
        "agrees": verdict.agrees,
        "placement": verdict.placement,
        "outputs": [
            {
                "name": output.name,
                **asdict(output.difference),
                "agrees": output.difference.agrees,
                "not_finite": output.not_finite,
            }
            for output in verdict.outputs
        ],
        "incidents": list(verdict.incidents),
        "random_operator": verdict.random_operator or None,
    }
