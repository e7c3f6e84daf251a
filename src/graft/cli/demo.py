"""`graft demo`: a walk through the whole compiler on ResNet-18, for newcomers."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from graft.base.errors import UserError
from graft.base.quantities import counted, number, size_text, time_text
from graft.byoc.contract import HOST_BACKEND, Backend
from graft.byoc.discover import find_backends
from graft.byoc.executable import Settings
from graft.byoc.measure import race
from graft.byoc.partition import Partition
from graft.cli.check.command import check
from graft.cli.check.peer import Feeds, onnxruntime
from graft.cli.compare import Tolerance
from graft.cli.inputs import feeds_of
from graft.cli.report import (
    Block,
    Line,
    dim_text,
    error_text,
    graph_size,
    paragraph,
    pass_line,
    print_lines,
    section,
    table,
)
from graft.cli.survey import parameters
from graft.cli.terminal import status
from graft.compiler import compile, compile_options
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.module import Module
from graft.ops.control import CompositeAttrs, arithmetic
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import PassReport
from graft.stages import Imported, Optimized, optimize, partition_graph

DESCRIPTION = """\
Compile and run ResNet-18 from its ONNX file and explain each step: import, passes,
fusion, the candidates of an accelerator, the placement and its reasons, a check of
the results, a timing against the host alone; and the plan for a simulated device."""
EXAMPLES = """\
  graft demo
