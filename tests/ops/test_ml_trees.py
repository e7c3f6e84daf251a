"""ai.onnx.ml: forests of decision trees, random ones, in both encodings.

A tree is kept here as nested nodes and walked by recursion: that, and ONNX Runtime, say what is
right. ONNX Runtime leaves base values out of targets without a vote, gives a single target's score
untransformed, has rules of its own for two classes that both get votes, takes only sets of positive
integers that are not empty, and numbers SOFTMAX and LOGISTIC of TreeEnsemble the other way round
than ONNX; there the recursion alone decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.ops.ml_forest import PLAIN, Tree, aggregated, as_tensor, forest, new, old, samples
from tests.ops.ml_node import agree, assert_same, by_graft, by_runtime, graph_of, model

from graft.base.errors import EvaluationError, ModelError, TypeRuleError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import tensor
from graft.ops.ml_trees import Branch

# Regression


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("base", [False, True])
def test_regressor(how: str, targets: int, base: bool) -> None:
    trees = forest(targets, targets=tuple(range(targets)), votes=(targets, targets + 1))
    data, lists = samples(1), old(trees, "target")
    start = [0.5, -1.0, 2.0][:targets] if base else []
    options: dict[str, Any] = {"n_targets": targets, "aggregate_function": how, **lists}
    options |= {"base_values": start} if base else {}
    expected = aggregated(trees, data, targets, how) + (start or 0)
    assert_same(by_graft("TreeEnsembleRegressor", [data], **options), [expected.astype(np.float32)])
    for given in (data, data[:1], data.astype(np.float64)):
        agree("TreeEnsembleRegressor", [given], **options)
    whole = by_graft("TreeEnsembleRegressor", [data.astype(np.int64)], **options)
    assert_same(whole, by_runtime("TreeEnsembleRegressor", [np.trunc(data)], **options))
    (one,) = by_graft("TreeEnsembleRegressor", [data[0]], **options)
    assert_same([one], [expected[:1].astype(np.float32)])
    assert by_graft("TreeEnsembleRegressor", [data[:0]], **options)[0].shape == (0, targets)


@pytest.mark.parametrize("seed", range(8))
def test_regressor_on_random_forests(seed: int) -> None:
    """One mode or all of them, missing values tracked or not, leaves with any number of votes."""
    modes = (PLAIN[seed],) if seed < 6 else PLAIN
    tracks, votes = seed % 2 == 0, (0, 4) if seed > 3 else (1, 2)
    trees = forest(seed, 7, 5, modes, (0, 1, 2), tracks=tracks, votes=votes)
    data = samples(seed, nan=True)
    options = {"n_targets": 3, **old(trees, "target", tracks)}
    found = by_graft("TreeEnsembleRegressor", [data], **options)
    assert_same(found, [aggregated(trees, data, 3).astype(np.float32)])
    agree("TreeEnsembleRegressor", [data], opset=1, **options)


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_regressor_transforms(transform: str) -> None:
    trees = forest(3, targets=(0, 1, 2), votes=(3, 4))
    options = {"n_targets": 3, "post_transform": transform, **old(trees, "target")}
    agree("TreeEnsembleRegressor", [samples(2)], **options)
    single = {"n_targets": 1, "post_transform": transform, **old(forest(3), "target")}
    (found,) = by_graft("TreeEnsembleRegressor", [samples(2)], **single)
    raw = aggregated(forest(3), samples(2), 1)
    if transform == "LOGISTIC":
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-raw)), rtol=1e-5)
    elif transform == "SOFTMAX":
        assert (found == 1).all()


def test_targets_without_a_vote() -> None:
    trees = [Tree([(0, 2.0)])]
    data = samples(1, 3)
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        options = {"n_targets": 2, "aggregate_function": how, **old(trees, "target")}
        (found,) = by_graft("TreeEnsembleRegressor", [data], **options)
        assert found.tolist() == [[2, 0]] * 3
        (found,) = by_graft("TreeEnsembleRegressor", [data], base_values=[1.0, 5.0], **options)
        assert found.tolist() == [[3, 5]] * 3


def test_double_precision_is_kept_to_the_end() -> None:
    """The tensor forms of the attributes hold what float32 cannot."""
    split, weight = 1 + 1e-12, 1e-12
    trees = [Tree(mode="LT", threshold=split, true=Tree([(0, 1.0)]), false=Tree([(0, 2.0)]))]
    trees += [Tree([(0, -1.0 + weight)])]
    lists = old(trees, "target")
    for name in ("nodes_values", "target_weights"):
        lists[f"{name}_as_tensor"] = as_tensor(lists.pop(name), np.float64)
    lists["base_values_as_tensor"] = as_tensor([0.0], np.float64)
    data = np.array([[1.0] * 4, [split] * 4])
    (found,) = by_graft("TreeEnsembleRegressor", [data], n_targets=1, **lists)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], [weight, 1], rtol=1e-3)
    assert_same([found], by_runtime("TreeEnsembleRegressor", [data], n_targets=1, **lists), 1e-3)


# Classification


def labels(count: int, strings: bool) -> dict[str, Any]:
    if strings:
        return {"classlabels_strings": [f"class {i}" for i in range(count)]}
    return {"classlabels_int64s": [7, -5, 11, 2][:count]}


@pytest.mark.each_value
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("base", [False, True])
def test_classifier_of_many_classes(transform: str, strings: bool, base: bool) -> None:
    trees = forest(5, 9, targets=(0, 1, 2, 3), votes=(4, 5), positive=True, tracks=True)
    options = {"post_transform": transform, **old(trees, "class", True), **labels(4, strings)}
    options |= {"base_values": [0.1, 0.2, 0.3, 0.4]} if base else {}
    data = samples(4, nan=True)
    for given in (data, data[:1], data.astype(np.float64)):
        agree("TreeEnsembleClassifier", [given], outputs=2, opset=1, **options)
    empty = by_graft("TreeEnsembleClassifier", [data[:0]], outputs=2, **options)
    assert [result.shape for result in empty] == [(0,), (0, 4)]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("strings", [False, True])
def test_classifier_of_one_score(transform: str, positive: bool, base: bool, strings: bool) -> None:
    """Two classes whose votes name the first only: the score is the second's."""
    trees = forest(6, 3, targets=(0,), positive=positive)
    options = {"post_transform": transform, **old(trees, "class"), **labels(2, strings)}
    options |= {"base_values": [0.125]} if base else {}
    agree("TreeEnsembleClassifier", [samples(3)], outputs=2, **options)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("positive", [False, True])
