"""Candidates with prices -> the problem of placement, in numbers.

Forms: a backend's tensors live in a memory space, in a layout and dtype of its wish. Backends that
agree on all three exchange values for nothing; others by way of the host's memory, at the price of
the transfer and of the conversion. The host keeps images in a blocked layout of its own, so that
they are rearranged whenever they leave it, but for the inputs and outputs of the whole graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.byoc import boundary
from graft.byoc.candidates import Candidate, Candidates
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Limits
from graft.byoc.price import peak_rates
from graft.byoc.problem import Flow, Option, Problem, Site
from graft.byoc.region import is_constant
from graft.byoc.sizes import constant_bytes, value_bytes
from graft.ir.graph import Node, Value
from graft.runtime.regions import HOST_SPACE

# Seconds to leave native code for a region and come back, whatever the backend.
HOST_STEP = 2e-5

Form = tuple[str, str, DType]
_HOST_FORM: Form = (HOST_SPACE, "blocked", DType.FLOAT32)


@dataclass(frozen=True)
class Priced:
    """A candidate and what it takes."""

    candidate: Candidate
    cost: Cost


@dataclass(frozen=True)
class Placement:
    """The problem, and what its numbers stand for."""

    candidates: Candidates
    priced: tuple[Priced, ...]  # by number of option
    backends: tuple[Backend, ...]  # of the sites after the host
    problem: Problem


def placement_of(
    candidates: Candidates,
    prices: Mapping[Candidate, Cost],
    backends: Sequence[Backend],
    host: Limits,
) -> Placement:
    """The problem to choose from; candidates without a price are left out.

    What the `host` reads and writes in a second is what it rearranges or converts tensors at."""
    forms: list[Form] = [_HOST_FORM]
    sites = [Site(HOST_BACKEND)]
    for backend in backends:
        form = form_of(backend.limits)
        if form not in forms:
            forms.append(form)
        limits = backend.limits
        sites.append(
            Site(
                backend.name,
                limits.launch_seconds + HOST_STEP,
                forms.index(form),
                limits.memory_bytes,
                "" if limits.space == HOST_SPACE else limits.space,
            )
        )
    number = {node: index for index, node in enumerate(candidates.nodes)}
    site_index = {site.name: index for index, site in enumerate(sites)}
    priced = tuple(
        Priced(candidate, prices[candidate])
        for candidate in candidates.candidates
        if candidate in prices
    )
    options = tuple(
        Option(
            site_index[item.candidate.backend],
            tuple(number[node] for node in item.candidate.nodes),
            item.cost.seconds,
            item.cost.workspace,
        )
        for item in priced
    )
    limits_of = [host, *(_limits_with(backends, form) for form in forms[1:])]
    held = tuple(constant_bytes(node, candidates.graph) for node in candidates.nodes)
    flows = tuple(_flows(candidates, number, limits_of))
    problem = Problem(tuple(sites), len(candidates.nodes), options, flows, held)
    return Placement(candidates, priced, tuple(backends), problem)


def form_of(limits: Limits) -> Form:
    """What values look like to a backend."""
    return limits.space, limits.layout, limits.dtype


def _limits_with(backends: Sequence[Backend], form: Form) -> Limits:
    return next(backend.limits for backend in backends if form_of(backend.limits) == form)


def _flows(
    candidates: Candidates, number: Mapping[Node, int], limits: Sequence[Limits]
) -> list[Flow]:
    graph, host, others = candidates.graph, limits[0], limits[1:]
    returned = set(graph.outputs)
    flows = []
    for value in graph.values:
        if is_constant(value, graph):
            continue
        producer = graph.producers.get(value)
        consumers = tuple(number[user] for user in graph.users.get(value, ()))
        leaves = value in returned
        if producer is None and not consumers:
            continue
        inner = [carry_seconds(value, form, host) for form in others]
        outer = [carry_seconds(value, form, host, in_rows=True) for form in others]
        flows.append(
            Flow(
                None if producer is None else number[producer],
                consumers,
                bring=(0.0, *(outer if producer is None else inner)),
                fetch=(0.0, *(outer if leaves and not consumers else inner)),
                leaves=leaves,
                sizes=(value_bytes(value), *(carried_bytes(value, form) for form in others)),
                name=value.name,
            )
        )
    return flows


def carry_seconds(value: Value, limits: Limits, host: Limits, in_rows: bool = False) -> float:
    """What it takes to bring a value from the host into the form of a backend, or back.

    `in_rows` says that it is row-major on the host, as the inputs and outputs of models are. What
    converts it wants it row-major, and the bus carries it as converted."""
    size = value_bytes(value)
    seconds = 0.0
    if limits.space != HOST_SPACE:
        seconds += limits.latency + carried_bytes(value, limits) / limits.bytes_per_second
    passes = int(boundary.is_image(value) and not in_rows) + converts(value, limits)
    return seconds + passes * peak_rates(host).seconds(0, 2 * size)


def carried_bytes(value: Value, limits: Limits) -> int:
    """Bytes of a value in the dtype that a backend wants it in."""
    dtype = boundary.form_of(value, limits).dtype
    size = value_bytes(value)
    return size if dtype is None else size * dtype.bits // value.dtype.bits


def too_large(
    candidates: Candidates, costs: Mapping[Candidate, Cost], backends: Sequence[Backend]
) -> dict[Candidate, str]:
    """Why candidates can never run: what one of their nodes reads and writes, their constants and
    their workspace are more than the memory of the device."""
    limits = {backend.name: backend.limits for backend in backends}
    reasons: dict[Candidate, str] = {}
    for candidate, cost in costs.items():
        room = limits[candidate.backend].memory_bytes if candidate.backend in limits else None
        if room is None:
            continue
        constants = sum(constant_bytes(node, candidates.graph) for node in candidate.nodes)
        for node in candidate.nodes:
            values = [
                value
                for value in dict.fromkeys((*node.args, *node.outputs))
                if not is_constant(value, candidates.graph)
            ]
            sizes = {v.name: carried_bytes(v, limits[candidate.backend]) for v in values}
            total = constants + cost.workspace + sum(sizes.values())
            if total > room:
                parts = [f"{size:,} of %{name}" for name, size in sizes.items()]
                parts += [f"{constants:,} of constants"] if constants else []
                parts += [f"{cost.workspace:,} of workspace"] if cost.workspace else []
                reasons[candidate] = (
                    f"it needs {total:,} of {room:,} bytes of memory: {', '.join(parts)}"
                )
                break
    return reasons


def converts(value: Value, limits: Limits) -> bool:
    """Whether a value crosses the border of a region in another layout or dtype."""
    return boundary.form_of(value, limits) != boundary.HOST_FORM