"""

MODEL = "resnet18.onnx"
ACCELERATORS = ("onednn", "openvino")  # in order of preference
_SECONDS = 2.0  # to run each contender for
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
    optimized = optimize(Imported(graph))
    passes = _passes(optimized.passes)
    print_lines(section("2. Passes: a smaller, equivalent graph", passes))
    print_lines(section("3. Fusion: what one kernel should compute", _groups(optimized.graph)))
    backend = _accelerator()
    if backend is None:
        print_lines(section("4. Candidates: what could an accelerator run?", _no_accelerator()))
        with status("compiling for the host") as tell:
            module = compile(optimized, report=tell)
    else:
        with status(f"placing the model on {backend.name}") as tell:
            compile_request = replace(
                compile_options(HOST_BACKEND, Settings(report=tell)), accelerators=(backend,)
            )
            result = partition_graph(optimized.graph, compile_request)
            module = compile(optimized, [backend.name, HOST_BACKEND], report=tell)
        title = f"4. Candidates: what could {backend.name} run?"
        print_lines(section(title, _candidates(result, backend)))
        print_lines(section("5. Plan: placement and predicted times", _plan(result, module)))
    print_lines(section("6. Check: the right numbers?", _check(walk, module)))
    print_lines(section("7. Run: one image", _timing(walk, optimized, module, backend)))
    title = "8. Another accelerator: simnpu, which is simulated"
    print_lines(section(title, _simulated(optimized.graph)))
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
    weights, work = parameters(walk.source), arithmetic(walk.graph)
    onnx_nodes = counted(len(walk.source.model.graph.node), "ONNX node")
    yield f"models/{MODEL}: {onnx_nodes} become {graph_size(walk.graph)}"
    yield f"{number(weights.count)} parameters ({size_text(weights.bytes)}), generated from seeds"
    yield f"{dim_text(work.macs)} multiply-accumulates, {dim_text(work.flops)} other operations"
    yield f"took {time_text(seconds)}"


def _passes(reports: Sequence[PassReport]) -> Iterator[str]:
    changed = [report for report in reports if report.changed]
    yield from (pass_line(report) for report in changed)
    yield f"{counted(len(reports) - len(changed), 'pass', 'passes')} changed nothing"


def _groups(graph: Graph) -> Iterator[Block]:
    fused = group_fusion(graph)
    yield f"{graph_size(graph)} become {graph_size(fused)}; the largest groups:"
    labels = [node.attrs.label for node in fused.nodes if isinstance(node.attrs, CompositeAttrs)]
    yield from _longest(labels)


def _longest(labels: Sequence[str]) -> list[Block]:
    """The longest labels, with their counts."""
    counts = Counter(labels)
    ordered = sorted(counts, key=lambda label: (-label.count("+"), label))
    rows = [(f"{counts[label]} x", label.replace("+", " + ")) for label in ordered]
    return table(rows[:_SHOWN_GROUPS], right=(0,))


def _accelerator() -> Backend | None:
    """The first accelerator that can run here."""
    backends = find_backends().backends
    present = [backends[name] for name in ACCELERATORS if name in backends]
    return next((backend for backend in present if not backend.missing()), None)


def _no_accelerator() -> Iterator[str]:
    backends = find_backends().backends
    for name in ACCELERATORS:
        missing = backends[name].missing() if name in backends else "it is not installed"
        yield f"not {name}: {missing}"
    yield "everything runs on the host, which is machine code for this processor"


def _candidates(partition: Partition, backend: Backend) -> Iterator[Block]:
    own = [c for c in partition.candidates.candidates if c.backend == backend.name]
    covered = {node for candidate in own for node in candidate.nodes}
    nodes = partition.candidates.nodes
    yield f"{backend.name} {backend.version}: {counted(len(own), 'candidate')} from its patterns,"
    yield f"which overlap and cover {len(covered)} of {counted(len(nodes), 'node')}. The largest:"
    yield from _longest([candidate.label for candidate in own])
    left = [node for node in nodes if node not in covered]
    if left:
        refused = partition.candidates.refusals.get(left[0], ())
        reason = next((r.reason for r in refused if r.backend == backend.name), "")
        yield f"not {left[0].op.name} %{left[0].output.name}: {reason}"


def _plan(partition: Partition, module: Module) -> Iterator[Block]:
    plan = partition.plan
    proof = "proven best" if plan.proven else f"at most {plan.gap:.2%} above the best"
    others = [(f"{name}:", time_text(one), "") for name, one in plan.alternatives.items()]
    yield from table([*others, ("exact:", time_text(plan.predicted), proof)], right=(1,))
    yield "so the plan is, after a race of it against the host alone, end to end:"
    yield paragraph(str(module.placement))


def _simulated(graph: Graph) -> Iterator[str]:
    with status("planning for simnpu") as tell:
        options = compile_options("simnpu", Settings(report=tell))
        plan = partition_graph(graph, options).plan
    yield "accelerator times come from a timing model, host times are measured:"
    regions = counted(len(plan.regions), "region")
    yield f"exact:    {time_text(plan.predicted)} in {regions} (simulated)"
    for name, seconds in plan.alternatives.items():
        yield f"{name}: {time_text(seconds)}{'' if name == 'host-only' else ' (simulated)'}"


def _check(walk: Walk, module: Module) -> Iterator[str]:
    placed = module.placement
    if placed.plan is not None:
        checked = counted(len(placed.regions), "region")
        yield f"{checked} compared with the host before use, {len(placed.demotions)} demoted"
    try:
        onnxruntime()
    except UserError as error:
        yield f"not checked: {error.message}. To have it: {error.hint}"
        return
    feeds = feeds_of(walk.graph, walk.inputs)

    def run_module(_graph: Graph, feeds: Feeds) -> list[Data]:
        with status("running the module as placed"):
            return module.run(None, feeds)

    verdict = check(walk.path, walk.source, walk.graph, feeds, Tolerance(), run_module)
    for output in verdict.outputs:
        difference = output.difference
        largest = error_text(difference.max_absolute)
        answer = "yes" if difference.agrees else f"NO, {number(difference.mismatches)} are wrong"
        yield f"{answer}: {number(difference.size)} numbers, largest difference {largest}"
    where = " and ".join(placed.nodes)
    yield f"(as placed on {where}; {verdict.peer}, a random image)"


def _timing(
    walk: Walk, optimized: Optimized, module: Module, backend: Backend | None
) -> Iterator[str]:
    feeds = feeds_of(walk.graph, walk.inputs)
    with status("compiling for the host alone") as tell:
        runs = {"host alone": partial(compile(optimized, report=tell).run, None, feeds)}
    if backend is not None:
        runs[f"as planned with {backend.name}"] = partial(module.run, None, feeds)
    with status("timing"):
        times = race(runs, _SECONDS)
    alone = times["host alone"]
    for name, seconds in times.items():
        factor = f", {alone / seconds:.2f} times as fast" if seconds is not alone else ""
        yield f"{name}: {time_text(seconds)}{factor}"
    yield "(medians, in alternation, so that both see the same load)"


def _next_steps(path: Path) -> list[Line]:
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    commands = (
        f"graft inspect {shown}",
        f"graft compile {shown} --emit fused",
        f"graft check {shown.with_name('vit_b_16.onnx')} --nodes",
        f"graft explain {shown} --target simnpu,host",
        "graft run YOUR_MODEL.onnx",
    )
    return [Line(command, wraps=False) for command in commands]