def test_classifier_of_the_second_class_alone(transform: str, positive: bool) -> None:
    trees = forest(6, 3, targets=(1,), positive=positive)
    options = {"post_transform": transform, **old(trees, "class"), **labels(2, False)}
    agree("TreeEnsembleClassifier", [samples(3)], outputs=2, **options)


def test_classifier_rules_that_onnx_runtime_does_not_share() -> None:
    data = samples(3)
    both = forest(8, 4, targets=(0, 1), votes=(2, 3))
    scores = aggregated(both, data, 2)
    found = by_graft(
        "TreeEnsembleClassifier", [data], outputs=2, **old(both, "class"), **labels(2, False)
    )
    wanted = np.where(scores[:, 1] > scores[:, 0], -5, 7)
    assert_same(found, [wanted, scores.astype(np.float32)])

    one = forest(9, 4, targets=(0,))
    score = aggregated(one, data, 1)
    found = by_graft(
        "TreeEnsembleClassifier", [data], outputs=2, **old(one, "class"), **labels(1, False)
    )
    assert_same(found, [np.where(score[:, 0] > 0, 7, 0), score.astype(np.float32)])

    softmax = {"post_transform": "SOFTMAX", "base_values": [0.5, 0.25]}
    options = {**old(one, "class"), **labels(2, True), **softmax}
    found = by_graft("TreeEnsembleClassifier", [data], outputs=2, **options)
    share = 1 / (1 + np.exp(-2 * (score + 0.5)))
    expected = np.where(score[:, 0] + 0.5 > 0, "class 1", "class 0").astype(object)
    assert_same(found, [expected, np.hstack([1 - share, share]).astype(np.float32)])

    second = forest(9, 4, targets=(1,))
    options = {**old(second, "class"), **labels(2, False), "base_values": [0.25, 0.5]}
    found = by_graft("TreeEnsembleClassifier", [data], outputs=2, **options)
    pair = aggregated(second, data, 2) + np.array([0.25, 0.5])
    assert_same(found, [np.where(pair[:, 1] > 0, -5, 7), pair.astype(np.float32)])


