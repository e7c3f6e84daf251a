"""`graft check`: a model and inputs in; whether Graft agrees with ONNX Runtime out.

First the outputs of the compiled model are compared. If they differ, the first pass after which the
graph differs is searched, or, if the imported graph differs already, the first node.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graft.base.compare import Difference
from graft.base.quantities import counted
from graft.byoc.trust import Demotion
from graft.cli.check.backend import add_backend_arguments, check_backend, wants_backend
from graft.cli.check.file import add_file_arguments, check_file
from graft.cli.check.localize import (
    NATIVE,
    NodeComparison,
    NodeDifference,
    PassBlame,
    blame_pass,
    compare_nodes,
)
from graft.cli.check.peer import Feeds, Peer, onnxruntime, opened_peer
from graft.cli.check.reduce_failing import reduce_failing
from graft.cli.compare import (
    Tolerance,
    add_tolerance_arguments,
    compare,
    difference_figures,
    in_expected_order,
    tolerance_of,
)
from graft.cli.inputs import add_input_arguments, feeds_of, telling_sizes
from graft.cli.options import (
    UsageError,
    add_placement_arguments,
    add_strict_import_argument,
    asked,
    check_placement,
)
from graft.cli.placement import check_targets, compiled_as_asked
from graft.cli.report import Block, Cell, Line, print_result, section, table
from graft.cli.runnable import is_compiled
from graft.cli.survey import index_bounds
from graft.cli.terminal import BAD, GOOD, spoken_warnings, status, styled
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.module import Placement

DESCRIPTION = """\
Compare a model's results with ONNX Runtime's on given or generated inputs. Float
outputs may differ by atol + rtol * |expected|, all others must be equal. If outputs
differ, find the pass of Graft that introduces the difference, or the node: nodes are
compared on ONNX Runtime's operands, and if results exceed 1, atol is scaled with
them. Exit code 0 if everything agrees.

For a .graft file: verify its checksums, run it twice on the inputs and compare the
runs; outputs that are not finite are counted. With --against MODEL, compare its
outputs with the reference evaluator's on that model.

With --reduce, a model that differs, fails or crashes in Graft is reduced while it
does: nodes are removed, their results become inputs with ONNX Runtime's values, sizes
shrink. The result is written and checked again.

With --backend, test a backend on generated graphs: what it accepts must compile, run
and equal the reference. A failure is reported as a graph of a few lines."""
EXAMPLES = """\
  graft check model.onnx                         on generated inputs
  graft check model.onnx --dim batch=3 --seed 1
  graft check model.onnx --input x=x.npy --rtol 1e-5 --atol 1e-6
  graft check model.onnx --nodes                 compare all intermediate values, too
  graft check model.onnx --target onednn,host    with an accelerator
  graft check model.graft                        a compiled file alone
  graft check model.graft --against model.onnx   a compiled file against its model
  graft check model.onnx --reduce small.onnx     the smallest model that differs, if any
  graft check --backend mynpu --examples 50      test a backend
