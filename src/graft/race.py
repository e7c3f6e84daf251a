"""The race of plans: a placed graph in, the program of the plan that is fastest end to end out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from graft.base.errors import GraftError, UserError
from graft.base.progress import Stage
from graft.byoc.annotate import Pins
from graft.byoc.measure import race
from graft.stages import CompileOptions, Linked, Placed, has_samples, link, lower, sample_inputs


def link_fastest(placed: Placed, options: CompileOptions) -> Linked:
    """Link the plan and its rivals, and keep the fastest that breaks no pin."""
    contenders: Iterable[Linked] = (link(lower(one, options)) for one in placed.contenders)
    if placed.partition is not None and not options.releases:
        contenders = _keeping_pins(contenders, Pins.parse(options.pins))
    return fastest(contenders, options)


def fastest(candidates: Iterable[Linked], options: CompileOptions) -> Linked:
    """The candidate that is fastest end to end, with all times in its plan; the first one, without
    linking others, if they cannot be timed."""
    remaining = iter(candidates)
    first = next(remaining)
    contenders = [first, *remaining] if has_samples(first.graph) else [first]
    inputs = sample_inputs(first.graph) if len(contenders) > 1 else None
    if inputs is None:
        return first
    stage = Stage("running plans end to end")
    options.report(replace(stage, detail=f"{len(contenders)} in turns"))
    runs = {str(n): partial(one.executable, inputs) for n, one in enumerate(contenders)}
    try:
        times = race(runs)
    except GraftError as error:
        options.report(replace(stage, detail=f"not measured: {error}"))
        return first
    best = contenders[int(min(times, key=lambda name: times[name]))]
    plans = [contender.plan for contender in contenders]
    measured = {plan.method: times[str(n)] for n, plan in enumerate(plans) if plan is not None}
    return replace(best, plan=best.plan and replace(best.plan, measured=measured))


def _keeping_pins(contenders: Iterable[Linked], pins: Pins) -> Iterator[Linked]:
    """The contenders that satisfy all pins; an error if none does."""
    problems = []
    is_kept = False
    for contender in contenders:
        problems.append(_broken_pin(contender, pins))
        if not problems[-1]:
            is_kept = True
            yield contender
    if not is_kept:
        raise UserError(
            problems[0],
            hint="loosen the pin; fallback='host' lets the host run what its pin cannot",
        )


def _broken_pin(linked: Linked, pins: Pins) -> str:
    """Why a pin is not satisfied; empty if all are."""
    nodes = {node.output.name: node for node in linked.graph.nodes}
    for demotion in linked.demotions:
        for name in demotion.nodes:
            pin = pins.broken(nodes[name], demotion.backend)
            if pin is not None:
                return (
                    f"the pin '{pin}' cannot hold for %{name} ({nodes[name].op.name}):"
                    f" {demotion.label}: {demotion.reason}"
                )
    return ""
