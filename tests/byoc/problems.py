"""Random placement problems."""

from __future__ import annotations

import random
from dataclasses import replace

from graft.byoc.problem import Flow, Option, Problem, Site

# Nodes of problems with memory limits, whose brute force has to remember what is where.
MOST_LIMITED = 7


def random_problem(seed: int, most_nodes: int = 12) -> Problem:
    """A small graph with one to two accelerators, transfers, launches and memory limits."""
    draw = random.Random(seed)
    nodes = draw.randint(1, most_nodes)
    accelerators = draw.randint(1, 2)
    limited = nodes <= MOST_LIMITED
    forms = [0] + [draw.choice([0, number + 1]) for number in range(accelerators)]
    sites = [Site("host")] + [
        Site(
            f"acc{number}",
            launch=draw.choice([0.0, 0.5, 2.0, 5.0]),
            form=forms[number + 1],
            capacity=draw.choice([None, 6, 12]) if limited else None,
            # two devices may be of one memory, in one form or another
            space=draw.choice(["", "card", "card"]) if forms[number + 1] else "",
        )
        for number in range(accelerators)
    ]
    readers: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(1, nodes):
        for before in draw.sample(range(node), draw.randint(0, min(2, node))):
            readers[before].append(node)
    return Problem(
        tuple(sites),
        nodes,
        tuple(_options(draw, nodes, readers, accelerators)),
        tuple(_flows(draw, readers, accelerators + 1)),
        tuple(draw.choice([0, 0, 1, 2]) for _ in range(nodes)) if seed % 2 else (),
    )


def _options(
    draw: random.Random, nodes: int, readers: list[list[int]], accelerators: int
) -> list[Option]:
    found = [Option(0, (node,), draw.randint(1, 20) / 2) for node in range(nodes)]
    for site in range(accelerators + 1):
        for node in range(nodes):
            if site and draw.random() < 0.6:
                workspace = draw.choice([0, 0, 0, 2])
                found.append(Option(site, (node,), draw.randint(1, 20) / 4, workspace))
            if readers[node] and draw.random() < 0.3:
                pair = tuple(sorted((node, draw.choice(readers[node]))))
                if not _is_torn(pair, readers):
                    found.append(Option(site, pair, draw.randint(1, 30) / 4))
    return found


def _is_torn(pair: tuple[int, ...], readers: list[list[int]]) -> bool:
    """Whether a path leaves the pair and comes back: no region can hold it alone."""
    first, last = pair
    seen, stack = set(), [n for n in readers[first] if n != last]
    while stack:
        node = stack.pop()
        if node == last:
            return True
        if node not in seen:
            seen.add(node)
            stack += readers[node]
    return False


def _flows(draw: random.Random, readers: list[list[int]], forms: int) -> list[Flow]:
    found = []
    for node, own in enumerate(readers):
        bring = (0.0, *(draw.randint(0, 8) / 4 for _ in range(forms - 1)))
        fetch = (0.0, *(draw.randint(0, 8) / 4 for _ in range(forms - 1)))
        leaves = not own and draw.random() < 0.9  # or else nobody wants it
        sizes = _sizes(draw, forms)
        found.append(Flow(node, tuple(sorted(set(own))), bring, fetch, leaves, sizes))
        if not any(node in other for other in readers):
            found.append(Flow(None, (node,), bring, fetch, False, sizes))
    return found


def _sizes(draw: random.Random, forms: int) -> tuple[int, ...]:
    """Bytes in each form."""
    return tuple(draw.randint(0, 4) for _ in range(forms))


def precise_problem(seed: int) -> Problem:
    """A small problem whose sites compute in a narrower precision, too, each as another site: less
    time, other forms of values, and errors that are limited together."""
    plain, draw = random_problem(seed, most_nodes=6), random.Random(seed)
    count = len(plain.sites)
    sites = [*plain.sites]
    options = [*plain.options]
    for number, site in enumerate(plain.sites):
        form = count + number if draw.random() < 0.7 else site.form
        sites.append(replace(site, name=f"{site.name}, narrow", form=form))
        for option in plain.options:
            if option.site == number and draw.random() < 0.7:
                seconds, error = option.seconds * draw.choice([0.25, 0.5, 1.5]), draw.random()
                error = draw.choice([0.0, error, error, 10.0])
                narrow = replace(option, site=count + number, seconds=seconds, error=error)
                options.append(narrow)
    flows = [_with_forms(draw, flow, 2 * count) for flow in plain.flows]
    limit = draw.choice([0.0, draw.random(), 3 * draw.random(), 100.0])
    return replace(
        plain, sites=tuple(sites), options=tuple(options), flows=tuple(flows), error_limit=limit
    )


def _with_forms(draw: random.Random, flow: Flow, forms: int) -> Flow:
    missing = forms - len(flow.bring)
    bring = (*flow.bring, *(draw.randint(0, 4) / 4 for _ in range(missing)))
    fetch = (*flow.fetch, *(draw.randint(0, 4) / 4 for _ in range(missing)))
    return replace(flow, bring=bring, fetch=fetch, sizes=(*flow.sizes, *_sizes(draw, missing)))
