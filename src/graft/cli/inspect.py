"""`graft inspect`: a model in, a summary out that ends with whether Graft can import it."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from graft.base.dims import bare_symbol
from graft.base.errors import GraftError
from graft.base.quantities import counted, number, size_text
from graft.cli.file_facts import FileFacts, summary_lines
from graft.cli.options import add_strict_import_argument
from graft.cli.report import (
    INDENT,
    Block,
    Indented,
    dim_json,
    dim_text,
    graph_size,
    histogram,
    print_result,
    section,
    table,
)
from graft.cli.runnable import is_compiled, refuse_options
from graft.cli.survey import Obstacle, Parameters, obstacles, operators, parameters
from graft.cli.terminal import status
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.registry import key
from graft.frontends.onnx.types import type_from_onnx
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Work
from graft.ir.printer import to_text
from graft.ir.types import dims_of, symbols_in
from graft.ops.control import arithmetic
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize

DESCRIPTION = """\
Summarise an ONNX model: inputs and outputs, operators, parameters, arithmetic,
dynamic dims, and the result of importing it. Exit code 0 if Graft can import it;
otherwise 1, with every node that prevents it. For a .graft file: its origin, target
machine, placement, and what loading it needs; exit code 0 if it can run here."""
EXAMPLES = """\
  graft inspect model.onnx                    a summary
  graft inspect model.onnx --text | less      the imported graph as text
  graft inspect model.onnx --json             the summary for programs
  graft inspect model.graft                   what a compiled file contains and needs
"""

# How many of the dims that only the data decide are listed.
_MOST_FOUND = 12


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the model."""

    name: str
    type: str
    dynamic: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """The imported model, and the result of passes and fusion."""

    graph: Graph
    work: Work
    optimized: Graph
    fused: Graph

    @property
    def from_data(self) -> dict[str, Node]:
        """Data-dependent dims, and the first node that gives each of them."""
        result: dict[str, Node] = {}
        input_symbols = self.graph.input_symbols
        for node in self.graph.nodes:
            for value in node.outputs:
                for name in symbols_in(value.type) - input_symbols:
                    result.setdefault(name, node)
        return dict(sorted(result.items(), key=lambda item: (len(item[0]), item[0])))


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts that `graft inspect` reports."""

    path: Path
    source: Source
    operators: Counter[str]
    parameters: Parameters
    inputs: Sequence[Argument]
    outputs: Sequence[Argument]
    imported: Imported | None
    obstacles: Sequence[Obstacle]
    error: GraftError | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="the ONNX or .graft file")
    add_strict_import_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="print only the imported graph")
    form.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    if is_compiled(options.model):
        return _inspect_file(options)
    with status(f"reading {options.model.name}"):
        source = read_model(options.model, strict=options.strict_import)
    if options.text:
        with status(f"importing {options.model.name}"):
            text = to_text(import_source(source)).text
        print(text, end="")
        return 0
    with status(f"inspecting {options.model.name}"):
        summary = summarize(options.model, source)
    print_result(options.json, _json(summary), _text(summary))
    return 0 if summary.error is None else 1


def _inspect_file(options: argparse.Namespace) -> int:
    refuse_options({"--text": options.text, "--strict-import": options.strict_import})
    facts = FileFacts.of(options.model)
    print_result(options.json, facts.to_json(), summary_lines(facts))
    return 0 if not facts.problem else 1


def summarize(path: Path, source: Source) -> Summary:
    """Import the model and collect facts; a failed import is one of them."""
    imported, error = _imported(source)
    model = source.model
    weight_names = {tensor.name for tensor in model.graph.initializer} | source.seeded.keys()
    inputs = [_declared(info) for info in model.graph.input if info.name not in weight_names]
    outputs = [_declared(info) for info in model.graph.output]
    if imported is not None:
        graph = imported.graph
        inputs = [_argument(value.name, value) for value in graph.inputs]
        outputs = [
            _argument(name, value)
            for name, value in zip(graph.output_names, graph.outputs, strict=True)
        ]
    return Summary(
        path=path,
        source=source,
        operators=operators(model),
        parameters=parameters(source),
        inputs=inputs,
        outputs=outputs,
        imported=imported,
        obstacles=obstacles(source) if error is not None else (),
        error=error,
    )


def _imported(source: Source) -> tuple[Imported | None, GraftError | None]:
    try:
        graph = import_source(source)
        optimized = optimize(graph)
        return Imported(graph, arithmetic(graph), optimized, group_fusion(optimized)), None
    except GraftError as error:
        return None, error


def _argument(name: str, value: Value) -> Argument:
    dynamic = [str(dim) for dim in dims_of(value.type) if not isinstance(dim, int)]
    return Argument(name, str(value.type), tuple(dict.fromkeys(dynamic)))


def _declared(info: onnx.ValueInfoProto) -> Argument:
    """An argument of a model that was not imported."""
    try:
        return _argument(info.name, Value(info.name, type_from_onnx(info.type)))
    except GraftError as error:
        return Argument(info.name, error.message, ())


def _text(summary: Summary) -> Iterator[Block]:
    yield str(summary.path)
    yield from map(Indented, table(_facts(summary)))
    yield from section("Inputs", _arguments(summary.inputs))
    yield from section("Outputs", _arguments(summary.outputs))
    yield from section("ONNX operators", histogram(summary.operators))
    if summary.imported is not None:
        yield from _outcome(summary.imported)
    if summary.obstacles:
        count = counted(len(summary.obstacles), "node")
        yield from section(f"What stands in the way: {count}", _obstacle_lines(summary.obstacles))
    if summary.error is not None:
        yield from section("Graft cannot import it", str(summary.error).split("\n"))


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    model, seeded = summary.source.model, summary.source.seeded
    seeded_bytes = sum(weight.nbytes for weight in seeded.values())
    note = f", and {size_text(seeded_bytes)} of weights drawn from seeds" if seeded else ""
    yield "file size", size_text(summary.path.stat().st_size) + note
    yield "format", f"ONNX IR version {model.ir_version}, {', '.join(_opset_texts(model))}"
    yield "producer", f"{model.producer_name} {model.producer_version}".strip() or "not given"
    yield "graph", f"{model.graph.name or 'without a name'}, {_node_count(summary)}"
    totals = summary.parameters
    yield "parameters", f"{number(totals.count)} ({size_text(totals.bytes)})"


def _node_count(summary: Summary) -> str:
    here, everywhere = len(summary.source.model.graph.node), summary.operators.total()
    inside = f" and {number(everywhere - here)} in nested graphs or functions"
    return f"{counted(here, 'node')}{inside if everywhere > here else ''}"


def _opset_texts(model: onnx.ModelProto) -> Iterator[str]:
    for opset in model.opset_import:
        domain = f" of {opset.domain}" if opset.domain not in ("", "ai.onnx") else ""
        yield f"opset {opset.version}{domain}"


def _arguments(arguments: Sequence[Argument]) -> list[Block]:
    rows = [
        (one.name, one.type, f"dynamic: {', '.join(one.dynamic)}" if one.dynamic else "")
        for one in arguments
    ]
    return table(rows) or ["none"]


def _outcome(imported: Imported) -> Iterator[Block]:
    graph = imported.graph
    yield from section("Dynamic dims", _dim_table(imported))
    work = [
        ("multiply-accumulates", _separated(dim_text(imported.work.macs))),
        ("other operations", _separated(dim_text(imported.work.flops))),
    ]
    yield from section("Arithmetic of one inference", table(work))
    counts = Counter(node.op.name for node in graph.walk())
    yield from section("Graft operators", histogram(counts))
    stages = [
        ("imported", graph_size(graph)),
        ("after the passes", graph_size(imported.optimized)),
        ("after fusion", graph_size(imported.fused)),
    ]
    yield from section("Graft can import it", table(stages))


def _dim_table(imported: Imported) -> list[Block]:
    axes = _dim_places(imported.graph)
    rows = [(name, f"given by {', '.join(where)}") for name, where in axes.items()]
    data_symbols = imported.from_data
    rows += [
        (name, f"found by {_shown(node)}")
        for name, node in list(data_symbols.items())[:_MOST_FOUND]
    ]
    lines = table(rows)
    if len(data_symbols) > _MOST_FOUND:
        lines.append(f"and {len(data_symbols) - _MOST_FOUND} more that only the data decide")
    return lines or ["none"]


def _shown(node: Node) -> str:
    """A node by its ONNX name and operator."""
    location = node.location
    return node.op.name if location is None else f"{location.kind} '{location.node}'"


def _separated(text: str) -> str:
    """The text with separators between thousands in numbers, but not in names."""
    return re.sub(r"(?<![\w\",])\d{4,}(?!\w)", lambda found: number(int(found[0])), text)


def _dim_places(graph: Graph) -> dict[str, list[str]]:
    """The axes of inputs that give each dim."""
    axes: dict[str, list[str]] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(dims_of(value.type)):
            name = bare_symbol(dim)
            if name is not None:
                axes.setdefault(name, []).append(f"axis {axis} of {value.name}")
    return axes


def _obstacle_lines(obstacles: Iterable[Obstacle]) -> Iterator[str]:
    """Nodes that prevent the import, grouped by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in obstacles:
        groups.setdefault((key(one.domain, one.operator), one.reason), []).append(one.location.node)
    for (operator, reason), nodes in groups.items():
        yield f"{operator}: {reason}"
        yield from (f"{INDENT}at {node}" for node in nodes)


