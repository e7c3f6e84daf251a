"""`graft explain`: a model and backends in; the placement, its reasons and alternatives out."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from graft.base.errors import UserError
from graft.base.names import shortened
from graft.base.progress import Progress, Stage
from graft.base.quantities import counted, number, size_text
from graft.byoc.contract import HOST_BACKEND
from graft.byoc.executable import Settings
from graft.byoc.explain import Explanation, NodeFacts, RegionFacts, explain
from graft.byoc.explain_html import to_html
from graft.byoc.explain_words import (
    SIMULATED,
    by_parts_note,
    executions_text,
    flip_price,
    flip_text,
    hint_text,
    is_simulated,
    obstacle_text,
    quality,
    summary,
    time_text,
)
from graft.byoc.partition import Partition
from graft.byoc.trust import Demotion
from graft.cli.file_facts import FileFacts, node_line, placement_lines
from graft.cli.options import (
    REFERENCE,
    UsageError,
    add_containment_arguments,
    add_pin_argument,
    add_shapes_argument,
    add_strict_import_argument,
    check_folders,
    flag,
    positive,
    shapes_of,
    targets,
)
from graft.cli.placement import check_targets
from graft.cli.report import (
    Block,
    Indented,
    paragraph,
    print_json,
    print_lines,
    rows_text,
    section,
    table,
)
from graft.cli.runnable import is_compiled, refuse_options
from graft.cli.terminal import GOOD, spoken_warnings, status, styled
from graft.compiler import compile_options
from graft.ir.graph import Node
from graft.passes.variant_sizes import variant_sizes
from graft.program.variants import variant_name
from graft.race import fastest
from graft.runtime.regions import Policy
from graft.stages import (
    CompileOptions,
    Optimized,
    Placed,
    import_graph,
    link,
    lower,
    optimize,
    partition_graph,
    place,
    reference_nodes,
)

DESCRIPTION = """\
Explain the placement of a model: the regions of each backend with their prices, other
plans beside the chosen one, per node the refusals and the alternatives with their
prices, the nodes that run on the reference evaluator, and what would change the result.
A launch costs what the backend declares and the time to wake the host's threads
afterwards, without the guard of a region (some 20 µs with a deadline). The model is not
run, except for timings that prices need. For a .graft file: the placement at compile
time, and the memory of its segments; nothing is run."""
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
    add_shapes_argument(parser, "explain the variant for this size of a dim, as batch=8")
    parser.add_argument(
        "--node", metavar="NAME", help="details of one node, by ONNX name or result"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an interactive page")
    parser.add_argument("--measure", action="store_true", help="time the best plans, too")
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="number of threads (default: one per core)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_containment_arguments(parser)
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    if is_compiled(options.model):
        return _explain_file(options)
    if options.target is None:
        hint = "name them with --target NAME,host; `graft backends` lists them"
        raise UsageError("graft explain needs the backends to place the model on", hint=hint)
    if REFERENCE in options.target:
        raise UsageError("the reference evaluator runs whole models: there is nothing to explain")
    check_folders(options.html)
    check_targets(options.target)
    result, evaluated = _explained(options)
    node = None if options.node is None else named(result, options.node)
    if options.html is not None:
        options.html.write_text(to_html(result), encoding="utf-8")
    if options.json:
        facts = {**json.loads(result.to_json()), "reference": list(map(asdict, evaluated))}
        print_json(asdict(node) if node is not None else facts)
    elif node is not None:
        print_lines(node_lines(result, node, evaluated))
    else:
        print_lines(page(result, evaluated))
        if options.html is not None:
            print_lines(["", f"{options.html} shows the graph"])
    return 0


def _explain_file(options: argparse.Namespace) -> int:
    about_models = (
        *("target", "pin", "shapes", "html", "measure", "threads", "strict_import"),
        *("deadline", "isolation"),
    )
    refuse_options({flag(name): getattr(options, name) for name in about_models})
    facts = FileFacts.of(options.model)
    if options.json:
        print_json(facts.to_json())
    elif options.node is not None:
        print_lines([node_line(facts, options.node)])
    else:
        print_lines(placement_lines(facts))
    return 0


@dataclass(frozen=True, slots=True)
class EvaluatedNode:
    """A node of the host's part that runs on the reference evaluator; `onnx` is the ONNX node."""

    name: str
    onnx: str
    op: str
    reason: str

    @classmethod
    def of(cls, node: Node, reason: str) -> EvaluatedNode:
        onnx = node.location.node if node.location is not None else ""
        return cls(node.output.name, onnx, node.op.name, reason)


def _explained(options: argparse.Namespace) -> tuple[Explanation, list[EvaluatedNode]]:
    with status(f"explaining {options.model.name}") as tell, spoken_warnings():
        settings = Settings(options.threads, report=tell)
        wishes = {"pins": options.pin, "measure": options.measure}
        wishes["policy"] = Policy(deadline=options.deadline)
        request = compile_options(options.target, settings, options.isolation, **wishes)
        optimized, name = _subject(options, tell)
        placed = place(optimized, request)
        explanation = _explain_placement(placed, request)
        tell(Stage("lowering the host's part"))
        evaluated = [
            EvaluatedNode.of(node, reason) for node, reason in reference_nodes(placed, request)
        ]
        tell(Stage("looking for what would change the plan"))
        return explain(*explanation, name), evaluated


