"""Placement by trying everything, from matching on: the oracle of candidates and choice together.

Shares nothing with the matcher, the candidates or the problem: patterns are small trees of tuples,
written out into every form that they stand for and laid over the graph one by one.

    "x"                     any value, the same one wherever the name is used again
    "const"                 a constant
    ("exp", tree)           an operator; both orders of the operands where it is commutative
    ("|", tree, tree)       one or the other
    ("?", tree, "exp")      the tree, or the operator on it
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from graft.byoc.contract import HOST_BACKEND
from graft.byoc.scopes import bodies_of
from graft.byoc.sizes import node_work
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import get_op
from graft.ir.types import tensor
from graft.passes.name_apart import name_apart
from graft.rewrite.pattern import Pattern, apply, is_constant, wildcard
from graft.runtime.regions import HOST_SPACE

Tree = Any

UNARY = ("exp", "tanh", "nn.relu", "negative", "nn.softmax")
COMMUTATIVE = ("add", "multiply")
BINARY = (*COMMUTATIVE, "subtract")
HOST_BYTES = 1e7  # per second, so that a node takes some 30 microseconds
STEP = 2e-5  # seconds around each region, on the host
PER_NODE = 1e-6  # what the roofline adds for each


@dataclass(frozen=True)
class Device:
    """A backend: its patterns by name, where its memory is, and what it takes to use it."""

    name: str
    table: Mapping[str, Tree]
    space: str
    launch: float
    latency: float

    def seconds(self, names: Sequence[str]) -> float:
        """The price of a candidate, by its operators in order; no sum of the prices of parts."""
        return 1e-6 * (1 + self._number(names) % 40)

    def refuses(self, names: Sequence[str]) -> bool:
        return self._number(names) % 7 == 0

    def _number(self, names: Sequence[str]) -> int:
        return zlib.crc32(f"{self.name} {'+'.join(names)}".encode())


def random_graph(draw: random.Random) -> Graph:
    """Up to six nodes over two inputs and a constant; what nobody reads is an output."""
    g = Builder()
    type_ = tensor("float32", 4, 8)
    values = [g.input("a", type_), g.input("b", type_)]
    constant = g.constant(np.ones((4, 8), np.float32))
    made: list[Value] = []
    read: set[Value] = set()
    for _ in range(draw.randint(1, 6)):
        near = (values + made)[-3:]
        if draw.random() < 0.5:
            operands = [draw.choice(near), draw.choice([*near, constant])]
            made.append(g(draw.choice(BINARY), *operands))
        else:
            operands = [draw.choice(near)]
            made.append(g(draw.choice(UNARY), *operands))
        read.update(operands)
    extra = {value for value in made if draw.random() < 0.1}
    return g.build(*(value for value in made if value not in read or value in extra))


def random_nested(draw: random.Random) -> tuple[Graph, int]:
    """A graph of up to four nodes around a scan over so many slices, whose body has up to four."""
    type_ = tensor("float32", 4, 8)
    count = draw.randint(1, 5)
    inside = Builder("body")
    state, part, captured = (inside.input(name, type_) for name in ("s", "part", "captured"))
    made = _random_nodes(draw, inside, [state, part, captured], draw.randint(1, 4))
    body = inside.build(made[-1], *made[:-1])

    g = Builder()
    a, b = g.input("a", type_), g.input("b", type_)
    scanned = g.input("scanned", tensor("float32", count, 4, 8))
    before = _random_nodes(draw, g, [a, b], draw.randint(0, 2))
    stacks = len(body.outputs) - 1
    results = g.add(
        get_op("scan"),
        [draw.choice([a, b, *before]), scanned, draw.choice([a, b, *before])],
        make_attrs(
            get_op("scan").attrs,
            {
                "body": body,
                "carried": 1,
                "num_scan_inputs": 1,
                "input_axes": [0],
                "input_directions": [0],
                "output_axes": [0] * stacks,
                "output_directions": [0] * stacks,
            },
        ),
    )
    after = _random_nodes(draw, g, [results[0], *before], draw.randint(0, 2))
    return name_apart(g.build(*results, *before, *after)), count


def _random_nodes(
    draw: random.Random, g: Builder, values: Sequence[Value], count: int
) -> list[Value]:
    made: list[Value] = []
    for _ in range(count):
        near = [*values, *made][-3:]
        if draw.random() < 0.5:
            made.append(g(draw.choice(BINARY), draw.choice(near), draw.choice(near)))
        else:
            made.append(g(draw.choice(UNARY), draw.choice(near)))
    return made


def random_devices(draw: random.Random, graph: Graph) -> list[Device]:
    """One or two devices whose patterns come from the graph, changed a little."""
    devices = []
    latency = draw.choice([0.0, 2e-6, 8e-6])
    for name in ("one", "two")[: draw.randint(1, 2)]:
        table = {f"p{n}": random_tree(draw, graph) for n in range(draw.randint(1, 4))}
        space = draw.choice([HOST_SPACE, "card"])
        devices.append(Device(name, table, space, draw.choice([0.0, 1e-5]), latency))
    return devices


def random_tree(draw: random.Random, graph: Graph) -> Tree:
    """A pattern that has a chance to match: it follows the graph upwards from some node. No device
    takes a node with a body."""
    roots = [n for n in graph.nodes if n.op.name != "constant" and not bodies_of(n)]

    def of(value: Value, depth: int) -> Tree:
        node = graph.producers.get(value)
        if node is None or bodies_of(node) or depth == 0 or draw.random() < 0.15:
            return draw.choice(["x", "y", "z", "w"])
        if node.op.name == "constant":
            return draw.choice(["const", "x", "y"])
        args = [of(operand, depth - 1) for operand in node.args]
        if draw.random() < 0.3:
            args.reverse()
        tree = (node.op.name, *args)
        if draw.random() < 0.2:
            return ("|", tree, draw.choice(["v", (draw.choice(UNARY), "v")]))
        return ("?", tree, draw.choice(UNARY)) if draw.random() < 0.2 else tree

    while True:
        tree = of(draw.choice(roots).output, draw.randint(1, 3))
        if all(not isinstance(form, str) for form in forms(tree)):
            return tree


def pattern_of(tree: Tree, cards: dict[str, Pattern] | None = None) -> Pattern:
    """The tree in the pattern language."""
    cards = {} if cards is None else cards
    if tree == "const":
        return is_constant()
    if isinstance(tree, str):
        return cards.setdefault(tree, wildcard(tree))
    head, *rest = tree
    if head == "|":
        return pattern_of(rest[0], cards) | pattern_of(rest[1], cards)
    if head == "?":
        return pattern_of(rest[0], cards).optional(lambda inner: apply(rest[1], inner))
    return apply(head, *(pattern_of(part, cards) for part in rest))


def forms(tree: Tree) -> list[Tree]:
    """Every tree of operators and leaves alone that a pattern stands for."""
    if isinstance(tree, str):
        return [tree]
    head, *rest = tree
    if head == "|":
        return forms(rest[0]) + forms(rest[1])
    if head == "?":
        return [(rest[1], inner) for inner in forms(rest[0])] + forms(rest[0])
    plain = [(head, *parts) for parts in product(*map(forms, rest))]
    if head in COMMUTATIVE:
        plain += [(head, right, left) for _, left, right in plain]
    return plain


def laid_over(form: Tree, value: Value, graph: Graph, bound: dict[str, Value]) -> set[Node] | None:
    """The nodes that a plain form covers when its root is the value."""
    node = graph.producers.get(value)
    if form == "const":
        return set() if node is not None and node.op.name == "constant" else None
    if isinstance(form, str):
        return set() if bound.setdefault(form, value) is value else None
    head, *rest = form
    if node is None or node.op.name != head or len(node.args) != len(rest):
        return None
    covered = {node}
    for part, operand in zip(rest, node.args, strict=True):
        inner = laid_over(part, operand, graph, bound)
        if inner is None:
            return None
        covered |= inner
    return covered


Candidate = tuple[str, frozenset[Node], float]  # device, nodes, seconds


def candidates(graph: Graph, devices: Sequence[Device]) -> set[Candidate]:
    """Everything that may be chosen: each node on the host, and what devices match and accept."""
    found: set[Candidate] = set()
    for node in graph.nodes:
        if node.op.name == "constant":
            continue
        moved = 0 if bodies_of(node) else node_work(node).bytes  # bodies have their own prices
        seconds = moved / HOST_BYTES + PER_NODE
        found.add((HOST_BACKEND, frozenset([node]), seconds))
        for device in devices:
            for tree in device.table.values():
                for form in forms(tree):
                    covered = laid_over(form, node.output, graph, {})
                    if covered is None or not _is_closed(covered, node, graph):
                        continue
                    names = [n.op.name for n in graph.nodes if n in covered]
                    if not device.refuses(names):
                        found.add((device.name, frozenset(covered), device.seconds(names)))
    return found


def _is_closed(covered: set[Node], root: Node, graph: Graph) -> bool:
    """Whether nothing but the root's result is wanted outside."""
    inner = [value for node in covered - {root} for value in node.outputs]
    readers = [node for node in graph.nodes if any(value in node.args for value in inner)]
    return covered >= set(readers) and not set(inner) & set(graph.outputs)


