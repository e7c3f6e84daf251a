"""The driver's work grows with the graph, not with its square: node visits are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.passes import eliminate_noops, simplify_algebra, simplify_movement, sink_transposes
from graft.rewrite import driver

LONG = 20_000


def alternating(*steps: str) -> Callable[[int], Graph]:
    """A chain of so many nodes, which takes the operators in turn."""

    def build(length: int) -> Graph:
        g = Builder()
        value = g.input("x", tensor("float32", 2, 3))
        for number in range(length):
            op = steps[number % len(steps)]
            attrs = {"axes": [1, 0]} if op == "transpose" else {}
            attrs = {"shape": value.shape} if op == "reshape" else attrs
            value = g(op, value, **attrs)
        return g.build(value)

    return build


# rules, chain, how many nodes are left of each thousand
CASES = {
    "nothing fits": (simplify_algebra, alternating("exp", "abs"), 1000),
    "all go": (eliminate_noops, alternating("reshape"), 0),
    "pairs cancel from one end": (simplify_algebra, alternating("negative"), 0),
    "idempotent": (simplify_algebra, alternating("abs"), None),
    "movement cancels": (simplify_movement, alternating("transpose"), 0),
    "one of two goes": (eliminate_noops, alternating("exp", "reshape"), 500),
}


def visits(monkeypatch: pytest.MonkeyPatch, module: object, graph: Graph) -> tuple[int, Graph]:
    """How often the driver looks at a node, and what comes out."""
    count = 0
    original = driver._Workspace.rewrite

    def counted(self: driver._Workspace, node: object) -> bool:
        nonlocal count
        count += 1
        return original(self, node)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(driver._Workspace, "rewrite", counted)
        after = driver.apply_rules(graph, module.RULES)  # type: ignore[attr-defined]
    return count, after


@pytest.mark.parametrize("name", CASES)
def test_visits_grow_with_the_chain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, build, left = CASES[name]
    short, _ = visits(monkeypatch, module, build(LONG // 20))
    count, after = visits(monkeypatch, module, build(LONG))
    assert count <= 25 * short
    assert count <= 8 * LONG
    assert len(after.nodes) == (1 if left is None else LONG * left // 1000)


def test_a_transpose_sinks_through_a_chain_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step moves the transpose past one node; none is looked at over and over."""

    def build(length: int) -> Graph:
        g = Builder()
        value = g("transpose", g.input("x", tensor("float32", 2, 3)), axes=[1, 0])
        for _ in range(length):
            value = g("exp", value)
        return g.build(value)

    short, _ = visits(monkeypatch, sink_transposes, build(LONG // 20))
    count, after = visits(monkeypatch, sink_transposes, build(LONG))
    assert after.nodes[-1].op.name == "transpose"
    assert count <= 25 * short


def test_a_long_chain_does_not_recurse() -> None:
    """No part of the driver may depend on the interpreter's stack."""
    assert sys.getrecursionlimit() < LONG
    after = driver.apply_rules(alternating("exp", "reshape")(LONG), eliminate_noops.RULES)
    assert len(after.nodes) == LONG // 2
