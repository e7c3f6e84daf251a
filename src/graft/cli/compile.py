"""`graft compile`: model file in; a `.graft` file, or one stage of the compiler as text, out."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from graft.backends.host.options import Accuracy
from graft.backends.host.prepare import host_passes
from graft.backends.host.stretches import why_not_native
from graft.base.progress import Progress, quietly
from graft.byoc.boundary import with_wishes
from graft.byoc.contract import HOME
from graft.byoc.discover import find_backends
from graft.byoc.outline import outline
from graft.byoc.plan import regions_of
from graft.cli.kernels import KERNEL_STAGES, flow_kernel_text, kernel_text
from graft.cli.model_options import add_accuracy_argument, add_strict_import_argument
from graft.cli.placement import check_targets
from graft.cli.placement_options import (
    add_placement_arguments,
    asked,
    check_placement,
    given,
    others_than_host,
)
from graft.cli.report import pass_line, print_json, print_lines, seconds_text
from graft.cli.save import Saved, Wishes, save
from graft.cli.status import status
from graft.cli.usage import UsageError, positive
from graft.compiler import read_plan, study
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.passes.pipeline import PassReport, optimize, run_passes
from graft.runtime.artifact import SUFFIX
from graft.target.target import HOST, known_targets, named_target

DESCRIPTION = """\
Compile a model for this machine, or another one, and save it, or print what is there
at a stage of the compiler. The stages, in order:
  graph        as imported, with the ONNX names
  optimized    after the frontend passes
  plan         which backend runs what (with --target)
  partitioned  the graph with a node for each backend's region (with --target)
  fused        after the passes for the machine and grouping what one kernel computes
  loops        the loops of each kernel
  llvm         each kernel as LLVM gets it
  asm          each kernel as assembly
The machines, by what code for them relies on (all run Linux):
""" + "\n".join(f"  {name:<12} {summary}" for name, summary in known_targets().items())
EXAMPLES = """\
  graft compile model.onnx -o model.graft                  for `graft run`, `graft.load`
  graft compile model.onnx -o model.graft --json           sizes and times for programs
  graft compile model.onnx --emit graph                    the graph as imported
  graft compile model.onnx --emit optimized -v >after.txt  what each pass did, on stderr
  graft compile model.onnx --emit loops --output loops.txt
  graft compile model.onnx -o model.graft --machine aarch64  to be run on a 64-bit Arm
  graft compile model.onnx -o model.graft --shapes batch=1,8   variants for these sizes
  graft compile model.onnx -o model.graft --target onednn,host --save-plan model.plan
  graft compile model.onnx --emit plan --target onednn,host --pin "layer4/*=host"
"""

COMMON_STAGES = ("graph", "optimized")  # the same for every machine
GRAPH_STAGES = (*COMMON_STAGES, "fused")
PLACEMENT_STAGES = ("plan", "partitioned")
STAGES = (*COMMON_STAGES, *PLACEMENT_STAGES, "fused", *KERNEL_STAGES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX file")
    parser.add_argument("--emit", choices=STAGES, help="the stage to stop at and print")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=f"the {SUFFIX} file to save; with --emit, where to write the text",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="how many run the file unless told otherwise (default: one per core)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        choices=known_targets(),
        help="the machine to compile for, one of those above; by default this one",
    )
    add_accuracy_argument(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what each pass did"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on the file")
    add_placement_arguments(parser)
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    _check(options)
    check_targets(options.target or ())
    if options.emit is None:
        saved = _saved(options)
        if options.json:
            print_json(saved.to_json())
        else:
            print_lines(saved.lines())
        return 0
    text = _text(options)
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse options that leave open what is wanted."""
    check_placement(options)
    if others_than_host(options) and options.machine is not None:
        raise UsageError("--machine is for the host alone: accelerators are priced on this machine")
    if options.emit is not None:
        _check_emit(options)
        if options.json or options.threads is not None:
            raise UsageError(f"--json and --threads are for saving a {SUFFIX} file, not for --emit")
        for name in ("machine", "accuracy"):
            common = GRAPH_STAGES if name == "accuracy" else COMMON_STAGES
            if getattr(options, name) is not None and options.emit in common:
                raise UsageError(f"--emit {options.emit} prints the same for every --{name}")
        return
    stages = ", ".join(f"--emit {name}" for name in STAGES)
    if options.output is None:
        hint = f"save it with -o FILE{SUFFIX}, or choose one of {stages}"
        raise UsageError("graft compile wants to know what to make of the model", hint=hint)
    if options.output.suffix != SUFFIX:
        raise UsageError(
            f"a compiled model goes to a file whose name ends in {SUFFIX},"
            f" and '{options.output}' does not",
            hint=f"for a file of text choose one of {stages}",
        )