def cheapest(graph: Graph, devices: Sequence[Device]) -> float:
    """The price of the best legal placement."""
    return min(cheapest_by_spaces(graph, devices, None).values())


def cheapest_with_body(graph: Graph, body: Graph, count: int, devices: Sequence[Device]) -> float:
    """The same of a graph around a scan over so many slices, whose body captures one value: that is
    brought once to each memory where the body reads it, unless it is there anyway."""
    (scan,) = (node for node in graph.nodes if bodies_of(node))
    around = cheapest_by_spaces(graph, devices, scan.args[-1])
    inside = cheapest_by_spaces(body, devices, body.inputs[-1], counts=False)
    return min(
        outer + count * inner + devices[0].latency * len(wanted - there - {HOST_SPACE})
        for there, outer in around.items()
        for wanted, inner in inside.items()
    )


def cheapest_by_spaces(
    graph: Graph, devices: Sequence[Device], value: Value | None, counts: bool = True
) -> dict[frozenset[str], float]:
    """The price of the best legal placement for each set of memories that hold a value. Unless it
    `counts`, bringing it there is for nothing."""
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    options = sorted(
        candidates(graph, devices), key=lambda option: (option[0], option[2], len(option[1]))
    )
    best: dict[frozenset[str], float] = {}
    for cover in _covers(nodes, options):
        carried = _transfers(graph, cover, devices)
        there = frozenset(carried[value][1]) if value is not None else frozenset()
        price = sum(seconds for _, _, seconds in cover) + _launches(graph, cover, devices)
        price += sum(own for one, (own, _) in carried.items() if counts or one is not value)
        best[there] = min(price, best.get(there, float("inf")))
    return best