# TreeEnsemble, the encoding of version 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", [0, 1, 2, 3])
@pytest.mark.parametrize("modes", [("LEQ",), ("MEMBER",), (*PLAIN, "MEMBER")], ids=str)
def test_tree_ensemble(dtype: Any, how: int, modes: tuple[str, ...]) -> None:
    trees = forest(11 + how, 6, 4, modes, (0, 1), tracks=True)
    trees = [tree for tree in trees if tree.mode != "LEAF"]
    data = samples(5, nan=True).astype(dtype)
    options: dict[str, Any] = {"opset": 5, "n_targets": 2, "aggregate_function": how}
    found = by_graft("TreeEnsemble", [data], **options, **new(trees, dtype))
    name = ("AVERAGE", "SUM", "MIN", "MAX")[how]
    assert_same(found, [aggregated(trees, data, 2, name).astype(dtype)])
    for node in (node for tree in trees for node in tree.nodes()):
        node.members = sorted({abs(2 * number) + 1 for number in node.members} | {2.0})
    agree("TreeEnsemble", [np.abs(2 * data)], **options, **new(trees, dtype))


@pytest.mark.parametrize("transform", range(5))
def test_tree_ensemble_transforms(transform: int) -> None:
    trees = [tree for tree in forest(21, 9, targets=(0, 1, 2), positive=True) if tree.true]
    options: dict[str, Any] = {"opset": 5, "n_targets": 3, **new(trees, np.float32)}
    theirs = {1: 2, 2: 1}.get(transform, transform)
    (found,) = by_graft("TreeEnsemble", [samples(6)], post_transform=transform, **options)
    (expected,) = by_runtime("TreeEnsemble", [samples(6)], post_transform=theirs, **options)
    zero = aggregated(trees, samples(6), 3) == 0
    kept = ~zero.all(axis=1) if transform == 3 else np.full(len(found), True)
    assert_same([found[kept]], [expected[kept]])


def test_tree_ensemble_in_half_precision() -> None:
    """ONNX Runtime has no float16 kernel."""
    trees = [tree for tree in forest(31, 5, targets=(0, 1)) if tree.true]
    data = samples(7).astype(np.float16)
    (found,) = by_graft("TreeEnsemble", [data], opset=5, n_targets=2, **new(trees, np.float16))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, aggregated(trees, data, 2), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("depth", "trees", "count"), [(3000, 1, 50), (10, 3000, 400)])
def test_deep_and_wide_forests(depth: int, trees: int, count: int) -> None:
    """A chain of nodes, each of which asks for a higher threshold; the trees are all the same one.

    The second forest has more pairs of sample and tree than are walked at once.
    """
    builder = Builder()
    data = builder.input("data", tensor("float32", count, 1))
    nodes = np.arange(depth)
    scores = builder(
        "ml.tree_ensemble",
        data,
        roots=np.zeros(trees, np.int64),
        features=np.zeros(depth, np.int64),
        branches=np.full(depth, Branch.LEQ, np.uint8),
        thresholds=nodes.astype(np.float32),
        true_children=~nodes,
        false_children=np.append(nodes[1:], ~depth),
        nan_is_true=np.zeros(depth, bool),
        leaf_starts=np.arange(depth + 2),
        vote_targets=np.zeros(depth + 1, np.int64),
        vote_weights=np.arange(depth + 1).astype(np.float32),
        members=np.zeros(0, np.float32),
        member_nodes=np.zeros(0, np.int64),
        targets=1,
        aggregate="AVERAGE",
    )
    given = np.random.default_rng(0).integers(-9, depth + 9, (count, 1)).astype(np.float32)
    (found,) = evaluate(builder.build(scores), [given])
    assert found.tolist() == np.clip(given, 0, depth).tolist()


def test_symbolic_batches() -> None:
    options = {"n_targets": 2, **old(forest(1, targets=(0, 1)), "target")}
    proto = model("TreeEnsembleRegressor", [samples(1)], **options)
    shape = proto.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[1].dim_param = "n", "features"
    graph = import_model(proto)
    assert str(graph.outputs[0].type) == "float32[n, 2]"
    assert evaluate(graph, [samples(1, 6)])[0].shape == (6, 2)
    with pytest.raises(EvaluationError, match="a node asks for feature 3"):
        evaluate(graph, [samples(1, 6)[:, :2]])
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert evaluate(import_model(proto), [samples(1, 6)])[0].shape == (6, 2)


