"""`graft compile`: model file in, the text of one stage of the compiler out."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from graft.cli.report import pass_line, seconds_text
from graft.cli.status import status
from graft.cli.usage import UsageError
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.printer import to_text
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import PassReport, optimize, run_passes

DESCRIPTION = """\
Compile a model up to a stage and print the graph that is there. The stages, in order:
  graph        as imported, with the ONNX names
  optimized    after the frontend passes
  fused        after grouping what one kernel should compute"""
EXAMPLES = """\
  graft compile model.onnx --emit graph                    the graph as imported
  graft compile model.onnx --emit optimized -v >after.txt  what each pass did, on stderr
  graft compile model.onnx --emit fused --output fused.txt
"""

STAGES = ("graph", "optimized", "fused")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX file")
    parser.add_argument("--emit", choices=STAGES, help="the stage to stop at and print")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write there instead of standard output"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say on standard error what each pass did"
    )


def execute(options: argparse.Namespace) -> int:
    if options.emit is None:
        hint = f"choose one of {', '.join(f'--emit {name}' for name in STAGES)}"
        raise UsageError("graft compile wants to know which stage to print", hint=hint)
    # What the passes report goes to the same terminal.
    progress = nullcontext() if options.verbose else status(f"compiling {options.model.name}")
    with progress:
        graph = stage(options.model, options.emit, options.verbose)
        text = to_text(graph).text
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


def stage(model: Path, name: str, verbose: bool = False) -> Graph:
    """The graph as it is at one of the stages."""
    start = time.perf_counter()
    graph = import_model(model)
    if verbose:
        seconds = seconds_text(time.perf_counter() - start)
        print(f"import: {len(graph.nodes)} nodes, {seconds}", file=sys.stderr)
    report = _print_report if verbose else None
    if name == "graph":
        return graph
    graph = optimize(graph, report)
    return graph if name == "optimized" else run_passes(graph, (group_fusion,), report)


def _print_report(report: PassReport, _graph: Graph) -> None:
    print(pass_line(report), file=sys.stderr)