"""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The comparison of one output."""

    name: str
    type: str
    difference: Difference
    tolerance: Tolerance  # that its dtype is held to


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check; `blame` and `nodes` only if requested or needed."""

    path: Path
    peer: str
    tolerance: Tolerance
    outputs: Sequence[OutputCheck]
    moved_rows: int  # rows that stand elsewhere, where only the data decide how many there are
    blame: PassBlame | None
    nodes: NodeComparison | None
    random_node: str  # one that draws random numbers, if any
    placement: Placement | None = None  # if other backends are targets

    @property
    def outputs_agree(self) -> bool:
        return all(output.difference.agrees for output in self.outputs)

    @property
    def agrees(self) -> bool:
        return self.outputs_agree and (self.nodes is None or self.nodes.agrees)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", type=Path, nargs="?", help="the ONNX or .graft file"
    )
    add_input_arguments(parser)
    add_tolerance_arguments(parser)
    parser.add_argument(
        "--nodes", action="store_true", help="compare every node even if the outputs agree"
    )
    parser.add_argument(
        "--reduce",
        metavar="OUT",
        type=Path,
        nargs="?",
        const=Path(),
        help="write the smallest model that still differs or fails (default MODEL-reduced.onnx)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_placement_arguments(parser)
    add_file_arguments(parser)
    add_backend_arguments(parser)
    add_strict_import_argument(parser)


def execute(options: argparse.Namespace) -> int:
    if wants_backend(options):
        return check_backend(options)
    if is_compiled(options.model):
        return check_file(options)
    if options.against is not None:
        raise UsageError("--against is for .graft files", hint="models are compared as they are")
    check_placement(options)
    check_targets(options.target or ())
    onnxruntime()  # before any work
    if options.reduce is not None:
        return _reduce(options)
    verdict = _checked(options)
    print_result(options.json, _json(verdict), _text(verdict))
    return 0 if verdict.agrees else 1


def _checked(options: argparse.Namespace) -> Verdict:
    """The verdict on the model and inputs of the options."""
    with status(f"importing {options.model.name}"):
        source = read_model(options.model, strict=options.strict_import)
        graph = import_source(source)
    feeds = feeds_of(graph, options, index_bounds(graph))
    placements: list[Placement] = []

    def run(graph: Graph, feeds: Feeds) -> list[Data]:
        title = f"compiling {options.model.name}"
        module = compiled_as_asked(graph, title, asked(options), options.save_plan)
        placements.append(module.placement)
        with status(f"running {options.model.name} in Graft"), spoken_warnings():
            return module.run(None, feeds)

    with telling_sizes(graph, options):
        verdict = check(
            options.model, source, graph, feeds, tolerance_of(options), run, options.nodes
        )
    return replace(verdict, placement=placements[0]) if options.target else verdict


def _reduce(options: argparse.Namespace) -> int:
    """Reduce a model that fails, by the same verdict."""
    reduction = reduce_failing(options, lambda one: _checked(one).outputs_agree)
    print_result(options.json, reduction.facts(), reduction.lines())
    return 0 if reduction.failure is None else 1


Run = Callable[[Graph, Feeds], list[Data]]


def check(
    path: Path,
    source: Source,
    graph: Graph,
    feeds: Feeds,
    tolerance: Tolerance,
    run: Run,
    every_node: bool = False,
) -> Verdict:
    """Compare the compiled model with ONNX Runtime, and find the cause of a difference."""
    with opened_peer(path, source) as peer:
        with status(f"running {path.name} in ONNX Runtime"):
            expected = peer.run(feeds)
        actual = run(graph, feeds)
        actual, moved = in_expected_order(graph, actual, expected, tolerance)
        outputs = [
            OutputCheck(
                name, str(value.type), compare(mine, other, tolerance), tolerance.for_values(other)
            )
            for name, value, mine, other in zip(
                graph.output_names, graph.outputs, actual, expected, strict=True
            )
        ]
        blame, nodes = None, None
        if not all(output.difference.agrees for output in outputs):
            with status("looking for the pass that makes the difference"):
                blame = blame_pass(graph, feeds, expected, tolerance)
            every_node |= blame is None
        if every_node:
            nodes = _compared(graph, source, peer, feeds, tolerance)
    drawing = _random_node(graph)
    return Verdict(path, peer.title, tolerance, outputs, moved, blame, nodes, drawing)


def _compared(
    graph: Graph, source: Source, peer: Peer, feeds: Feeds, tolerance: Tolerance
) -> NodeComparison:
    with status("comparing node by node") as tell:
        return compare_nodes(graph, source, peer, feeds, tolerance, tell)


def _random_node(graph: Graph) -> str:
    for node in graph.walk():
        if not node.op.pure:
            return node.location.node if node.location else node.output.name
    return ""


def _text(verdict: Verdict) -> Iterator[Block]:
    yield str(verdict.path)
    yield f"  compared with {verdict.peer}, {_limits(verdict.outputs)}"
    if verdict.placement is not None:
        yield f"  {verdict.placement}"
        yield from (f"  {_demotion_text(demotion)}" for demotion in verdict.placement.demotions)
    header = ("name", "type", "max abs error", "max rel error", "wrong", "verdict")
    rows = [_row(output) for output in verdict.outputs]
    yield from section("Outputs", table(rows, header, right=(2, 3, 4)))
    if verdict.moved_rows:
        yield f"  {counted(verdict.moved_rows, 'row')} in another order: near ties"
    if verdict.blame is not None:
        title = "The graph as imported agrees, so what comes after is to blame"
        yield from section(title, [_blame(verdict.blame)])
    if verdict.nodes is not None:
        yield from _node_text(verdict.nodes, verdict.outputs_agree)
    yield ""
    if verdict.random_node and not verdict.agrees:
        yield f"The node '{verdict.random_node}' draws random numbers, which never agree."
    if verdict.agrees:
        yield Line("Graft and ONNX Runtime agree.", GOOD)
    else:
        yield Line("Graft and ONNX Runtime DIFFER.", BAD)


def _limits(outputs: Sequence[OutputCheck]) -> str:
    """The tolerances of outputs; with the outputs' names if they differ."""
    names: dict[Tolerance, list[str]] = {}
    for output in outputs:
        names.setdefault(output.tolerance, []).append(output.name)
    shown = [
        (f"rtol {limit.relative:.3g}, atol {limit.absolute:.3g}", ", ".join(own))
        for limit, own in names.items()
    ]
    if len(shown) == 1:
        return shown[0][0]
    return "; ".join(f"{limits} ({own})" for limits, own in shown)


