"""Backends that say what a test wants, and small graphs for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.byoc.candidates import Candidates
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable, Runner
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.printer import to_text
from graft.ir.types import tensor
from graft.rewrite.rule import Refusal

IMAGE = tensor("float32", 1, 3, 9, 7)


class Fake(Backend):
    """Runs regions on the evaluator; everything else is up to the test."""

    def __init__(
        self,
        name: str = "fake",
        patterns: PatternTable = (),
        supports: Callable[[Match], Any] | None = None,
        price: Callable[[Graph], Cost | None] | None = None,
        limits: Limits | None = None,
        simulated: bool = False,
    ) -> None:
        self.name = name
        self.limits = limits or Limits()
        self.simulated = simulated
        self._patterns, self._supports, self._price = patterns, supports, price
        self._regions: dict[bytes, Graph] = {}

    def patterns(self) -> PatternTable:
        return self._patterns

    def supports(self, match: Match) -> Refusal | None:
        answer: Refusal | None = self._supports(match) if self._supports else None
        return answer

    def price(self, region: Graph) -> Cost | None:
        return self._price(region) if self._price else None

    def compile(self, region: Graph) -> bytes:
        blob = to_text(region).text.encode()
        self._regions[blob] = region
        return blob

    def load(self, blob: bytes) -> Runner:
        region = self._regions[blob]

        def run(inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
            return [np.asarray(item) for item in evaluate(region, inputs)]

        return run


def flat(seconds: float) -> Callable[[Graph], Cost]:
    """A price per node."""

    def price(region: Graph) -> Cost:
        return Cost(seconds * sum(1 for node in region.nodes if node.op.name != "constant"))

    return price


def chain(*ops: str) -> Graph:
    """Operators of one operand in a row."""
    g = Builder()
    value = g.input("x", IMAGE)
    for op in ops:
        value = g(op, value)
    return g.build(value)


def conv_relu(extra: Callable[[Builder, Value, Value], Sequence[Value]] | None = None) -> Graph:
    """Convolution, bias, ReLU; `extra` gets the biased value and the result, and gives outputs."""
    g = Builder()
    x = g.input("x", IMAGE)
    weight = g.constant(np.ones((4, 3, 3, 3), np.float32))
    biased = g("nn.bias_add", g("nn.conv2d", x, weight), g.constant(np.ones(4, np.float32)))
    relu = g("nn.relu", biased)
    outputs = extra(g, biased, relu) if extra else (relu,)
    return g.build(*outputs)


def named(graph: Graph, name: str) -> Node:
    """The node that makes a value."""
    return next(node for node in graph.nodes if node.output.name == name)


def offered(found: Candidates, backend: str) -> list[list[str]]:
    """The operators of every candidate of a backend."""
    own = [c for c in found.candidates if c.backend == backend]
    return [[node.op.name for node in candidate.nodes] for candidate in own]


def reasons(found: Candidates, node: Node, backend: str = "fake") -> list[str]:
    """Why a backend does not run a node."""
    return [r.reason for r in found.refusals.get(node, ()) if r.backend == backend]
