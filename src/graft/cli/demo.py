"""`graft demo`: a walk through the whole compiler on ResNet-18, for whoever has just come in."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graft.base.errors import UserError
from graft.cli.check import check
from graft.cli.compare import Tolerance
from graft.cli.inputs import feed
from graft.cli.peer import onnxruntime
from graft.cli.report import (
    counted,
    dim_text,
    error_text,
    graph_size,
    number,
    pass_line,
    print_lines,
    seconds_text,
    section,
    size_text,
)
from graft.cli.status import status
from graft.cli.survey import parameters
from graft.compiler import compile
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.ir.graph import Graph
from graft.ops.composite import CompositeAttrs, arithmetic
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import PassReport, optimize

DESCRIPTION = """\
Take ResNet-18 from its ONNX file to numbers, and say at each step what happens:
import, passes, fusion, placement, a comparison with ONNX Runtime, a timing."""
EXAMPLES = """\
  graft demo
"""

MODEL = "resnet18.onnx"
_RUNS = 3
_SHOWN_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Walk:
    """What the steps share."""

    path: Path
    source: Source
    graph: Graph
    inputs: argparse.Namespace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(inputs=[], dims=[], seed=0)


def execute(options: argparse.Namespace) -> int:
    path = _models_folder() / MODEL
    with status(f"importing {MODEL}"):
        start = time.perf_counter()
        source = read_model(path)
        graph = import_source(source)
        seconds = time.perf_counter() - start
    walk = Walk(path, source, graph, options)
    print("Graft compiles ONNX models. This is what it does with ResNet-18.")
    print_lines(section("1. Import: from the file to a typed graph", _import(walk, seconds)))
    reports: list[PassReport] = []
    optimized = optimize(graph, lambda report, _: reports.append(report))
    print_lines(section("2. Passes: a smaller graph that means the same", _passes(reports)))
    print_lines(section("3. Fusion: what one kernel should compute", _groups(optimized)))
    print_lines(section("4. Placement: which backend runs what", _placement(optimized)))
    print_lines(section("5. Check: the same numbers as ONNX Runtime?", _check(walk)))
    print_lines(section("6. Run: one image", _timing(walk)))
    print_lines(section("What to try next", _next_steps(path)))
    return 0


def _models_folder() -> Path:
    """The models of the source checkout that this package belongs to."""
    folder = Path(__file__).resolve().parents[3] / "models"
    if not (folder / MODEL).is_file():
        raise UserError(
            "the demo needs the models of a source checkout, and this Graft is installed without",
            hint="clone the repository and run `make demo` there; or try `graft run MODEL.onnx`",
        )
    return folder


def _import(walk: Walk, seconds: float) -> Iterator[str]:
    held, work = parameters(walk.source), arithmetic(walk.graph)
    onnx_nodes = counted(len(walk.source.model.graph.node), "ONNX node")
    yield f"models/{MODEL}: {onnx_nodes} become {graph_size(walk.graph)}"
    yield f"{number(held.count)} parameters ({size_text(held.bytes)}), drawn from seeds"
    yield f"{dim_text(work.macs)} multiply-accumulates, {dim_text(work.flops)} other operations"
    yield f"took {seconds_text(seconds)}"


def _passes(reports: list[PassReport]) -> Iterator[str]:
    changed = [report for report in reports if report.changed]
    yield from (pass_line(report) for report in changed)
    yield f"{counted(len(reports) - len(changed), 'pass', 'passes')} had nothing to do here"


def _groups(graph: Graph) -> Iterator[str]:
    fused = group_fusion(graph)
    yield f"{graph_size(graph)} become {graph_size(fused)}; the largest groups:"
    labels = [node.attrs.label for node in fused.nodes if isinstance(node.attrs, CompositeAttrs)]
    counts = {label: labels.count(label) for label in labels}
    longest = sorted(counts, key=lambda label: (-label.count("+"), label))
    for label in longest[:_SHOWN_GROUPS]:
        yield f"{counts[label]:>3} x {label.replace('+', ' + ')}"


def _placement(graph: Graph) -> Iterator[str]:
    yield str(compile(graph).placement)
    yield "`host` is machine code for this processor, run as one native call. What has no"
    yield "native code yet would run on `reference`, which evaluates with NumPy, and say so."


def _check(walk: Walk) -> Iterator[str]:
    try:
        onnxruntime()
    except UserError as error:
        yield f"not checked: {error.message}. To have it: {error.hint}"
        return
    feeds = {fed.value.name: fed.data for fed in feed(walk.graph, walk.inputs)}
    verdict = check(walk.path, walk.source, walk.graph, feeds, Tolerance())
    for output in verdict.outputs:
        difference = output.difference
        largest = error_text(difference.max_absolute)
        answer = "yes" if difference.agrees else f"NO, {number(difference.mismatches)} are wrong"
        yield f"{answer}: {number(difference.size)} numbers, largest difference {largest}"
    yield f"({verdict.peer}, a random image)"


def _timing(walk: Walk) -> Iterator[str]:
    module = compile(walk.graph)
    feeds = {fed.value.name: fed.data for fed in feed(walk.graph, walk.inputs)}
    seconds = []
    with status("timing"):
        for _ in range(_RUNS):
            start = time.perf_counter()
            module.run(None, feeds)
            seconds.append(time.perf_counter() - start)
    middle = seconds_text(statistics.median(seconds))
    yield f"{middle} per inference in native code (median of {_RUNS})"


def _next_steps(path: Path) -> Iterator[str]:
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    yield f"graft inspect {shown}"
    yield f"graft compile {shown} --emit fused"
    yield f"graft check {shown.with_name('vit_b_16.onnx')} --nodes"
    yield "graft run YOUR_MODEL.onnx"
