"""Candidates with prices -> the placement problem in numbers.

Forms: a backend's tensors are in a memory space, a layout and a dtype. Backends with equal forms
exchange values for free; others through the host's memory, at the cost of transfer and conversion.
The host keeps images in a blocked layout of its own, so they are also rearranged, except for inputs
and outputs of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.byoc import boundary
from graft.byoc.candidates import Candidate, Candidates
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Limits
from graft.byoc.price import peak_rates
from graft.byoc.problem import HOST, Flow, Option, Problem, Site
from graft.byoc.rows import Rows
from graft.byoc.scopes import Scope, captures_of
from graft.byoc.sizes import constant_bytes, value_bytes
from graft.ir.graph import Node, Value
from graft.ir.types import TensorType
from graft.runtime.regions import HOST_SPACE

Form = tuple[str, str, DType]
_HOST_FORM: Form = (HOST_SPACE, "blocked", DType.FLOAT32)


@dataclass(frozen=True)
class PricedCandidate:
    """A candidate and its cost."""

    candidate: Candidate
    cost: Cost


@dataclass(frozen=True)
class Placement:
    """The problem, and the objects that its numbers stand for."""

    candidates: Candidates
    priced: tuple[PricedCandidate, ...]  # by number of option
    backends: tuple[Backend, ...]  # of the sites after the host
    problem: Problem


def placement_of(
    candidates: Candidates,
    prices: Mapping[Candidate, Cost],
    backends: Sequence[Backend],
    host: Limits,
) -> Placement:
    """The placement problem; candidates without a price are left out.

    `host` gives the rate at which tensors are converted and rearranged, and the time to leave
    native code for a region and return, which is added to each region's launch."""
    number = {node: index for index, node in enumerate(candidates.nodes)}
    priced = tuple(
        PricedCandidate(candidate, prices[candidate])
        for candidate in candidates.candidates
        if candidate in prices
    )
    by_rows = {item.candidate.backend for item in priced if item.candidate.rows}
    pairs = [(one.limits, False) for one in backends]
    pairs += [(one.limits, True) for one in backends if one.name in by_rows]
    limits_by_form = {form_of(*pair): pair[0] for pair in reversed(pairs)}
    forms = list(dict.fromkeys([_HOST_FORM, *(form_of(*pair) for pair in pairs)]))
    sites = _sites(candidates, priced, backends, forms, host.launch_seconds)
    site_index = {key: index for index, key in enumerate(sites)}
    options = tuple(
        Option(
            site_index.get(_site_key(candidates, item.candidate), HOST),
            tuple(number[node] for node in item.candidate.nodes),
            item.cost.seconds,
            item.cost.workspace,
        )
        for item in priced
    )
    limits_of = [host, *(limits_by_form[form] for form in forms[1:])]
    constants = tuple(
        constant_bytes(node, scope.graph) for node, scope in candidates.scope_of.items()
    )
    captures = _captures(candidates, number, limits_of[1:])
    scopes = candidates.scopes
    flows = [flow for one in scopes for flow in _flows(one, number, limits_of, captures)]
    if any(site.capacity is not None for site in sites.values()):
        flows += _order(candidates, number, len(forms))
    problem = Problem(tuple(sites.values()), len(number), options, tuple(flows), constants)
    return Placement(candidates, priced, tuple(backends), problem)


_SiteKey = tuple[str, Scope | None, Rows | None]


def _site_key(candidates: Candidates, candidate: Candidate) -> _SiteKey:
    return candidate.backend, candidates.scope_of[candidate.nodes[0]], candidate.rows


def _sites(
    candidates: Candidates,
    priced: Sequence[PricedCandidate],
    backends: Sequence[Backend],
    forms: Sequence[Form],
    host_seconds: float,
) -> dict[_SiteKey, Site]:
    """The host, and a site for each backend, scope and blocks of rows with candidates of them: a
    region lies within one scope, and is launched in each of its executions, for each block."""
    keys = dict.fromkeys(_site_key(candidates, item.candidate) for item in priced)
    sites: dict[_SiteKey, Site] = {(HOST_BACKEND, None, None): Site(HOST_BACKEND)}
    for scope in candidates.scopes:
        for backend in backends:
            limits, here = backend.limits, (backend.name, scope)
            blocks = [key[2] for key in keys if key[:2] == here]
            for rows in dict.fromkeys([*([None] if scope.parent is None else []), *blocks]):
                seconds = limits.launch_seconds * (1 if rows is None else rows.calls)
                sites[*here, rows] = Site(
                    backend.name,
                    scope.executions.count * (seconds + host_seconds),
                    forms.index(form_of(limits, rows is not None)),
                    limits.memory_bytes,
                    "" if limits.space == HOST_SPACE else limits.space,
                )
    return sites


def form_of(limits: Limits, in_blocks: bool = False) -> Form:
    """The form of values on a device. Regions in blocks of rows read and write the host's memory,
    so that they pass no values to others in that of the device."""
    is_apart = in_blocks and limits.space != HOST_SPACE
    space = f"{limits.space} in blocks" if is_apart else limits.space
    return space, limits.layout, limits.dtype