def _explain_placement(
    placed: Placed, request: CompileOptions
) -> tuple[Partition, Mapping[str, float], tuple[Demotion, ...]]:
    """The partition, the times of plans end to end by their methods with `measure`, and demotions.

    Without `measure`, the model is not compiled, and only run as far as prices need timings."""
    result = placed.partition or partition_graph(placed.graph, request)
    if not request.measure:
        return result, {}, ()
    first, *others = placed.contenders
    linked = link(lower(first, request))
    rivals = (link(lower(other, request)) for other in others)
    plan = fastest(chain([linked], rivals), request).plan
    return result, plan.measured if plan else {}, linked.demotions


def _subject(options: argparse.Namespace, tell: Progress) -> tuple[Optimized, str]:
    """The model, or the requested variant of it, and its name."""
    optimized = optimize(import_graph(options.model, options.strict_import, tell), tell)
    if not options.shapes:
        return optimized, options.model.stem
    variant_sizes_ = variant_sizes(optimized.graph, shapes_of(options))
    if len(variant_sizes_.sizes) > 1:
        raise UsageError("graft explain takes one variant at a time", hint="--shapes NAME=SIZE")
    (sizes,) = variant_sizes_.sizes
    name = f"{options.model.stem} ({variant_name(variant_sizes_.symbols, sizes)})"
    return optimized.bind(dict(zip(variant_sizes_.symbols, sizes, strict=True))), name


def named(explained: Explanation, name: str) -> NodeFacts:
    """The node with that name, result, or ONNX node; of several nodes that an ONNX node became, the
    one with most work."""
    value = name.removeprefix("%")
    nodes = [node for node in explained.nodes if node.name == name or value in node.outputs]
    nodes = nodes or [node for node in explained.nodes if node.onnx == name]
    if nodes:
        return max(reversed(nodes), key=lambda node: node.macs)
    names = [one for node in explained.nodes for one in (node.name, node.onnx, *node.outputs)]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "nodes that passes removed have no place"
    raise UserError(f"the optimised model has no node '{name}'", hint=hint)


_MOST_REGIONS = 20
_MOST_NODES = 6  # of a region, by name
_LONGEST_NAME = 44


def page(explained: Explanation, evaluated: Sequence[EvaluatedNode] = ()) -> Iterator[Block]:
    """The whole report, the summary first."""
    yield explained.model
    yield Indented(paragraph(summary(explained)))
    yield from section("Where the time goes", _shares(explained))
    yield from section("Plans", [*_totals(explained), f"the chosen one is {quality(explained)}"])
    if explained.regions:
        yield from section("Regions", _regions(explained))
    if explained.bodies:
        yield from section("Bodies, per inference", _bodies(explained))
    if evaluated:
        title = f"On the reference evaluator: {counted(len(evaluated), 'node')}"
        lines = [f"{one.onnx or one.name} ({one.op}): {one.reason}" for one in evaluated]
        yield from section(title, map(paragraph, lines))
    if explained.memory:
        lines = [f"peak {one.text}" for one in explained.memory]
        yield from section("Device memory", map(paragraph, lines))
    if explained.demotions:
        lines = [f"{one.label} went back to the host: {one.reason}" for one in explained.demotions]
        yield from section("Not trusted", map(paragraph, lines))
    if explained.flips or explained.hints:
        yield from section("What would change this", _changes(explained))
    if explained.obstacles:
        lines = [obstacle_text(obstacle) for obstacle in explained.obstacles]
        yield from section("What keeps nodes on the host", map(paragraph, lines))


def _shares(explained: Explanation) -> list[Block]:
    header = ("backend", "nodes", "MACs", "regions", "execution", "transfers", "launches", "total")
    rows = []
    for backend in explained.backends:
        parts = (backend.execution, backend.transfers, backend.launches, backend.seconds)
        rows.append(
            (
                _marked(backend.name, backend.simulated),
                number(backend.nodes),
                f"{backend.macs / max(explained.macs, 1):.1%}",
                "-" if backend.name == HOST_BACKEND else number(backend.regions),
                *(time_text(part) for part in parts),
            )
        )
    return table(rows, header, right=range(1, 8))


def _marked(name: str, simulated: bool) -> str:
    return f"{name} {SIMULATED}" if simulated else name


def _totals(explained: Explanation) -> list[Block]:
    header = ("plan", "predicted", "measured", "regions", "offloaded", "MACs")
    rows = []
    for total in explained.totals:
        simulated = explained.simulated and total.regions > 0
        rows.append(
            (
                _marked(total.scheme, simulated),
                time_text(total.predicted),
                "-" if total.measured is None else time_text(total.measured),
                number(total.regions),
                f"{number(total.nodes)} of {number(len(explained.nodes))}",
                f"{total.macs / max(explained.macs, 1):.1%}",
            )
        )
    return table(rows, header, right=range(1, 6))


