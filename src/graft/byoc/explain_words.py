"""Sentences about a placement, shared by the terminal and the HTML page. Times that come from a
simulated device are labelled."""

from __future__ import annotations

from graft.base import quantities
from graft.base.quantities import counted
from graft.byoc.contract import HOST_BACKEND
from graft.byoc.explain import BackendFacts, BodyFacts, Explanation, Obstacle
from graft.byoc.explain_flips import NOTHING, Flip, Hint
from graft.byoc.problem import PROVEN

SIMULATED = "(simulated)"


def time_text(seconds: float, simulated: bool = False) -> str:
    """A duration, labelled if it is that of a simulated device."""
    text = quantities.time_text(seconds)
    return f"{text} {SIMULATED}" if simulated else text


def summary(explanation: Explanation) -> str:
    """The backends' shares and the predicted time, in one line."""
    parts = [_share(explanation, backend) for backend in explanation.backends if backend.nodes]
    simulated = any(one.simulated and one.nodes for one in explanation.backends)
    timing = f"predicted {time_text(explanation.predicted, simulated)}"
    alone = next((t for t in explanation.totals if t.scheme == "host-only"), None)
    if alone is not None:
        timing += f", host-only {time_text(alone.predicted)}"
    measured = explanation.totals[0].measured
    if measured is not None:
        timing += f", measured {time_text(measured)}"
    return "; ".join([*parts, timing])


def _share(explanation: Explanation, backend: BackendFacts) -> str:
    if backend.name == HOST_BACKEND:
        return f"host: {counted(backend.nodes, 'node')}"
    share = backend.macs / max(explanation.macs, 1)
    name = f"{backend.name} {SIMULATED}" if backend.simulated else backend.name
    nodes = f"{backend.nodes:,} of {len(explanation.nodes):,} nodes"
    return f"{name}: {nodes}, {share:.1%} of MACs, {counted(backend.regions, 'region')}"


def quality(explanation: Explanation) -> str:
    """How close the plan is proven to be to the best, and whether another one measured faster."""
    sentence = "proven best at these prices"
    if explanation.gap > PROVEN:
        least = time_text(explanation.bound, explanation.simulated)
        sentence = f"within {explanation.gap:.2%} of the best at these prices"
        sentence += f": none takes less than {least}"
    ran = {t.scheme: t.measured for t in explanation.totals if t.measured is not None}
    fastest = min(ran, key=ran.__getitem__, default="")
    if fastest and fastest != explanation.totals[0].scheme:
        sentence += f"; but end to end {fastest} is the fastest, which is what runs"
    return sentence


def flip_text(flip: Flip) -> str:
    """An alternative assignment, without its price."""
    what = flip.nodes[0] if len(flip.nodes) == 1 else " + ".join(flip.nodes[:3])
    if flip.region:
        what = f"all of {flip.region} ({counted(len(flip.nodes), 'node')})"
    elif len(flip.nodes) > 3:
        what += f" + {len(flip.nodes) - 3} more"
    return f"{flip.origin} → {flip.backend}: {what}"


def flip_price(explanation: Explanation, flip: Flip) -> str:
    """The price of an alternative assignment."""
    extra = time_text(abs(flip.extra_seconds), explanation.simulated)
    if flip.extra_seconds < -NOTHING:
        return f"-{extra} by its parts"
    return f"+{extra}" if flip.proven else f"at most +{extra}"


def by_parts_note(explanation: Explanation) -> str:
    """A note on flips that seem to save time; empty if there are none."""
    if all(flip.extra_seconds >= -NOTHING for flip in explanation.flips):
        return ""
    return (
        "minus: cheaper by the prices of its parts; measured as a whole, the chosen plan was the"
        " fastest of those tried"
    )


def hint_text(explanation: Explanation, hint: Hint) -> str:
    """How much cheaper something would have to be for another plan to win."""
    simulated = is_simulated(explanation, hint.backend)
    plan = f"a plan of {counted(hint.regions, 'region')} would be faster"
    if hint.quantity == "launch":
        below = time_text(hint.threshold, simulated)
        now = time_text(hint.now, simulated)
        return f"if a launch on {hint.backend} took less than {below} (now {now}), {plan}"
    share = f"{hint.threshold:.1%}" if hint.threshold < 0.1 else f"{hint.threshold:.0%}"
    limit = f"less than {share} of their current time"
    return f"if transfers to and from {hint.backend} took {limit}, {plan}"


def executions_text(body: BodyFacts) -> str:
    """The executions of a body per inference, and their source."""
    times = "once" if body.executions == 1 else f"{body.executions:.3g} times"
    return f"{times} ({body.source})"


def obstacle_text(obstacle: Obstacle) -> str:
    """A reason that keeps nodes on the host, in one line."""
    nodes, duration = f"{obstacle.nodes:,} × {obstacle.op}", time_text(obstacle.seconds)
    return f"{obstacle.backend} refuses {nodes} ({duration} on the host): {obstacle.reason}"


def is_simulated(explanation: Explanation, backend: str) -> bool:
    return any(item.simulated for item in explanation.backends if item.name == backend)
