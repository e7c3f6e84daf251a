"""One page that shows a placement: an explanation in, HTML that needs nothing else out.

The page is `explain.html` with the facts put into it as JSON. Names come from models, so nothing of
them is ever taken for markup: the JSON cannot end its element, and the page writes text only.
"""

from __future__ import annotations

import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

from graft.base.names import LONGEST_LINE, printable
from graft.byoc.explain import Explanation, NodeFacts
from graft.byoc.explain_layout import NODE_HEIGHT, NODE_WIDTH, layout
from graft.byoc.explain_words import (
    by_parts_note,
    flip_price,
    flip_text,
    hint_text,
    is_simulated,
    obstacle_text,
    quality,
    summary,
)

_TITLE, _DATA = "@TITLE@", "@DATA@"
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def to_html(explanation: Explanation) -> str:
    """The whole page."""
    before, rest = _template().split(_TITLE, 1)
    between, after = rest.split(_DATA, 1)
    title = html.escape(printable(explanation.model))
    return "".join((before, title, between, _embedded(_facts(explanation)), after))


@cache
def _template() -> str:
    return files("graft.byoc").joinpath("explain.html").read_text("utf-8")


def _embedded(facts: dict[str, Any]) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(_shown(facts), separators=(",", ":"), allow_nan=False)
    return "".join(_ESCAPES.get(character, character) for character in text)


def _shown(fact: Any) -> Any:
    """Facts whose text can be read for what it is: a bidi mark would turn around what follows."""
    match fact:
        case str():
            return printable(fact, LONGEST_LINE)
        case dict():
            return {key: _shown(value) for key, value in fact.items()}
        case list() | tuple():
            return [_shown(item) for item in fact]
    return fact


def _facts(explanation: Explanation) -> dict[str, Any]:
    maker = {value: n for n, node in enumerate(explanation.nodes) for value in node.outputs}
    edges = list(
        dict.fromkeys(
            (maker[value], number)
            for number, node in enumerate(explanation.nodes)
            for value in node.inputs
            if value in maker
        )
    )
    drawn = layout(len(explanation.nodes), edges)
    return {
        "model": explanation.model,
        "summary": summary(explanation),
        "quality": quality(explanation),
        "simulated": explanation.simulated,
        "size": [drawn.width, drawn.height, NODE_WIDTH, NODE_HEIGHT],
        "gutters": drawn.gutters,
        "backends": [_backend(explanation, number) for number in range(len(explanation.backends))],
        "nodes": [
            _node(explanation, node, point)
            for node, point in zip(explanation.nodes, drawn.nodes, strict=True)
        ],
        "edges": [[*edge, bends] for edge, bends in zip(edges, drawn.bends, strict=True)],
        "regions": _regions(explanation),
        "totals": [
            {
                "scheme": total.scheme,
                "seconds": total.predicted,
                "measured": total.measured,
                "regions": total.regions,
                "simulated": explanation.simulated and total.regions > 0,
            }
            for total in explanation.totals
        ],
        "flips": [
            {
                "text": flip_text(flip),
                "price": flip_price(explanation, flip),
                "node": flip.nodes[0],
                "region": flip.region,
            }
            for flip in explanation.flips
        ],
        "hints": [
            *filter(None, [by_parts_note(explanation)]),
            *(hint_text(explanation, hint) for hint in explanation.hints),
        ],
        "memory": [f"At its fullest {one.text}." for one in explanation.memory],
        "obstacles": [obstacle_text(obstacle) for obstacle in explanation.obstacles],
        "demotions": [
            f"{one.label} went back to the host: {one.reason}" for one in explanation.demotions
        ],
    }


def _backend(explanation: Explanation, number: int) -> dict[str, Any]:
    backend = explanation.backends[number]
    return {
        "name": backend.name,
        "version": backend.version,
        "simulated": backend.simulated,
        "nodes": backend.nodes,
        "macs": backend.macs,
        "parts": [backend.execution, backend.transfers, backend.launches],
    }


def _node(explanation: Explanation, node: NodeFacts, point: tuple[float, float]) -> dict[str, Any]:
    return {
        "name": node.name,
        "op": node.op,
        "type": node.type,
        "backend": node.backend,
        "region": node.region,
        "macs": node.macs,
        "why": node.why,
        "at": point,
        "refusals": [[one.backend, one.pattern, one.reason] for one in node.refusals],
        "alternatives": [
            {
                "backend": one.backend,
                "pattern": one.pattern,
                "nodes": one.nodes,
                "seconds": one.seconds,
                "source": one.source,
                "chosen": one.chosen,
                "simulated": is_simulated(explanation, one.backend),
            }
            for one in node.alternatives
        ],
    }


def _regions(explanation: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "label": region.label,
            "backend": region.backend,
            "nodes": len(region.nodes),
            "macs": region.macs,
            "parts": [region.execution, region.transfers, region.launch],
            "source": region.source,
            "bytes": [region.input_bytes, region.output_bytes],
            "simulated": is_simulated(explanation, region.backend),
        }
        for region in explanation.regions
    ]