def _covers(nodes: Sequence[Node], options: Sequence[Candidate]) -> Iterator[tuple[Candidate, ...]]:
    if not nodes:
        yield ()
        return
    for option in options:
        if nodes[0] in option[1] and option[1] <= set(nodes):
            rest = [node for node in nodes if node not in option[1]]
            for others in _covers(rest, options):
                yield (option, *others)


def _transfers(
    graph: Graph, cover: Sequence[Candidate], devices: Sequence[Device]
) -> dict[Value, tuple[float, set[str]]]:
    """Per value, what carrying it takes, and the memories that it is made or read in."""
    spaces = {HOST_BACKEND: HOST_SPACE, **{device.name: device.space for device in devices}}
    where = {node: spaces[name] for name, nodes, _ in cover for node in nodes}
    result: dict[Value, tuple[float, set[str]]] = {}
    for value in (*graph.inputs, *(v for node in where for v in node.outputs)):
        producer = graph.producers.get(value)
        made = HOST_SPACE if producer is None else where[producer]
        wanted = {where[node] for node in where if value in node.args}
        wanted |= {HOST_SPACE} if value in graph.outputs else set()
        latency = devices[0].latency
        crossings = [space for space in (*(wanted - {made}),) if space != HOST_SPACE]
        price = latency * (len(crossings) + (made != HOST_SPACE and bool(wanted - {made})))
        result[value] = price, wanted | {made}
    return result


def _launches(graph: Graph, cover: Sequence[Candidate], devices: Sequence[Device]) -> float:
    """The cheapest order: neighbours on one device share a launch; infinite for a cycle."""
    price = {HOST_BACKEND: 0.0, **{device.name: device.launch + STEP for device in devices}}
    owner = {node: number for number, (_, nodes, _) in enumerate(cover) for node in nodes}
    needs = [
        {
            owner[source]
            for node in nodes
            for source in map(graph.producers.get, node.args)
            if source in owner and source not in nodes
        }
        for _, nodes, _ in cover
    ]

    @cache
    def best(done: frozenset[int], last: str) -> float:
        ready = [n for n in range(len(cover)) if n not in done and needs[n] <= done]
        if not ready:
            return 0.0 if len(done) == len(cover) else float("inf")
        names = ((number, cover[number][0]) for number in ready)
        return min(
            (0.0 if name == last else price[name]) + best(done | {number}, name)
            for number, name in names
        )

    return best(frozenset(), HOST_BACKEND)
