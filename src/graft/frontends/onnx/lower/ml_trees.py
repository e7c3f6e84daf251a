"""ai.onnx.ml: forests of decision trees, in the old encoding and in that of `TreeEnsemble`.

ONNX says little about how a classifier's votes become labels. Graft does it so:
- Votes for a single one of two classes are one score, the second class's. The second class wins
  above 0.5 where no weight is negative, and above 0 otherwise. Where the votes name the first
  class, as converters write it, the first class's score is what is left of 1, or the opposite.
- Else the class with the highest score wins, the first of equals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.lower.ml_features import ML, labels_of
from graft.frontends.onnx.lower.ml_scores import (
    PostTransform,
    binary_scores,
    label_above,
    post_transform,
    samples,
    top_label,
    transformed,
)
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value
from graft.ops.ml_trees import Branch

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _integers(call: Call, name: str, default: Any = None) -> Array:
    return np.array(call.ints(name) if default is None else call.ints(name, default), np.int64)


def _numbers(call: Call, name: str) -> Array:
    """A list of numbers, in single precision or, as a tensor, in double; empty if absent."""
    if call.has(f"{name}_as_tensor"):
        return call.tensor(f"{name}_as_tensor").reshape(-1)
    return np.array(call.ints(name, ()), np.float32)


def _same_length(call: Call, **lists: Array) -> None:
    sizes = {name: len(array) for name, array in lists.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} {name}" for name, size in sizes.items())
        call.fail(f"lists of one length are wanted, not {listed}")


def _positions(call: Call, keys: Array, expected: Array, what: str) -> Array:
    """The index of each pair (tree, node) among the keys; a missing one is an error."""
    node_numbers = {key: at for at, key in enumerate(map(tuple, keys.tolist()))}
    if len(node_numbers) < len(keys):
        call.fail("a tree has two nodes of one number")
    positions = [node_numbers.get(key, -1) for key in map(tuple, expected.tolist())]
    if -1 in positions:
        tree, node = expected[positions.index(-1)].tolist()
        call.fail(f"{what} name node {node} of tree {tree}, which does not exist")
    return np.array(positions, np.int64)


def _old_forest(call: Call, prefix: str) -> dict[str, Any]:
    """The attributes of `ml.tree_ensemble` from lists in which leaves are nodes too."""
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    nodes = {name: _integers(call, f"nodes_{name}") for name in names}
    modes = np.array(call.ints("nodes_modes"), object)
    values = _numbers(call, "nodes_values")
    tracks = _integers(call, "nodes_missing_value_tracks_true", (0,) * len(modes))
    _same_length(call, **nodes, modes=modes, values=values, missing_value_tracks=tracks)
    keys = np.stack([nodes["treeids"], nodes["nodeids"]], axis=1)
    leaf = modes == "LEAF"
    branch_names = {f"BRANCH_{branch.name}": branch for branch in Branch if branch != Branch.MEMBER}
    unknown = set(modes[~leaf].tolist()) - set(branch_names)
    if unknown:
        call.fail(f"the node mode '{min(unknown)}' is unknown")
    number = np.where(leaf, ~(np.cumsum(leaf) - 1), np.cumsum(~leaf) - 1)
    children = {}
    for way in ("true", "false"):
        pairs = np.stack([nodes["treeids"], nodes[f"{way}nodeids"]], axis=1)[~leaf]
        at = _positions(call, keys, pairs, f"nodes_{way}nodeids")
        children[f"{way}_children"] = number[at]
    _, first = np.unique(nodes["treeids"], return_index=True)
    return {
        "roots": number[first],
        "features": nodes["featureids"][~leaf],
        "branches": np.array([branch_names[mode] for mode in modes[~leaf]], np.uint8),
        "thresholds": values[~leaf],
        "nan_is_true": tracks[~leaf] != 0,
        "members": values[:0],
        "member_nodes": nodes["nodeids"][:0],
        **children,
        **_old_votes(call, prefix, keys, leaf),
    }


def _old_votes(call: Call, prefix: str, keys: Array, leaf: Array) -> dict[str, Array]:
    """The votes, sorted by leaf; those at other nodes never count."""
    names = ("treeids", "nodeids", "ids")
    trees, nodes, ids = (_integers(call, f"{prefix}_{name}") for name in names)
    weights = _numbers(call, f"{prefix}_weights")
    _same_length(call, treeids=trees, nodeids=nodes, ids=ids, weights=weights)
    at = _positions(call, keys, np.stack([trees, nodes], axis=1), f"{prefix}_nodeids")
    leaves = leaf[at]
    owner = (np.cumsum(leaf) - 1)[at[leaves]]
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=int(leaf.sum()))
    return {
        "leaf_starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "vote_targets": ids[leaves][order],
        "vote_weights": weights[leaves][order],
    }


def _with_base(call: Call, scores: Value, base: Array) -> Value:
    """The aggregated votes plus what each target starts from, in float32."""
    if base.size:
        count = (scores.shape or ())[-1]
        if base.size != count:
            call.fail(f"there are {count} targets but {base.size} base_values")
        offset = call.constant(base.astype(scores.dtype.numpy))
        scores = call.op("nn.bias_add", scores, offset, axis=-1)
    return cast_to(call, scores, DType.FLOAT32)


@lowers("TreeEnsembleRegressor", domain=ML)
def _regressor(call: Call) -> Value:
    forest = _old_forest(call, "target")
    aggregate = call.string("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        call.fail(f"aggregate_function is '{aggregate}', none of {', '.join(_AGGREGATES)}")
    targets = call.int("n_targets", _highest(forest["vote_targets"]) + 1)
    scores = call.op(
        "ml.tree_ensemble", samples(call), **forest, targets=targets, aggregate=aggregate
    )
    scores = _with_base(call, scores, _numbers(call, "base_values"))
    return transformed(call, scores, post_transform(call))


def _highest(array: Array) -> int:
    return int(array.max(initial=0))


@lowers("TreeEnsembleClassifier", domain=ML)
def _classifier(call: Call) -> tuple[Value, Value]:
    forest, transform = _old_forest(call, "class"), post_transform(call)
    labels = labels_of(call, ("classlabels_int64s", "classlabels_strings"))
    base, voted = _numbers(call, "base_values"), set(call.ints("class_ids"))
    classes = len(labels)
    if classes == 2 and len(voted) == 1:
        return _binary(call, forest, labels, base, transform)
    scores = call.op("ml.tree_ensemble", samples(call), **forest, targets=classes)
    scores = _with_base(call, scores, base)
    if classes == 1:
        return label_above(call, scores, 0, labels), transformed(call, scores, transform)
    return top_label(call, scores, labels), transformed(call, scores, transform)


def _binary(
    call: Call, forest: dict[str, Any], labels: Array, base: Array, transform: PostTransform
) -> tuple[Value, Value]:
    """Two classes of which the votes name but one."""
    positive = bool((forest["vote_weights"] >= 0).all())
    threshold = 0.5 if positive else 0.0
    second = call.ints("class_ids")[0] == 1
    if base.size == 1:
        base = np.array([0, base[0]]) if second else base
    elif base.size == 2 and not second:
        base = base[:1]
    targets = 2 if second else 1
    scores = call.op("ml.tree_ensemble", samples(call), **forest, targets=targets)
    scores = _with_base(call, scores, base)
    if not second:
        label = label_above(call, scores, threshold, labels)
        return label, binary_scores(call, scores, transform, complement=positive)
    score = call.op("strided_slice", scores, begin=(1,), end=(2,), axes=(1,), strides=(1,))
    return label_above(call, score, threshold, labels), transformed(call, scores, transform)


@lowers("TreeEnsemble", domain=ML)
def _tree_ensemble(call: Call) -> Value:
    data, aggregate = samples(call), call.int("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        call.fail(f"aggregate_function is {aggregate}, which is unknown")
    targets = _integers(call, "leaf_targetids")
    scores = call.op(
        "ml.tree_ensemble",
        data,
        **_new_forest(call),
        leaf_starts=np.arange(len(targets) + 1),
        vote_targets=targets,
        vote_weights=call.tensor("leaf_weights").reshape(-1),
        targets=call.int("n_targets", _highest(targets) + 1),
        aggregate=_AGGREGATES[aggregate],
    )
    return transformed(call, cast_to(call, scores, data.dtype), post_transform(call))


def _new_forest(call: Call) -> dict[str, Array]:
    branches = call.tensor("nodes_modes").reshape(-1)
    splits = call.tensor("nodes_splits").reshape(-1)
    tracks = _integers(call, "nodes_missing_value_tracks_true", (0,) * len(branches))
    children = {}
    for way in ("true", "false"):
        ids, is_leaf = (_integers(call, f"nodes_{way}{what}") for what in ("nodeids", "leafs"))
        _same_length(call, nodeids=ids, leafs=is_leaf, modes=branches)
        if (ids < 0).any():
            call.fail(f"nodes_{way}nodeids has a negative number")
        children[f"{way}_children"] = np.where(is_leaf != 0, ~ids, ids)
    members, owners = _members(call, np.flatnonzero(branches == Branch.MEMBER))
    return {
        "roots": _integers(call, "tree_roots"),
        "features": _integers(call, "nodes_featureids"),
        "branches": branches,
        "thresholds": splits,
        "nan_is_true": tracks != 0,
        "members": members,
        "member_nodes": owners,
        **children,
    }


def _members(call: Call, nodes: Array) -> tuple[Array, Array]:
    """The members of the nodes' sets, which NaN separates, and the node that each belongs to."""
    listed = np.zeros(0, np.float32)
    if call.has("membership_values"):
        listed = call.tensor("membership_values").reshape(-1)
    ends = np.isnan(listed.astype(np.float64))
    sets = int(ends.sum()) + int(listed.size > 0 and not ends[-1])
    if sets != len(nodes):
        call.fail(f"membership_values hold {sets} sets for {len(nodes)} BRANCH_MEMBER nodes")
    owner = np.cumsum(ends)[~ends]
    return listed[~ends], nodes[owner]