def _regions(explained: Explanation) -> list[Block]:
    header = ("region", "nodes", "MACs", "in", "out", "time", "prices", "ONNX nodes")
    rows = [
        (
            _marked(region.label, is_simulated(explained, region.backend)),
            number(len(region.nodes)),
            f"{region.macs / max(explained.macs, 1):.1%}",
            size_text(region.input_bytes),
            size_text(region.output_bytes),
            time_text(region.seconds),
            region.source,
            f"{'; '.join(where)}: {names}" if where else names,
        )
        for region in explained.regions[:_MOST_REGIONS]
        for names in [_names(explained, region.label)]
        for where in [_where(region)]
    ]
    lines = table(rows, header, right=range(1, 6))
    if len(explained.regions) > _MOST_REGIONS:
        left = len(explained.regions) - _MOST_REGIONS
        lines.append(f"and {counted(left, 'more region')}, which --json and --html show")
    return lines


def _where(region: RegionFacts) -> list[str]:
    """The body that a region lies in, and its blocks, as far as it has them."""
    parts = (region.body and f"in {region.body}", rows_text(region.rows))
    return [part for part in parts if part]


_MOST_BODIES = 20


def _bodies(explained: Explanation) -> list[Block]:
    """The expected executions of branches, loops and scans."""
    rows = []
    for body in explained.bodies[:_MOST_BODIES]:
        own = [node for node in explained.nodes if node.body == body.name]
        away = sum(node.backend != HOST_BACKEND for node in own)
        name = shortened(body.name, _LONGEST_NAME)
        rows.append((name, executions_text(body), number(len(own)), number(away)))
    lines = table(rows, ("body", "executed", "nodes", "offloaded"), right=(2, 3))
    left = len(explained.bodies) - _MOST_BODIES
    return [*lines, f"and {left} more, which --json shows"] if left > 0 else lines


def _names(explained: Explanation, region: str) -> str:
    """The ONNX nodes of a region, or the first few of them."""
    nodes = [node for node in explained.nodes if node.region == region]
    names = list(dict.fromkeys(node.onnx or node.name for node in nodes))
    shown = ", ".join(shortened(name, _LONGEST_NAME) for name in names[:_MOST_NODES])
    left = len(names) - _MOST_NODES
    return f"{shown} and {left:,} more" if left > 0 else shown


def _changes(explained: Explanation) -> list[Block]:
    rows = [(flip_price(explained, flip), flip_text(flip)) for flip in explained.flips]
    notes = [by_parts_note(explained), *(hint_text(explained, hint) for hint in explained.hints)]
    return [*table(rows, right=(0,)), *(paragraph(text) for text in notes if text)]


def node_lines(
    explained: Explanation, node: NodeFacts, evaluated: Sequence[EvaluatedNode] = ()
) -> Iterator[Block]:
    """The report on one node."""
    yield node.name
    regions = [one for one in explained.regions if one.label == node.region]
    inside = [f"in {one.label}" for one in regions]
    blocks = [text for one in regions if (text := rows_text(one.rows))]
    where = ", ".join([node.backend, *inside, *blocks])
    fallback = next((one for one in evaluated if one.name in node.outputs), None)
    if fallback is not None:
        where = f"the reference evaluator: {fallback.reason}"
    around = [body for body in explained.bodies if body.name == node.body]
    beside = [one.name for one in explained.nodes if node.onnx and one.onnx == node.onnx]
    rows = (
        *((("of ONNX's", f"{node.onnx}, as {', '.join(beside)}"),) if len(beside) > 1 else ()),
        ("operator", node.op),
        ("result", node.type),
        ("makes", ", ".join(node.outputs)),
        ("MACs", number(node.macs)),
        ("runs on", where),
        *(("in", f"{one.name}, {executions_text(one)}") for one in around),
    )
    yield from map(Indented, table(rows))
    yield Indented(paragraph(node.why))
    header = ("backend", "as", "nodes", "time", "prices", "")
    options = [
        (
            alternative.backend,
            " ".join(filter(None, (pattern, rows_text(alternative.rows)))),
            number(alternative.nodes),
            time_text(alternative.seconds, is_simulated(explained, alternative.backend)),
            alternative.source,
            styled("chosen", GOOD) if alternative.chosen else "",
        )
        for alternative in node.alternatives
        for pattern in [shortened(alternative.pattern, _LONGEST_NAME)]
    ]
    yield from section("Alternatives", table(options, header, right=(2, 3)))
    if node.refusals:
        lines = [f"{refusal.backend} {refusal.pattern}".rstrip() for refusal in node.refusals]
        reasons = [f"{who}: {one.reason}" for who, one in zip(lines, node.refusals, strict=True)]
        yield from section("Refusals", map(paragraph, reasons))
    moves = [flip for flip in explained.flips if node.name in flip.nodes]
    if moves:
        reasons = [f"{flip_text(flip)}: {flip_price(explained, flip)}" for flip in moves]
        yield from section("What would change this", map(paragraph, reasons))