def _demotion_text(demotion: Demotion) -> str:
    nodes = ", ".join(f"%{name}" for name in demotion.nodes)
    return f"{demotion.backend} gave {nodes} back to the host: {demotion.reason}"


def _row(output: OutputCheck) -> tuple[Cell, ...]:
    *figures, answer = difference_figures(output.difference)
    style = GOOD if output.difference.agrees else BAD
    return output.name, output.type, *figures, styled(answer, style)


def _blame(blame: PassBlame) -> str:
    if blame.name == NATIVE:
        return "the graph after all passes agrees, too: native code introduces the difference"
    return f"{blame.name} (pass {blame.position} of {blame.total}) introduces the difference"


def _node_text(nodes: NodeComparison, outputs_agree: bool) -> Iterator[Block]:
    if nodes.agrees:
        lines: list[Block] = [
            f"{counted(nodes.compared, 'value')} compared: no node differs on its own"
        ]
        if not outputs_agree:
            lines.append("so it is small errors that add up on the way to the outputs")
        if nodes.largest is not None:
            lines.append(f"largest error: {_node_line(nodes.largest)}")
            lines.extend(_detail(nodes.largest))
        yield from section("Node by node, each on ONNX Runtime's operands", lines)
    elif nodes.largest is not None:
        title = f"The first node that differs: {_node_line(nodes.largest)}"
        yield from section(title, _detail(nodes.largest))


def _node_line(node: NodeDifference) -> str:
    return f"'{node.node}' ({node.operator})"


def _detail(node: NodeDifference) -> list[Block]:
    absolute, relative, wrong, verdict = difference_figures(node.difference)
    rows = [("result", node.result.name, str(node.result.type))]
    rows += [("operand", name, type_) for name, type_ in node.operands]
    if node.difference.problem:
        return [*table(rows), verdict]
    return [*table(rows), f"max abs error {absolute}, max rel error {relative}, {wrong} wrong"]


def _json(verdict: Verdict) -> dict[str, Any]:
    nodes, blame = verdict.nodes, verdict.blame
    return {
        "model": str(verdict.path),
        "peer": verdict.peer,
        "rtol": verdict.tolerance.relative,
        "atol": verdict.tolerance.absolute,
        "agrees": verdict.agrees,
        "placement": None if verdict.placement is None else json.loads(verdict.placement.to_json()),
        "outputs": [
            {
                "name": output.name,
                "type": output.type,
                "rtol": output.tolerance.relative,
                "atol": output.tolerance.absolute,
                **_difference_json(output.difference),
            }
            for output in verdict.outputs
        ],
        "moved_rows": verdict.moved_rows,
        "blamed_pass": None
        if blame is None
        else {"name": blame.name, "position": blame.position, "total": blame.total},
        "random_node": verdict.random_node or None,
        "nodes": None
        if nodes is None
        else {
            "agree": nodes.agrees,
            "values_compared": nodes.compared,
            "largest": None if nodes.largest is None else _node_json(nodes.largest),
        },
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "agrees": difference.agrees,
        "max_abs_error": difference.max_absolute,
        "max_rel_error": difference.max_relative,
        "wrong": difference.mismatches,
        "size": difference.size,
        "problem": difference.problem,
    }


def _node_json(node: NodeDifference) -> dict[str, Any]:
    return {
        "node": node.node,
        "operator": node.operator,
        "value": node.result.name,
        "type": str(node.result.type),
        "operands": [{"name": name, "type": type_} for name, type_ in node.operands],
        **_difference_json(node.difference),
    }
