"""Rewrites of long chains take as many steps as there are nodes, not as their square."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.adversarial import FAMILIES

from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.passes.simplify_movement import simplify_movement
from graft.passes.sink_transposes import sink_transposes
from graft.rewrite import driver


@pytest.mark.parametrize(
    ("family", "run"),
    [
        ("transposes", sink_transposes),
        ("growing", simplify_movement),
        ("nested", simplify_movement),
        ("reshapes", simplify_movement),
    ],
)
def test_rewrites_are_as_many_as_nodes(
    family: str, run: Callable[[Graph], Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    rewrite = driver._Workspace.rewrite

    def counted(self: driver._Workspace, node: object) -> bool:
        nonlocal tries
        tries += 1
        return rewrite(self, node)

    monkeypatch.setattr(driver._Workspace, "rewrite", counted)
    counts = []
    for nodes in (24, 96):
        tries = 0
        run(import_model(FAMILIES[family](nodes)))
        counts.append(tries)
    assert counts[1] <= 6 * counts[0]


def test_nested_concatenations_keep_their_operands() -> None:
    """Ten times a value is ten operands however deep it is, not ten to the depth."""
    graph = simplify_movement(import_model(FAMILIES["nested"](12)))
    assert max(len(node.args) for node in graph.nodes) <= 10
