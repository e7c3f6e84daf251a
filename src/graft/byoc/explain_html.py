"""A self-contained HTML page that shows a placement.

The page is `explain.html` with the facts inserted as JSON. Names come from models and are never
interpreted as markup: the JSON cannot end its element, and the page only writes text nodes.
"""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from graft.base.names import LONGEST_LINE, printable
from graft.byoc.explain import Explanation
from graft.byoc.explain_layout import NODE_HEIGHT, NODE_WIDTH, Edge, layout
from graft.byoc.explain_words import (
    by_parts_note,
    executions_text,
    flip_price,
    flip_text,
    hint_text,
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
    return filled_page("graft.byoc", "explain.html", explanation.model, _facts(explanation))


def filled_page(package: str, name: str, title: str, facts: dict[str, Any]) -> str:
    """A page of a package with a title and facts inserted."""
    before, rest = _template(package, name).split(_TITLE, 1)
    between, after = rest.split(_DATA, 1)
    escaped = html.escape(printable(title))
    return "".join((before, escaped, between, _script_json(facts), after))


@cache
def _template(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text("utf-8")


def _script_json(facts: dict[str, Any]) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(_shown(facts), separators=(",", ":"), allow_nan=False)
    return "".join(_ESCAPES.get(character, character) for character in text)


def _shown(fact: Any) -> Any:
    """Facts with printable text: a bidirectional mark would reverse the text after it."""
    match fact:
        case str():
            return printable(fact, LONGEST_LINE)
        case dict():
            return {key: _shown(value) for key, value in fact.items()}
        case list() | tuple():
            return [_shown(item) for item in fact]
    return fact


def _facts(explanation: Explanation) -> dict[str, Any]:
    """The explanation, coordinates of its nodes and edges, and its sentences."""
    edges = edges_of(explanation)
    positions = layout(len(explanation.nodes), edges)
    return {
        **asdict(explanation),
        "simulated": explanation.simulated,
        "size": [positions.width, positions.height, NODE_WIDTH, NODE_HEIGHT],
        "gutters": positions.gutters,
        "points": positions.nodes,
        "edges": [[*edge, bends] for edge, bends in zip(edges, positions.bends, strict=True)],
        "words": {
            "summary": summary(explanation),
            "quality": quality(explanation),
            "flips": [[flip_text(one), flip_price(explanation, one)] for one in explanation.flips],
            "hints": [
                *filter(None, [by_parts_note(explanation)]),
                *(hint_text(explanation, hint) for hint in explanation.hints),
            ],
            "obstacles": list(map(obstacle_text, explanation.obstacles)),
            "bodies": [[body.name, executions_text(body)] for body in explanation.bodies],
        },
    }


def edges_of(explanation: Explanation) -> list[Edge]:
    """Pairs of producer and reader, by number. Bodies read the operands of their nodes, and these
    read the results of the bodies."""
    numbers = {node.name: number for number, node in enumerate(explanation.nodes)}
    makers = {value: number for number, n in enumerate(explanation.nodes) for value in n.outputs}
    stands_for = dict(pair for body in explanation.bodies for pair in body.operands)

    def maker(value: str) -> int | None:
        while value in stands_for:
            value = stands_for[value]
        return makers.get(value)

    reads = [(value, numbers[node.name]) for node in explanation.nodes for value in node.inputs]
    reads += [(value, numbers[body.node]) for body in explanation.bodies for value in body.results]
    pairs = ((maker(value), number) for value, number in reads)
    return list(dict.fromkeys((one, number) for one, number in pairs if one is not None))
