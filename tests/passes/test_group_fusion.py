"""Which nodes one kernel computes: what joins a group, what ends one, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import Build, data_for, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.passes.group_fusion import group_fusion

IMAGE = tensor("float32", 1, 2, 5, 3)
X = tensor("float32", 4, 6)


def conv(g: Builder, x: Value) -> Value:
    weight = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)
    return g("nn.conv2d", x, g.constant(weight), padding=[1] * 4)


def bias(g: Builder, x: Value) -> Value:
    return g("nn.bias_add", x, g.constant(np.array([0.5, -1], np.float32)))


def groups(graph: Graph) -> list[str]:
    """Composites by what is in them; the other nodes by their operator."""
    return [
        node.attrs.label if node.op.name == "composite" else node.op.name
        for node in graph.nodes
        if node.op.name != "constant"
    ]


def _conv_block(g: Builder, x: Value, y: Value) -> Value:
    return g("nn.relu", g("add", bias(g, conv(g, x)), y))


def _computed_bias(g: Builder, x: Value, y: Value) -> Value:
    return g("nn.relu", g("nn.bias_add", conv(g, x), g("exp", y)))


def _two_convs(g: Builder, x: Value, y: Value) -> Value:
    return g("nn.relu", g("add", bias(g, conv(g, x)), bias(g, conv(g, y))))


def _swish(g: Builder, x: Value) -> Value:
    return g("multiply", x, g("sigmoid", x))


def _swish_behind_conv(g: Builder, x: Value) -> Value:
    y = conv(g, x)
    return g("multiply", y, g("sigmoid", y))


def _chain(g: Builder, x: Value) -> Value:
    for _ in range(20):
        x = g("nn.leaky_relu", x, alpha=0.5)
    return x


def _angles(g: Builder, x: Value) -> Value:
    return g("asinh", g("asinh", g("asinh", x)))


def _escaping(g: Builder, x: Value) -> tuple[Value, Value]:
    y = g("exp", x)
    return g("negative", g("abs", y)), y


def _softmax(g: Builder, x: Value) -> Value:
    return g("nn.relu", g("nn.softmax", g("abs", g("exp", x))))


def _mean(g: Builder, x: Value) -> Value:
    return g("sqrt", g("mean", g("multiply", x, x), axes=[1], keepdims=True))


def _mean_spread_again(g: Builder, x: Value) -> Value:
    return g("subtract", x, g("mean", g("abs", x), axes=[1], keepdims=True))


def _two_sums(g: Builder, x: Value) -> Value:
    return g("sum", g("sum", g("abs", x), axes=[0]), axes=[0])


def _moved(g: Builder, x: Value) -> Value:
    return g("exp", g("transpose", g("abs", x), axes=[1, 0]))


def _moved_behind_conv(g: Builder, x: Value) -> Value:
    return g("transpose", g("nn.relu", conv(g, x)), axes=[0, 2, 3, 1])


def _joined_and_shuffled(g: Builder, x: Value, y: Value) -> Value:
    joined = g("concatenate", x, y, axis=1)
    split = g("reshape", joined, shape=[1, 2, -1, 5, 3])
    shuffled = g("transpose", split, axes=[0, 2, 1, 3, 4])
    return g("reshape", shuffled, shape=[1, -1, 5, 3])


def _joined_behind_conv(g: Builder, x: Value) -> Value:
    return _joined_and_shuffled(g, g("nn.relu", conv(g, x)), x)


def _viewed(g: Builder, x: Value) -> Value:
    return g("expand_dims", g("reshape", g("abs", g("exp", x)), shape=[2, 12]), axes=[0])


def _viewed_inside(g: Builder, x: Value) -> Value:
    return g("exp", g("reshape", g("abs", x), shape=[2, 12]))


def _work_before_conv(g: Builder, x: Value) -> Value:
    return conv(g, g("nn.relu", g("abs", x)))


def _read_by_two(g: Builder, x: Value) -> tuple[Value, Value]:
    y = g("exp", x)
    return g("sum", y, axes=[0]), g("sum", y, axes=[1])


def _broadcast_behind_dense(g: Builder, x: Value) -> Value:
    y = g("nn.dense", x, g.constant(np.ones((1, 6), np.float32)))
    return g("add", y, g.constant(np.ones((1, 3), np.float32)))


CASES: dict[str, tuple[Build, tuple[TensorType, ...], list[str]]] = {
    "conv block": (
        _conv_block,
        (IMAGE, IMAGE),
        ["nn.conv2d+nn.bias_add+add+nn.relu"],
    ),
    "computed bias": (
        _computed_bias,
        (IMAGE, tensor("float32", 2)),
        ["exp", "nn.conv2d+nn.bias_add+nn.relu"],
    ),
    "swish": (_swish, (X,), ["sigmoid+multiply"]),
    "swish behind conv": (_swish_behind_conv, (IMAGE,), ["nn.conv2d+sigmoid+multiply"]),
    "escaping value": (_escaping, (X,), ["exp", "abs+negative"]),
    "softmax is opaque": (_softmax, (X,), ["exp+abs", "nn.softmax", "nn.relu"]),
    "reduction with work before and behind": (_mean, (X,), ["multiply+mean+sqrt"]),
    "reduction that is spread again": (_mean_spread_again, (X,), ["abs+mean", "subtract"]),
    "two reductions": (_two_sums, (X,), ["abs+sum", "sum"]),
    "movement": (_moved, (X,), ["abs+transpose+exp"]),
    "movement behind conv": (_moved_behind_conv, (IMAGE,), ["nn.conv2d+nn.relu", "transpose"]),
    "joined images that are shuffled": (
        _joined_behind_conv,
        (IMAGE,),
        ["nn.conv2d+nn.relu", "concatenate", "reshape+transpose+reshape"],
    ),
    "joined rows that are shuffled": (
        _joined_and_shuffled,
        (IMAGE, IMAGE),
        ["concatenate+reshape+transpose+reshape"],
    ),
    "a view of the result": (_viewed, (X,), ["exp+abs", "reshape", "expand_dims"]),
    "a view inside": (_viewed_inside, (X,), ["abs+reshape+exp"]),
    "work before conv": (_work_before_conv, (IMAGE,), ["abs+nn.relu", "nn.conv2d"]),
    "two readers": (_read_by_two, (X,), ["exp", "sum", "sum"]),
    "an epilogue that grows": (_broadcast_behind_dense, (X,), ["nn.dense", "add"]),
    "one node": (lambda g, x: g("exp", x), (X,), ["exp"]),
}


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    build, types, expected = CASES[name]
    after = run_pass(group_fusion, graph_of(build, *types))
    assert groups(after) == expected


def test_two_convs_into_an_add() -> None:
    """One of them gets the addition; the other stands alone with its bias."""
    after = run_pass(group_fusion, graph_of(_two_convs, IMAGE, IMAGE))
    sizes = sorted(label.count("+") for label in groups(after))
    assert sizes == [1, 3]
    assert all(label.startswith("nn.conv2d+nn.bias_add") for label in groups(after))


def test_body_is_a_closed_graph_with_its_constants() -> None:
    graph = graph_of(_conv_block, IMAGE, IMAGE)
    node = node_of(group_fusion(graph), "composite")
    assert node.inputs == graph.inputs
    assert [value.type for value in node.attrs.body.inputs] == [IMAGE, IMAGE]
    assert operators(node.attrs.body) == ["nn.conv2d", "nn.bias_add", "add", "nn.relu"]
    assert sum(n.op.name == "constant" for n in node.attrs.body.nodes) == 2
    assert node.outputs == graph.outputs


def test_a_constant_that_two_groups_read_stays_outside() -> None:
    def build(g: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        shared = g.constant(np.ones(6, np.float32))
        return g("exp", g("add", x, shared)), g("abs", g("multiply", y, shared))

    after = run_pass(group_fusion, graph_of(build, X, X))
    assert groups(after) == ["add+exp", "multiply+abs"]
    constant = node_of(after, "constant").output
    assert all(constant in node.inputs for node in after.nodes if node.op.name == "composite")


def test_results_that_go_to_both_sides_of_a_group() -> None:
    """a -> b -> c and a -> c, where b is opaque: a and c in one group would be a cycle."""

    def build(g: Builder, x: Value) -> Value:
        a = g("exp", x)
        return g("add", g("nn.softmax", a), a)

    after = run_pass(group_fusion, graph_of(build, X))
    assert groups(after) == ["exp", "nn.softmax", "add"]


@pytest.mark.parametrize("extent", [1, 5])
def test_symbols_that_the_group_does_not_see_keep_it_apart(extent: int) -> None:
    n = symbol("n")

    def build(g: Builder, x: Value, y: Value) -> Value:
        return g("broadcast_to", g("exp", y), shape=[n, 6])

    graph = graph_of(build, tensor("float32", n), tensor("float32", 1, 6))
    after = run_pass(group_fusion, graph, data_for(graph, {"n": extent}))
    assert groups(after) == ["exp", "broadcast_to"]


@pytest.mark.parametrize("extent", [1, 5])
def test_symbols_that_the_group_sees(extent: int) -> None:
    n = symbol("n")
    graph = graph_of(
        lambda g, x: g("exp", g("reshape", x, shape=[n * 2, 3])), tensor("float32", n, 6)
    )
    after = run_pass(group_fusion, graph, data_for(graph, {"n": extent}))
    assert groups(after) == ["reshape+exp"]


def test_inside_a_branch() -> None:
    def branch(name: str) -> Graph:
        g = Builder(name)
        return g.build(_swish(g, g.input("a", X)))

    graph = graph_of(
        lambda g, x, on: g("if", on, x, then_branch=branch("yes"), else_branch=branch("no")),
        X,
        tensor("bool"),
    )
    after = run_pass(group_fusion, graph)
    for _, body in node_of(after, "if").graphs():
        assert groups(body) == ["sigmoid+multiply"]


def test_fusing_twice_changes_nothing() -> None:
    once = group_fusion(graph_of(_two_convs, IMAGE, IMAGE))
    twice = group_fusion(once)
    assert groups(twice) == groups(once)


def _crossed(g: Builder, x: Value, turns: int) -> Value:
    """Halves that change places and are added, again and again: each turn needs two places."""
    for _ in range(turns):
        left, right = (
            g("strided_slice", x, begin=(begin,), end=(begin + 3,), strides=(1,), axes=(1,))
            for begin in (0, 3)
        )
        swapped = g("concatenate", right, left, axis=1)
        x = g("add", g("exp", x), swapped)
    return x


def test_what_is_needed_at_few_places_is_computed_there() -> None:
    graph = run_pass(group_fusion, graph_of(lambda g, x: _crossed(g, x, 1), X))
    assert len(groups(graph)) == 1


def test_what_is_needed_at_many_places_is_computed_once() -> None:
    graph = run_pass(group_fusion, graph_of(lambda g, x: _crossed(g, x, 6), X))
    sizes = [len(label.split("+")) for label in groups(graph)]
    assert sizes == [10, 10, 10]  # two turns each, or nine places would be needed


def test_formulas_that_grow_with_every_operator_are_cut() -> None:
    graph = run_pass(group_fusion, graph_of(_chain, X))
    sizes = [len(label.split("+")) for label in groups(graph)]
    assert sum(sizes) == 20
    assert sizes[1:] == [6] * 3  # each mentions its operand three times, and 3**6 is too often
    graph = run_pass(group_fusion, graph_of(_angles, X))
    assert groups(graph) == ["asinh", "asinh+asinh"]


def test_a_long_chain_is_several_groups() -> None:
    """Lowering a group takes the square of its size."""

    def build(builder: Builder, x: Value) -> Value:
        for _ in range(200):
            x = builder("exp", x)
        return x

    after = run_pass(group_fusion, graph_of(build, X))
    assert [label.count("+") + 1 for label in groups(after)] == [8, 64, 64, 64]


@pytest.mark.parametrize(("count", "expected"), [(3, 1), (9, 11)])
def test_a_concatenation_of_many_is_a_kernel_for_itself(count: int, expected: int) -> None:
    def build(g: Builder, x: Value) -> Value:
        parts = [g("multiply", x, g.constant(np.float32(n))) for n in range(count)]
        return g("exp", g("concatenate", *parts, axis=1))

    after = run_pass(group_fusion, graph_of(build, X))
    assert len(groups(after)) == expected


def test_movements_in_a_row_are_few() -> None:
    def build(g: Builder, value: Value) -> Value:
        for _ in range(30):
            value = g("sin", g("transpose", value, axes=[1, 0]))
        return value

    grouped = group_fusion(graph_of(build, X))
    assert 4 <= len(grouped.nodes) <= 8
    for node in grouped.nodes:
        assert [one.op.name for one in node.attrs.body.nodes].count("transpose") <= 8