_ABOUT_REGIONS = ("verify", "deadline", "isolation")


def _check_emit(options: argparse.Namespace) -> None:
    """Refuse options on placement where they do not fit the stage."""
    if options.shapes:
        raise UsageError(f"--shapes is for saving a {SUFFIX} file, not for --emit")
    if options.emit not in PLACEMENT_STAGES:
        if given(options):
            stages = " and ".join(f"--emit {name}" for name in PLACEMENT_STAGES)
            raise UsageError(f"{given(options)[0]} is for {stages}, and for saving a {SUFFIX} file")
        return
    if not others_than_host(options):
        hint = "add --target NAME,host; `graft backends` lists the names"
        raise UsageError(f"--emit {options.emit} wants a backend beside the host", hint=hint)
    for name in (
        "save_plan",
        "measure",
        "fallback",
        "no_check",
        "verify",
        "deadline",
        "isolation",
        "accuracy",
    ):
        if getattr(options, name):
            shown = name.replace("_", "-")
            raise UsageError(f"--{shown} is for saving a {SUFFIX} file, not for --emit")
    if options.emit == "plan" and options.plan is not None:
        raise UsageError("--emit plan chooses a plan, and --plan is one already")


def _saved(options: argparse.Namespace) -> Saved:
    start = time.perf_counter()
    # Only those who want to hear of the passes need them apart from the rest.
    with _progress(options):
        graph = _stage(options, "optimized" if options.verbose else "graph")
    machine, accuracy = options.machine or HOST, _accuracy(options)
    wishes = Wishes(asked(options), options.save_plan, options.threads, machine, accuracy)
    return save(options.model, graph, options.output, wishes, start)


def _progress(options: argparse.Namespace) -> AbstractContextManager[Progress]:
    """A line of progress, unless what the passes report goes to the same terminal."""
    return nullcontext(quietly) if options.verbose else status(f"compiling {options.model.name}")


def _text(options: argparse.Namespace) -> str:
    if options.emit in PLACEMENT_STAGES:
        return _placed(options)
    with _progress(options) as tell:
        if options.emit in GRAPH_STAGES:
            return to_text(_stage(options, options.emit)).text
        graph, machine = _stage(options, "optimized"), options.machine or HOST
        if why_not_native(graph):
            return flow_kernel_text(graph, options.emit, machine, _accuracy(options), tell)
        return kernel_text(_fused(options, graph), options.emit, machine, _accuracy(options), tell)


def _placed(options: argparse.Namespace) -> str:
    """The plan, or the graph that it makes."""
    with _progress(options):
        graph = _stage(options, "optimized")
    if options.plan is not None:
        plan = read_plan(options.plan)
    else:
        with status(f"placing {options.model.name}") as tell:
            plan = study(graph, options.target, options.pin, report=tell).found.plan
    if options.emit == "plan":
        return plan.to_text()
    backends = find_backends().backends
    versions = {name: one.version for name, one in backends.items()}
    limits = {name: one.limits for name, one in backends.items()}
    regions = [item for item in regions_of(plan, graph, versions) if item[0] != HOME]
    return to_text(with_wishes(outline(graph, regions), limits)).text


def _accuracy(options: argparse.Namespace) -> Accuracy:
    return Accuracy.named(options.accuracy or Accuracy.DEFAULT.value)


def _stage(options: argparse.Namespace, name: str) -> Graph:
    """The graph as it is at one of the stages."""
    start = time.perf_counter()
    graph = import_model(options.model, options.strict_import)
    if options.verbose:
        seconds = seconds_text(time.perf_counter() - start)
        print(f"import: {len(graph.nodes)} nodes, {seconds}", file=sys.stderr)
    report = _print_report if options.verbose else None
    if name == "graph":
        return graph
    graph = optimize(graph, report)
    return graph if name == "optimized" else _fused(options, graph)


def _fused(options: argparse.Namespace, optimized: Graph) -> Graph:
    report = _print_report if options.verbose else None
    target = named_target(options.machine or HOST)
    return run_passes(optimized, host_passes(target), report)


def _print_report(report: PassReport, _graph: Graph) -> None:
    print(pass_line(report), file=sys.stderr)
