"""One page that shows a placement: an explanation in, HTML that needs nothing else out.

The page is `explain.html` with the facts put into it as JSON. Names come from models, so nothing of
them is ever taken for markup: the JSON cannot end its element, and the page writes text only.
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
from graft.byoc.explain_bodies import edges_between
from graft.byoc.explain_layout import NODE_HEIGHT, NODE_WIDTH, layout
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
    """A page of a package with a title and facts put into it."""
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
    """All of the explanation, where to draw its nodes and edges, and sentences on it."""
    maker = {value: n for n, node in enumerate(explanation.nodes) for value in node.outputs}
    edges = edges_between(
        {number: node.inputs for number, node in enumerate(explanation.nodes)},
        maker,
        explanation.bodies,
        {node.name: number for number, node in enumerate(explanation.nodes)},
    )
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
