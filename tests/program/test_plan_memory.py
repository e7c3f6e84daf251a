"""The arena: no two tensors that live at once overlap, offsets are aligned, little is wasted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.base.dims import symbol
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph, Value
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize
from graft.passes.simplify_movement import is_view
from graft.program.plan_memory import ALIGNMENT, Lifetime, assign_offsets, fullest, plan_arena

QUICK = ("resnet18", "mobilenet_v2")
STATIC = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    "vit_b_16",
)


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime[int]:
    first = draw(st.integers(0, 20))
    return Lifetime(draw(st.integers(1, 50)) * 64, first, first + draw(st.integers(0, 8)))


@given(st.lists(lifetimes(), max_size=25))
def test_what_lives_at_once_does_not_overlap(found: list[Lifetime[int]]) -> None:
    offsets = assign_offsets(found)
    for i, (one, at) in enumerate(zip(found, offsets, strict=True)):
        assert at >= 0
        for other, there in list(zip(found, offsets, strict=True))[:i]:
            if one.first <= other.last and other.first <= one.last:
                assert at + one.size <= there or there + other.size <= at
    arena = max((at + one.size for one, at in zip(found, offsets, strict=True)), default=0)
    assert fullest(found)[0] <= arena <= sum(one.size for one in found)


def test_a_chain_needs_two_tensors() -> None:
    plan = plan_arena([Lifetime(400, step, step + 1) for step in range(10)])
    assert plan.pools == ((2 * 448,),)
    assert plan.bound == 2 * 448
    assert {pool for pool, _ in plan.offsets} == {0}


def test_offsets_are_aligned() -> None:
    plan = plan_arena([Lifetime(5, 0, 3), Lifetime(7, 0, 3), Lifetime(1, 1, 2)])
    assert all(offset % ALIGNMENT == 0 for _, offset in plan.offsets)


def test_nothing_takes_nothing() -> None:
    plan = plan_arena([])
    assert (plan.offsets, plan.pools, plan.bound) == ((), (), 0)


def test_symbolic_sizes_share_pools() -> None:
    n = symbol("n")
    plan = plan_arena([Lifetime(n, 0, 1), Lifetime(64, 1, 2), Lifetime(2 * n, 2, 3)])
    assert plan.offsets == ((0, 0), (1, 0), (0, 0))
    assert plan.pools == ((n, 2 * n), (64,))
    assert plan.bound is None


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in STATIC],
)
def test_networks_waste_at_most_a_tenth(name: str, models_dir: Path) -> None:
    found = in_graph(group_fusion(optimize(import_model(models_dir / f"{name}.onnx"))))
    plan = plan_arena(found)
    ((arena,),) = plan.pools
    assert isinstance(arena, int)
    assert plan.bound is not None
    assert arena <= 1.10 * plan.bound


def in_graph(graph: Graph) -> list[Lifetime[int]]:
    """The lifetimes of what nodes make for others; views live in what they view."""
    owner: dict[Value, Value] = {}
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for step, node in enumerate(graph.nodes):
        if is_view(node):
            owner[node.output] = owner.get(node.args[0], node.args[0])
        for value in (*node.args, *node.outputs):
            last[owner.get(value, value)] = step
        for value in node.outputs:
            first.setdefault(owner.get(value, value), step)
    outside = {owner.get(value, value) for value in (*graph.inputs, *graph.outputs)}
    made = [value for value in first if value not in {*outside, *graph.constants}]
    return [Lifetime(int(nbytes(value)), first[value], last[value]) for value in made]


def nbytes(value: Value) -> int:
    size = value.tensor.size
    assert isinstance(size, int)
    return size * value.dtype.numpy.itemsize
