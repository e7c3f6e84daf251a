"""A placement on a terminal: an explanation in, a report out."""

from __future__ import annotations

from collections.abc import Iterator

from graft.base.names import shortened
from graft.byoc.contract import HOME
from graft.byoc.explain import Explanation, NodeFacts
from graft.byoc.explain_words import (
    SIMULATED,
    by_parts_note,
    flip_price,
    flip_text,
    hint_text,
    is_simulated,
    obstacle_text,
    quality,
    summary,
    time_text,
)
from graft.cli.report import Block, Indented, counted, number, paragraph, section, size_text, table
from graft.cli.terminal import GOOD, styled

_MOST_REGIONS = 20
_MOST_NODES = 6  # of a region, by name
_LONGEST_NAME = 44


def page(found: Explanation) -> Iterator[Block]:
    """The whole story, the summary first."""
    yield found.model
    yield Indented(paragraph(summary(found)))
    yield from section("Where the time goes", _shares(found))
    yield from section("Plans", [*_totals(found), f"the chosen one is {quality(found)}"])
    if found.regions:
        yield from section("Regions", _regions(found))
    if found.memory:
        lines = [f"at its fullest {one.text}" for one in found.memory]
        yield from section("Memory of devices", map(paragraph, lines))
    if found.demotions:
        lines = [f"{one.label} went back to the host: {one.reason}" for one in found.demotions]
        yield from section("Not trusted", map(paragraph, lines))
    if found.flips or found.hints:
        yield from section("What would change this", _changes(found))
    if found.obstacles:
        lines = [obstacle_text(one) for one in found.obstacles]
        yield from section("What keeps nodes on the host", map(paragraph, lines))


def _shares(found: Explanation) -> list[Block]:
    header = ("backend", "nodes", "MACs", "regions", "execution", "transfers", "launches", "in all")
    rows = []
    for backend in found.backends:
        parts = (backend.execution, backend.transfers, backend.launches, backend.seconds)
        rows.append(
            (
                _marked(backend.name, backend.simulated),
                number(backend.nodes),
                f"{backend.macs / max(found.macs, 1):.1%}",
                "-" if backend.name == HOME else number(backend.regions),
                *(time_text(part) for part in parts),
            )
        )
    return table(rows, header, right=range(1, 8))


def _marked(name: str, simulated: bool) -> str:
    return f"{name} {SIMULATED}" if simulated else name


def _totals(found: Explanation) -> list[Block]:
    header = ("plan", "predicted", "measured", "regions", "off the host", "MACs")
    rows = []
    for total in found.totals:
        simulated = found.simulated and total.regions > 0
        rows.append(
            (
                _marked(total.scheme, simulated),
                time_text(total.predicted),
                "-" if total.measured is None else time_text(total.measured),
                number(total.regions),
                f"{number(total.nodes)} of {number(len(found.nodes))}",
                f"{total.macs / max(found.macs, 1):.1%}",
            )
        )
    return table(rows, header, right=range(1, 6))


def _regions(found: Explanation) -> list[Block]:
    header = ("region", "nodes", "MACs", "in", "out", "takes", "prices", "which")
    rows = [
        (
            _marked(region.label, is_simulated(found, region.backend)),
            number(len(region.nodes)),
            f"{region.macs / max(found.macs, 1):.1%}",
            size_text(region.input_bytes),
            size_text(region.output_bytes),
            time_text(region.seconds),
            region.source,
            _names(found, region.label),
        )
        for region in found.regions[:_MOST_REGIONS]
    ]
    lines = table(rows, header, right=range(1, 6))
    if len(found.regions) > _MOST_REGIONS:
        left = len(found.regions) - _MOST_REGIONS
        lines.append(f"and {counted(left, 'more region')}, which --json and --html show")
    return lines


def _names(found: Explanation, region: str) -> str:
    """The nodes of a region, a few if they are many: ONNX's, where there are such, for one of those
    may be several here."""
    nodes = [node for node in found.nodes if node.region == region]
    names = list(dict.fromkeys(node.onnx or node.name for node in nodes))
    shown = ", ".join(shortened(name, _LONGEST_NAME) for name in names[:_MOST_NODES])
    left = len(names) - _MOST_NODES
    return f"{shown} and {left:,} more" if left > 0 else shown


def _changes(found: Explanation) -> list[Block]:
    rows = [(flip_price(found, flip), flip_text(flip)) for flip in found.flips]
    notes = [by_parts_note(found), *(hint_text(found, hint) for hint in found.hints)]
    return [*table(rows, right=(0,)), *(paragraph(text) for text in notes if text)]


def node_lines(found: Explanation, node: NodeFacts) -> Iterator[Block]:
    """One node in full."""
    yield node.name
    where = f"{node.backend}, in {node.region}" if node.region else node.backend
    beside = [one.name for one in found.nodes if node.onnx and one.onnx == node.onnx]
    rows = (
        *((("of ONNX's", f"{node.onnx}, as {', '.join(beside)}"),) if len(beside) > 1 else ()),
        ("operator", node.op),
        ("result", node.type),
        ("makes", ", ".join(node.outputs)),
        ("MACs", number(node.macs)),
        ("runs on", where),
    )
    yield from map(Indented, table(rows))
    yield Indented(paragraph(node.why))
    header = ("backend", "as", "nodes", "takes", "prices", "")
    options = [
        (
            one.backend,
            shortened(one.pattern, _LONGEST_NAME),
            number(one.nodes),
            time_text(one.seconds, is_simulated(found, one.backend)),
            one.source,
            styled("chosen", GOOD) if one.chosen else "",
        )
        for one in node.alternatives
    ]
    yield from section("Alternatives", table(options, header, right=(2, 3)))
    if node.refusals:
        lines = [f"{one.backend} {one.pattern}".rstrip() for one in node.refusals]
        told = [f"{who}: {one.reason}" for who, one in zip(lines, node.refusals, strict=True)]
        yield from section("Refusals", map(paragraph, told))
    moves = [flip for flip in found.flips if node.name in flip.nodes]
    if moves:
        told = [f"{flip_text(flip)}: {flip_price(found, flip)}" for flip in moves]
        yield from section("What would change this", map(paragraph, told))
