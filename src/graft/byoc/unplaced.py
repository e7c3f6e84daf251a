"""Why a node has nowhere to run: candidates, prices and pins in, the cause in words out.

Only nodes that a pin keeps off the host can be without a place. The cause is what keeps the
backends that the pins allow from running the node, not that the pins keep it off the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.byoc.annotate import Pins
from graft.byoc.candidates import Candidate, Candidates
from graft.byoc.contract import HOME
from graft.ir.graph import Node


def unplaced(found: Candidates, costs: Mapping[Candidate, object]) -> list[Node]:
    """The nodes that no candidate with a price covers."""
    covered = {node for candidate in costs for node in candidate.nodes}
    return [node for node in found.nodes if node not in covered]


def why_unplaced(
    node: Node,
    found: Candidates,
    failures: Mapping[Candidate, str],
    backends: Sequence[str],
    pins: Pins,
) -> str:
    """The cause, for a message."""
    shown = " and ".join(f"'{pin}'" for pin in pins.of(node))
    subject = f"the pin {shown} leaves" if len(pins.of(node)) == 1 else f"the pins {shown} leave"
    allowed = [name for name in (*backends, HOME) if pins.verdict(node, name) is None]
    if not allowed:
        return f"{subject} it no backend"
    causes = [_cause(node, name, found, failures) for name in allowed]
    return f"{subject} it to {' or '.join(allowed)}; {'; '.join(causes)}"


def _cause(node: Node, backend: str, found: Candidates, failures: Mapping[Candidate, str]) -> str:
    """What keeps a backend from running a node: what happened when it was tried, or the refusals
    of matches that hold the node, or that there are none."""
    for candidate, reason in failures.items():
        if candidate.backend == backend and node in candidate.nodes:
            return f"{backend} accepts {candidate.label} and does not run it: {reason}"
    refused = [item for item in found.refused_matches.get(node, ()) if item.backend == backend]
    if refused:
        return f"{backend} refuses it: {'; '.join(dict.fromkeys(r.reason for r in refused))}"
    refused = [item for item in found.refusals.get(node, ()) if item.backend == backend]
    reasons = dict.fromkeys(item.reason for item in refused)
    return f"no pattern of {backend} fits: {'; '.join(reasons) or 'it has none'}"