def _json(summary: Summary) -> dict[str, Any]:
    model = summary.source.model
    return {
        "model": str(summary.path),
        "file_bytes": summary.path.stat().st_size,
        "ir_version": model.ir_version,
        "opsets": {opset.domain or "ai.onnx": opset.version for opset in model.opset_import},
        "producer": {"name": model.producer_name, "version": model.producer_version},
        "graph": model.graph.name,
        "nodes": len(model.graph.node),
        "operators": dict(summary.operators.most_common()),
        "parameters": {"count": summary.parameters.count, "bytes": summary.parameters.bytes},
        "inputs": list(map(asdict, summary.inputs)),
        "outputs": list(map(asdict, summary.outputs)),
        "importable": summary.error is None,
        "imported": None if summary.imported is None else _imported_json(summary.imported),
        "obstacles": [
            {
                "operator": obstacle.operator,
                "domain": obstacle.domain or "ai.onnx",
                "node": obstacle.location.node,
                "reason": obstacle.reason,
            }
            for obstacle in summary.obstacles
        ],
        "error": None if summary.error is None else _error_json(summary.error),
    }


def _imported_json(imported: Imported) -> dict[str, Any]:
    graph = imported.graph
    return {
        "operators": dict(Counter(node.op.name for node in graph.walk()).most_common()),
        "macs": dim_json(imported.work.macs),
        "flops": dim_json(imported.work.flops),
        "dims": _dim_places(graph),
        "dims_from_data": list(imported.from_data),
        "nodes": len(graph.nodes),
        "nodes_after_passes": len(imported.optimized.nodes),
        "nodes_after_fusion": len(imported.fused.nodes),
    }


def _error_json(error: GraftError) -> dict[str, Any]:
    location = error.location
    return {
        "message": error.message,
        "node": None if location is None else location.node,
        "operator": None if location is None else location.kind,
        "hint": error.hint,
    }
