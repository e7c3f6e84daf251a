"""`graft explain`: a model and backends in; who runs what, why, and what would change that, out."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from graft.base.errors import UserError
from graft.base.progress import Progress, Stage
from graft.byoc.executable import Settings
from graft.byoc.explain import Explanation, NodeFacts, explain, nodes_like
from graft.byoc.explain_html import to_html
from graft.byoc.partition import Partition
from graft.byoc.trust import Demotion
from graft.cli.explain_text import node_lines, page
from graft.cli.file_facts import (
    FileFacts,
    node_line,
    placement_lines,
    refuse_options,
)
from graft.cli.model_options import add_strict_import_argument
from graft.cli.placement import check_targets
from graft.cli.placement_options import (
    REFERENCE,
    add_pin_argument,
    add_shapes_argument,
    shapes_of,
    targets,
)
from graft.cli.report import print_json, print_lines
from graft.cli.runnable import is_compiled
from graft.cli.status import spoken_warnings, status
from graft.cli.usage import UsageError, positive
from graft.compiler import compile_options
from graft.passes.variant_sizes import variant_sizes
from graft.program.variants import variant_name
from graft.race import fastest
from graft.stages import (
    CompileOptions,
    Optimized,
    import_graph,
    link,
    lower,
    optimize,
    partition_graph,
    place,
)

DESCRIPTION = """\
Say who would run what of a model and why: the regions of each backend and what they
take, other plans beside the chosen one, per node the refusals and the alternatives with
their prices, and what would change all this. The model is not run, but for what is
timed to price it. Of a .graft file: who runs what, as it was placed when it was
compiled, and the memory that its programs work in; nothing is run."""
EXAMPLES = """\
  graft explain model.onnx --target onednn,host            a summary
  graft explain model.onnx --target onednn,host --node /layer1/conv1/Conv
  graft explain model.onnx --target onednn,host --html model.html
  graft explain model.onnx --target simnpu,host --pin "layer4/*=host" --json
  graft explain model.onnx --target openvino,host --measure
  graft explain model.onnx --target simnpu,host --shapes batch=8   the variant for a size
  graft explain model.graft                                compiled before
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX or .graft file")
    parser.add_argument(
        "--target",
        metavar="NAMES",
        type=targets,
        help="backends to place a model on, separated by commas; see `graft backends`",
    )
    add_pin_argument(parser)
    add_shapes_argument(parser)
    parser.add_argument(
        "--node", metavar="NAME", help="all about one node: its ONNX name, or a value it makes"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page to look around in")
    parser.add_argument("--measure", action="store_true", help="run the best plans end to end, too")
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="of native code (default: one per core)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    if is_compiled(options.model):
        return _explain_file(options)
    if options.target is None:
        raise UsageError("which backends?", hint="name them with --target NAMES")
    if REFERENCE in options.target:
        raise UsageError("the reference evaluator runs whole models: there is nothing to explain")
    check_targets(options.target)
    found = _explained(options)
    node = None if options.node is None else named(found, options.node)
    if options.html is not None:
        options.html.write_text(to_html(found), encoding="utf-8")
    if options.json:
        print_json(asdict(node) if node is not None else json.loads(found.to_json()))
    elif node is not None:
        print_lines(node_lines(found, node))
    else:
        print_lines(page(found))
        if options.html is not None:
            print_lines(["", f"{options.html} shows the graph"])
    return 0


def _explain_file(options: argparse.Namespace) -> int:
    about_models = ("target", "pin", "shapes", "html", "measure", "threads", "strict_import")
    refuse_options({f"--{name.replace('_', '-')}": getattr(options, name) for name in about_models})
    facts = FileFacts.of(options.model)
    if options.json:
        print_json(facts.to_json())
    elif options.node is not None:
        print_lines([node_line(facts, options.node)])
    else:
        print_lines(placement_lines(facts))
    return 0


def _explained(options: argparse.Namespace) -> Explanation:
    with status(f"explaining {options.model.name}") as tell, spoken_warnings():
        settings = Settings(options.threads, report=tell)
        wishes = {"pins": options.pin, "measure": options.measure}
        asked = compile_options(options.target, settings, **wishes)
        optimized, name = _subject(options, tell)
        explanation = explain_placement(optimized, asked)
        tell(Stage("looking for what would change the plan"))
        return explain(*explanation, name)


def explain_placement(
    optimized: Optimized, asked: CompileOptions
) -> tuple[Partition, Mapping[str, float], tuple[Demotion, ...]]:
    """Place a graph as `compile` would: all that led to the plan, and, where `measure` asks for it,
    what the plans take end to end by their methods, and what had to go back to the host.

    Nothing is compiled for it and it is not run, but for what is timed to price it and with
    `measure`."""
    placed = place(optimized, asked)
    found = placed.partition or partition_graph(placed.graph, asked)
    if not asked.measure:
        return found, {}, ()
    contenders = [link(lower(one, asked)) for one in placed.contenders]
    plan = fastest(contenders, asked).plan
    return found, plan.measured if plan else {}, contenders[0].demotions


def _subject(options: argparse.Namespace, tell: Progress) -> tuple[Optimized, str]:
    """The model, or the variant of it that is asked for, and what it is called."""
    optimized = optimize(import_graph(options.model, options.strict_import, tell), tell)
    if not options.shapes:
        return optimized, options.model.stem
    wanted = variant_sizes(optimized.graph, shapes_of(options))
    if len(wanted.sizes) > 1:
        raise UsageError("graft explain takes one variant at a time", hint="--shapes NAME=SIZE")
    (sizes,) = wanted.sizes
    name = f"{options.model.stem} ({variant_name(wanted.symbols, sizes)})"
    return optimized.bind(dict(zip(wanted.symbols, sizes, strict=True))), name


def named(found: Explanation, name: str) -> NodeFacts:
    """The node of that name; of several that an ONNX node became, the one with most work."""
    nodes = nodes_like(found, name)
    if nodes:
        return max(reversed(nodes), key=lambda node: node.macs)
    known = [one for node in found.nodes for one in (node.name, node.onnx, *node.outputs)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "nodes that passes removed have no place"
    raise UserError(f"the optimised model has no node '{name}'", hint=hint)