# Refusals


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes_values", [1.0], "lists of one length are wanted, not .* 1 values"),
        ("nodes_modes", ["BRANCH_LEQ", "LEAF", "TWIG"], "the node mode 'TWIG' is unknown"),
        ("nodes_modes", ["BRANCH_MEMBER", "LEAF", "LEAF"], "'BRANCH_MEMBER' is unknown"),
        ("nodes_truenodeids", [9, 0, 0], "nodes_truenodeids name node 9 of tree 0, which does not"),
        ("nodes_falsenodeids", [0, 0, 0], "the nodes form a cycle"),
        ("nodes_nodeids", [0, 1, 1], "a tree has two nodes of one number"),
        ("nodes_featureids", [4, 0, 0], "a node asks for feature 4"),
        ("nodes_featureids", [-1, 0, 0], "a node asks for feature -1"),
        ("target_nodeids", [1, 7], "target_nodeids name node 7 of tree 0"),
        ("target_ids", [0, 3], "a vote is for a target that does not exist"),
        ("target_weights", [0.5], "not 2 treeids, 2 nodeids, 2 ids, 1 weights"),
        ("base_values", [1.0, 2.0], "there are 1 targets but 2 base_values"),
        ("aggregate_function", "MEDIAN", "aggregate_function is 'MEDIAN', none of AVERAGE, SUM"),
        ("n_targets", 0, "there are 0 targets"),
        ("post_transform", "RELU", "post_transform is 'RELU'"),
    ],
)
def test_refusals(name: str, value: Any, message: str) -> None:
    tree = Tree(mode="LEQ", true=Tree([(0, 1.0)]), false=Tree([(0, 2.0)]))
    options = {"n_targets": 1, **old([tree], "target")} | {name: value}
    with pytest.raises(UserError, match=message) as caught:
        graph_of("TreeEnsembleRegressor", [samples(1)], **options)
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("aggregate_function", 4, ModelError, "aggregate_function is 4, which is unknown"),
        ("post_transform", 5, ModelError, "post_transform is '5'"),
        ("tree_roots", [2], TypeRuleError, "roots name a node or leaf that does not exist"),
        ("nodes_truenodeids", [5], TypeRuleError, "true_children name a node or leaf"),
        ("nodes_truenodeids", [-1], ModelError, "nodes_truenodeids has a negative number"),
        ("nodes_trueleafs", [0], TypeRuleError, "the nodes form a cycle"),
        ("nodes_featureids", [0, 1], TypeRuleError, "there are 2 nodes but 1 branches"),
        ("nodes_modes", as_tensor([7], np.uint8), TypeRuleError, "a node's branch is unknown"),
        (
            "nodes_modes",
            as_tensor([6], np.uint8),
            ModelError,
            "membership_values hold 0 sets for 1 BRANCH_MEMBER nodes",
        ),
        ("leaf_targetids", [0], TypeRuleError, "votes' targets and weights differ"),
    ],
)
def test_tree_ensemble_refusals(
    name: str, value: Any, error: type[UserError], message: str
) -> None:
    tree = Tree(mode="LEQ", true=Tree([(0, 1.0)]), false=Tree([(0, 2.0)]))
    options = {"opset": 5, "n_targets": 1, **new([tree], np.float32)} | {name: value}
    with pytest.raises(error, match=message):
        graph_of("TreeEnsemble", [samples(1)], **options)


def test_samples_are_numbers_in_rows() -> None:
    options = {"n_targets": 1, **old(forest(1), "target")}
    with pytest.raises(ModelError, match=r"wants samples \[N, F\], not float32\[1, 2, 4\]"):
        graph_of("TreeEnsembleRegressor", [samples(1, 2)[np.newaxis]], **options)
    types = [helper.make_tensor_type_proto(TensorProto.STRING, [2, 4])]
    with pytest.raises(TypeRuleError, match="the samples are string, not numbers"):
        graph_of("TreeEnsembleRegressor", [None], types=types, **options)