@dataclass(frozen=True)
class _Captures:
    """Values that loops and scans capture: their readers in bodies, and the bodies' inputs that
    stand for them. A device gets them once for all iterations, so that each is one value."""

    readers: Mapping[Value, Sequence[int]]
    inputs: frozenset[Value]


def _captures(
    candidates: Candidates, number: Mapping[Node, int], others: Sequence[Limits]
) -> _Captures:
    readers: dict[Value, list[int]] = {}
    sources: dict[Value, Value] = {}  # inputs of bodies -> what they are in an outer scope
    for scope in candidates.scopes:
        pairs = () if scope.owner is None else captures_of(scope.owner, scope.graph)
        for inner, outer in pairs:
            if _is_kept(inner, outer, others):
                sources[inner] = sources.get(outer, outer)
                users = scope.graph.users.get(inner, ())
                readers.setdefault(sources[inner], []).extend(number[user] for user in users)
    return _Captures(readers, frozenset(sources))


def _is_kept(inner: Value, outer: Value, others: Sequence[Limits]) -> bool:
    """Whether a device keeps a capture over iterations: it has a static type, and is not converted
    in the body."""
    is_static = isinstance(inner.type, TensorType) and inner.type.is_static
    return is_static and inner.type == outer.type and not any(converts(inner, o) for o in others)


def _flows(
    scope: Scope, number: Mapping[Node, int], limits: Sequence[Limits], captures: _Captures
) -> Iterator[Flow]:
    """The values of a scope. Inputs and outputs of a body are in the host's memory, where programs
    slice, carry and stack them, so they are transferred in every execution; captures of loops and
    scans are transferred once."""
    graph, host, others = scope.graph, limits[0], limits[1:]
    returned, count = set(graph.outputs), scope.executions.count
    for value in graph.values:
        if value in graph.constants:
            continue
        producer = graph.producers.get(value)
        own = (number[user] for user in graph.users.get(value, ()))
        consumers = (*own, *captures.readers.get(value, ()))
        leaves = value in returned
        if value in captures.inputs or (producer is None and not consumers):
            continue
        inner = [count * carry_seconds(value, form, host) for form in others]
        outer = [count * carry_seconds(value, form, host, in_rows=True) for form in others]
        yield Flow(
            None if producer is None else number[producer],
            consumers,
            bring=(0.0, *(outer if producer is None else inner)),
            fetch=(0.0, *(outer if leaves and not consumers else inner)),
            leaves=leaves,
            sizes=(value_bytes(value), *(carried_bytes(value, form) for form in others)),
            name=value.name,
        )


def _order(candidates: Candidates, number: Mapping[Node, int], forms: int) -> Iterator[Flow]:
    """Dependencies of bodies on nodes around them, as values without bytes or prices: the memory
    that devices hold while a body runs depends on the order."""
    free = (0.0,) * forms
    for scope in candidates.scopes:
        if scope.parent is None or scope.owner is None:
            continue
        graph, around = scope.graph, scope.parent.graph
        readers = dict.fromkeys(user for v in graph.inputs for user in graph.users.get(v, ()))
        first = tuple(number[node] for node in readers)
        before = [around.producers[v] for v in scope.owner.args if v in around.producers]
        for node in dict.fromkeys(one for one in before if one in number):
            yield Flow(number[node], first, free, free)
        makers = dict.fromkeys(graph.producers[v] for v in graph.outputs if v in graph.producers)
        for node in (maker for maker in makers if maker in number):
            yield Flow(number[node], (number[scope.owner],), free, free)


def carry_seconds(value: Value, limits: Limits, host: Limits, in_rows: bool = False) -> float:
    """The time to convert a value from the host's form to a backend's, or back.

    `in_rows`: it is row-major on the host, as inputs and outputs of models are. Conversions need
    row-major operands; transfers are of the converted value."""
    size = value_bytes(value)
    seconds = 0.0
    if limits.space != HOST_SPACE:
        seconds += limits.latency + carried_bytes(value, limits) / limits.bytes_per_second
    passes = int(boundary.is_image(value) and not in_rows) + converts(value, limits)
    return seconds + passes * peak_rates(host).seconds(0, 2 * size)


def carried_bytes(value: Value, limits: Limits) -> int:
    """Bytes of a value in the dtype that a backend requires."""
    dtype = boundary.form_of(value, limits).dtype
    size = value_bytes(value)
    return size if dtype is None else size * dtype.bits // value.dtype.bits


def too_large(
    candidates: Candidates, costs: Mapping[Candidate, Cost], backends: Sequence[Backend]
) -> dict[Candidate, str]:
    """Why candidates can never run: the operands and results of one of their nodes, their constants
    and workspace exceed the memory of the device."""
    limits = {backend.name: backend.limits for backend in backends}
    reasons: dict[Candidate, str] = {}
    for candidate, cost in costs.items():
        room = limits[candidate.backend].memory_bytes if candidate.backend in limits else None
        if room is None:
            continue
        graph = candidates.scope_of[candidate.nodes[0]].graph
        constants = sum(constant_bytes(node, graph) for node in candidate.nodes)
        for node in candidate.nodes:
            values = [
                value
                for value in dict.fromkeys((*node.args, *node.outputs))
                if value not in graph.constants
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
