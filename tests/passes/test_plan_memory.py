"""The arena: no two tensors that live at once overlap, views share memory, and little is wasted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.base.dims import symbol
from graft.base.errors import UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize
from graft.passes.plan_memory import ALIGNMENT, Interval, lower_bound, place, plan_memory

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
def intervals(draw: st.DrawFn) -> Interval:
    first = draw(st.integers(0, 20))
    return Interval(draw(st.integers(1, 50)) * 64, first, first + draw(st.integers(0, 8)))


@given(st.lists(intervals(), max_size=25))
def test_what_lives_at_once_does_not_overlap(found: list[Interval]) -> None:
    offsets = place(found)
    for i, (one, at) in enumerate(zip(found, offsets, strict=True)):
        assert at >= 0
        for other, there in list(zip(found, offsets, strict=True))[:i]:
            if one.overlaps(other):
                assert at + one.size <= there or there + other.size <= at
    arena = max((at + one.size for one, at in zip(found, offsets, strict=True)), default=0)
    assert lower_bound(found) <= arena <= sum(one.size for one in found)


def test_chain_needs_two_tensors() -> None:
    g = Builder()
    value = g.input("x", tensor("float32", 100))
    for _ in range(10):
        value = g("exp", value)
    plan = plan_memory(g.build(g("negative", value)))
    assert plan.arena_bytes == plan.lower_bound == 2 * 448


def test_views_share_memory_and_keep_it_alive() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 4, 25))
    source = g("exp", x)
    view = g("reshape", source, shape=(100,))
    other = g("tanh", x)
    graph = g.build(g("add", g("reshape", view, shape=(4, 25)), other))
    plan = plan_memory(graph)
    assert view not in plan.offsets
    assert plan.owner[view] is source
    assert {plan.offsets[source], plan.offsets[other]} == {0, 448}


def test_inputs_outputs_and_constants_are_not_in_the_arena() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 3))
    ones = g.constant(np.ones(3, np.float32))
    plan = plan_memory(g.build(g("add", x, ones)))
    assert plan.offsets == {}
    assert plan.arena_bytes == 0


def test_offsets_are_aligned() -> None:
    g = Builder()
    x = g.input("x", tensor("int8", 5))
    values = [g("negative", x), g("abs", x), g("sign", x)]
    total = g("add", g("add", values[0], values[1]), values[2])
    plan = plan_memory(g.build(total))
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())


def test_sizes_have_to_be_known() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n")))
    with pytest.raises(UserError, match=r"the size of %exp, float32\[n\], is not known"):
        plan_memory(g.build(g("abs", g("exp", x))))


@pytest.mark.parametrize("name", STATIC)
def test_networks_waste_at_most_a_tenth(name: str, models_dir: Path) -> None:
    plan = plan_memory(group_fusion(optimize(import_model(models_dir / f"{name}.onnx"))))
    assert plan.arena_bytes <= 1.10 * plan.lower_bound
