"""Decision trees of which every node asks the same question: attributes in, tables out.

A node goes to its first child where its feature is at most its threshold. All branches that ONNX
has come down to that: `x < t` is `x <= p` with the number p before t; the opposite of a question
changes the children; `x == t` is two questions, and a set is as many as it has members. A leaf is a
node that leads to itself, so that trees are walked down as many levels as they have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.ops.ml_trees import Branch, TreeEnsembleAttrs


@dataclass(frozen=True)
class Forest:
    """Nodes and then leaves; `children` holds two of each, the first where the question holds."""

    features: Array
    thresholds: Array
    children: Array
    nan_is_first: Array
    roots: Array
    depths: Array
    first_leaf: int


def forest_of(attrs: TreeEnsembleAttrs, compared: np.dtype) -> Forest:
    """The tables, for features that are compared in a floating dtype."""
    with np.errstate(invalid="ignore"):
        grown = _Nodes(attrs, compared)
    nodes, leaves = len(grown.features), attrs.leaf_starts.array.size - 1
    own = np.arange(nodes, nodes + leaves)
    children = np.concatenate([np.stack([grown.true, grown.false], 1), np.stack([own, own], 1)])
    children = np.where(children < 0, nodes + ~children, children)
    roots = attrs.roots.array
    roots = np.where(roots < 0, nodes + ~roots, roots)
    nowhere = np.full(leaves, np.nan, compared)
    return Forest(
        np.concatenate([grown.features, np.zeros(leaves, np.int64)]).astype(np.int32),
        np.concatenate([grown.thresholds, nowhere]).astype(compared),
        children.reshape(-1).astype(np.int32),
        np.concatenate([grown.nan_is_true, np.zeros(leaves, bool)]),
        roots.astype(np.int32),
        _heights(children, nodes)[roots].astype(np.int32),
        nodes,
    )


def _heights(children: Array, nodes: int) -> Array:
    """How many levels there are below each node."""
    height = np.zeros(len(children), np.int64)
    while True:
        higher = 1 + height[children[:nodes]].max(axis=1, initial=0)
        if np.array_equal(higher, height[:nodes]):
            return height
        height[:nodes] = higher


class _Nodes:
    """Columns of nodes; those that ask more than one question grow more nodes."""

    def __init__(self, attrs: TreeEnsembleAttrs, compared: np.dtype) -> None:
        branch, given = attrs.branches.array, attrs.thresholds.array.astype(compared)
        true, false = (
            a.array.astype(np.int64) for a in (attrs.true_children, attrs.false_children)
        )
        # What is compared with NaN never holds, whichever way it is asked.
        turned = np.isin(branch, (Branch.GT, Branch.GTE)) & ~np.isnan(given) | (
            branch == Branch.NEQ
        )
        self.true, self.false = np.where(turned, false, true), np.where(turned, true, false)
        self.nan_is_true = attrs.nan_is_true.array.astype(bool) ^ turned
        self.nan_is_true &= branch != Branch.NEQ
        self.features = attrs.features.array.astype(np.int64)
        strict = np.isin(branch, (Branch.LT, Branch.GTE))
        self.thresholds = np.where(strict, _before(given), given)
        self._more: list[tuple[int, Array, int, int]] = []
        members, owners = attrs.members.array.astype(compared), attrs.member_nodes.array
        for node in np.flatnonzero(np.isin(branch, (Branch.EQ, Branch.NEQ))).tolist():
            self._ask_for(node, given[node : node + 1])
        for node in np.flatnonzero(branch == Branch.MEMBER).tolist():
            self._ask_for(node, members[owners == node])
        self._append()

    def _ask_for(self, node: int, numbers: Array) -> None:
        """Make a node the first of those that ask for some numbers one after the other."""
        found, otherwise = int(self.true[node]), int(self.false[node])
        if not numbers.size:
            self.thresholds[node] = np.nan
        for number in numbers[:0:-1]:
            below = self._add(node, _before(number), otherwise, found)
            otherwise = self._add(node, number, below, otherwise)
        for number in numbers[:1]:
            self.thresholds[node] = number
            self.true[node] = self._add(node, _before(number), otherwise, found)
            self.false[node] = otherwise

    def _add(self, like: int, threshold: Array, true: int, false: int) -> int:
        """Another node with the feature of one; its number."""
        self._more.append((int(self.features[like]), threshold, true, false))
        return len(self.features) + len(self._more) - 1

    def _append(self) -> None:
        if self._more:
            features, thresholds, true, false = zip(*self._more, strict=True)
            self.features = np.append(self.features, features)
            self.thresholds = np.append(self.thresholds, thresholds)
            self.true, self.false = np.append(self.true, true), np.append(self.false, false)
            self.nan_is_true = np.append(self.nan_is_true, np.zeros(len(true), bool))


def _before(numbers: Array) -> Array:
    """The number before each; NaN, which nothing is at most, where there is none."""
    before = np.nextafter(numbers, np.array(-np.inf, numbers.dtype))
    return np.where(np.isneginf(numbers), np.array(np.nan, numbers.dtype), before)
