"""The choice of storage: each decision is the cheaper one, and what it would cost otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.host.nets import Net

from graft.backends.host.layout import Layout, choose_layout
from graft.backends.host.layout_search import Plan, Step, cheapest
from graft.backends.host.lowering.assemble import Assembly, NativeStep, assemble
from graft.backends.host.passes.pipeline import prepare
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph, Value
from graft.passes.pipeline import optimize
from graft.target.target import named_target

TARGET = named_target("x86-64-v3")


def _constants(graph: Graph) -> dict[Value, object]:
    return {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}


def _layout(graph: Graph, **pinned: int) -> Layout:
    """The cheapest layout, or that with some values in given blocks."""

    def search(inputs: Sequence[Value], steps: Sequence[Step]) -> Plan:
        return cheapest(inputs, [_restricted(step, pinned) for step in steps])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graft.backends.host.layout.cheapest", search)
        return choose_layout(graph, _constants(graph), TARGET)  # type: ignore[arg-type]


def _restricted(step: Step, pinned: Mapping[str, int]) -> Step:
    blocks = {pinned[value.name] for value in step.outputs if value.name in pinned}
    candidates = (one for one in step.candidates if not blocks or blocks == {one.block})
    return replace(step, candidates=tuple(candidates))


def _block(layout: Layout, value: Value) -> int:
    return layout.storages[value].block


def _copies(assembly: Assembly) -> int:
    labels = [step.label for step in assembly.steps if isinstance(step, NativeStep)]
    return labels.count("relayout")


def test_a_convolution_is_worth_two_copies() -> None:
    n = Net()
    x = n("nn.softmax", n.input(1, 32, 14, 14), axis=3)
    y = n.conv(x, 32, 3)
    graph = n.graph(n("nn.softmax", y, axis=3))
    layout = _layout(graph)
    assert _block(layout, y) == 16
    assert layout.plan.exact
    assert _layout(graph, **{y.name: 0}).plan.cost > layout.plan.cost
    assert _copies(assemble(graph, TARGET)) == 2


def test_a_pixel_of_a_convolution_is_not() -> None:
    """One multiplication per element: copying it to and fro takes longer than doing it slowly."""
    n = Net()
    x = n("nn.softmax", n.input(1, 8, 64, 64), axis=3)
    weight = n.builder.constant(n.array(8, 1, 1, 1))
    y = n("nn.conv2d", x, weight, groups=8)
    layout = _layout(n.graph(n("nn.softmax", y, axis=3)))
    assert _block(layout, y) == 0


def test_pooling_amid_row_major_work_goes_where_it_is_fast() -> None:
    n = Net()
    x = n("nn.softmax", n.input(1, 32, 40, 40), axis=3)
    y = n("nn.max_pool2d", x, pool_size=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    graph = n.graph(n("nn.softmax", y, axis=3))
    layout = _layout(graph)
    other = _layout(graph, **{y.name: 16 - _block(layout, y)})
    assert other.plan.cost > layout.plan.cost


def test_sums_of_row_major_tensors_stay_row_major() -> None:
    n = Net()
    x = n("nn.softmax", n.input(1, 32, 8, 8), axis=3)
    y = n("add", x, n.input(1, 32, 8, 8))
    layout = _layout(n.graph(n("nn.softmax", y, axis=3)))
    assert _block(layout, y) == 0


@pytest.mark.parametrize("then", ["nn.conv2d", "nn.softmax"])
def test_a_sum_of_both_goes_where_it_is_read(then: str) -> None:
    """A convolution's image and a row-major one: one of them is copied, by what comes next."""
    n = Net()
    x = n.conv(n.input(1, 16, 12, 12), 32)
    y = n("multiply", x, n("nn.softmax", n.input(1, 32, 12, 12), axis=3))
    z = n.conv(y, 32, 3) if then == "nn.conv2d" else n("nn.softmax", y, axis=3)
    layout = _layout(n.graph(z, n.conv(x, 16)))
    assert _block(layout, y) == (16 if then == "nn.conv2d" else 0)


def test_residuals_stay_in_blocks() -> None:
    n = Net()
    x = n.conv(n.input(1, 3, 20, 20), 32, 3)
    for _ in range(4):
        x = n("nn.relu", n("add", n.conv(n("nn.relu", n.conv(x, 32, 3)), 32, 3), x))
    graph = n.graph(x)
    assert _copies(assemble(graph, TARGET)) == 2  # the user's image in, and out
    assert all(one.block == 16 for one in _layout(graph).candidates.values())


def test_a_copy_is_paid_for_once() -> None:
    """Two row-major readers of one convolution share its copy."""
    n = Net()
    x = n.conv(n.input(1, 16, 12, 12), 16, 3)
    graph = n.graph(n("nn.softmax", x, axis=3), n("nn.softmax", x, axis=2))
    assert _copies(assemble(graph, TARGET)) == 2


def test_blocks_of_eight_where_a_concatenation_needs_no_copy_then() -> None:
    n = Net()
    x = n.input(1, 16, 32, 32)
    parts = (n.conv(x, 16), n.conv(x, 8))
    y = n("concatenate", *parts, axis=1)
    graph = n.graph(n.conv(y, 16))
    layout = _layout(graph)
    assert [_block(layout, value) for value in (*parts, y)] == [8, 8, 8]


def test_an_image_gets_the_widest_padding_of_its_readers() -> None:
    n = Net()
    x = n.conv(n.input(1, 16, 12, 12), 16)
    graph = n.graph(n("add", n.conv(x, 16, 7), n("add", n.conv(x, 16, 3), n.conv(x, 16, 5))))
    top, left, _, _ = _layout(graph).storages[x].halo
    assert (top, left) == (3, 3)


def test_too_many_tensors_at_a_time_are_said_to_be() -> None:
    n = Net()
    x = n.input(1, 24, 6, 6)
    parts = [n("nn.softmax", n.conv(x, 16), axis=3) for _ in range(3)]
    pools = [n("nn.max_pool2d", n.conv(x, 16), pool_size=(1, 1)) for _ in range(11)]
    layout = _layout(n.graph(n("concatenate", *parts, *pools, axis=2)))
    assert not layout.plan.exact
    assert layout.plan.cost > 0


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("resnet18", 1),
        ("mobilenet_v2", 1),
        pytest.param("inception_v3", 1, marks=pytest.mark.full),
    ],
)
def test_networks_are_blocked_throughout(name: str, copies: int, models_dir: Path) -> None:
    """The image is copied on its way in; no concatenation is copied at all."""
    graph = prepare(optimize(import_model(models_dir / f"{name}.onnx")), TARGET)
    constants = _constants(graph)
    layout = choose_layout(graph, constants, TARGET)  # type: ignore[arg-type]
    assert layout.plan.exact
    convolutions = [
        w for n, w in layout.candidates.items() if "conv2d" in getattr(n.attrs, "label", "")
    ]
    assert convolutions
    assert all(way.block for way in convolutions)
    assembly = assemble(graph, TARGET)
    assert _copies(assembly) == copies
    labels = [step.label for step in assembly.steps if isinstance(step, NativeStep)]
    assert "concatenate" not in labels
