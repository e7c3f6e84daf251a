"""Forests of decision trees: samples -> one aggregated vote per target.

All trees walk all samples down together, one level per step. A child is the number of a node, or,
where negative, `~leaf`; a leaf holds the votes from `leaf_starts[leaf]` to the next leaf's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from graft.base.dim_questions import provably_below
from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.literal import Literal
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.ops.rules import operator, require

_WAITING = 10
# So many (sample, tree) pairs walk at once.
_BLOCK = 1 << 20


class Branch(IntEnum):
    """How a node compares its feature with its threshold, or with its set of members."""

    LEQ = 0
    LT = 1
    GTE = 2
    GT = 3
    EQ = 4
    NEQ = 5
    MEMBER = 6


_COMPARE = {
    Branch.LEQ: np.less_equal,
    Branch.LT: np.less,
    Branch.GTE: np.greater_equal,
    Branch.GT: np.greater,
    Branch.EQ: np.equal,
    Branch.NEQ: np.not_equal,
}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True, slots=True)
class TreeEnsembleAttrs(Attrs):
    """Per node: feature, branch, threshold, children, and whether NaN goes to the true child.

    Without that, NaN goes where the comparison sends it: to the true child for NEQ alone.
    `members` lists numbers and `member_nodes` the node that each belongs to. The votes' dtype is
    the result's. Votes of one target are aggregated over all trees; AVERAGE divides by their
    number; a target without a vote gets 0.
    """

    roots: Literal
    features: Literal
    branches: Literal
    thresholds: Literal
    true_children: Literal
    false_children: Literal
    nan_is_true: Literal
    leaf_starts: Literal
    vote_targets: Literal
    vote_weights: Literal
    members: Literal
    member_nodes: Literal
    targets: int
    aggregate: str = "SUM"


_PER_NODE = ("branches", "thresholds", "true_children", "false_children", "nan_is_true")


def _check(attrs: TreeEnsembleAttrs) -> None:
    nodes = attrs.features.array.size
    for name in _PER_NODE:
        size = getattr(attrs, name).array.size
        require(size == nodes, f"there are {nodes} nodes but {size} {name}")
    votes, leaves = attrs.vote_targets.array, attrs.leaf_starts.array.size - 1
    require(votes.size == attrs.vote_weights.array.size, "votes' targets and weights differ")
    starts = attrs.leaf_starts.array
    ordered = leaves >= 0 and starts[0] == 0 and starts[-1] == votes.size
    require(bool(ordered and (np.diff(starts) >= 0).all()), "the leaves do not divide the votes")
    require(attrs.targets > 0, f"there are {attrs.targets} targets")
    require(_inside(votes, 0, attrs.targets), "a vote is for a target that does not exist")
    require(_inside(attrs.branches.array, 0, len(Branch)), "a node's branch is unknown")
    for name in ("roots", "true_children", "false_children"):
        array = getattr(attrs, name).array
        require(_inside(array, -leaves, nodes), f"{name} name a node or leaf that does not exist")
    require(attrs.members.array.size == attrs.member_nodes.array.size, "members lack nodes")
    require(attrs.aggregate in _AGGREGATES, f"the aggregate is '{attrs.aggregate}'")
    require(_is_forest(attrs), "the nodes form a cycle")


def _inside(array: Array, low: int, end: int) -> bool:
    return not array.size or bool(array.min() >= low and array.max() < end)


def _outermost(features: Array) -> int:
    lowest, highest = int(features.min(initial=0)), int(features.max(initial=0))
    return lowest if lowest < 0 else highest


def _is_forest(attrs: TreeEnsembleAttrs) -> bool:
    """Whether every path from the roots ends: level by level, no more levels than nodes."""
    children = np.stack([attrs.true_children.array, attrs.false_children.array])
    level = np.unique(attrs.roots.array)
    for _ in range(children.shape[1] + 1):
        level = level[level >= 0]
        if not level.size:
            return True
        level = np.unique(children[:, level])
    return False


def _type(attrs: TreeEnsembleAttrs, data: TensorType) -> TensorType:
    _check(attrs)
    numbers = data.dtype.is_float or data.dtype.is_integer
    require(numbers, f"the samples are {data.dtype}, not numbers")
    rows: AnyDim = UNKNOWN
    if data.shape is not None:
        require(len(data.shape) == 2, f"the samples have rank {len(data.shape)}, not 2")
        rows, columns = data.shape
        features = attrs.features.array
        outermost = _outermost(features)
        there = not features.size or (outermost >= 0 and not provably_below(columns, outermost + 1))
        require(there, f"a node asks for feature {outermost}, counted from 0, of {columns}")
    return TensorType(attrs.vote_weights.type.dtype, (rows, attrs.targets))


def _leaves(attrs: TreeEnsembleAttrs, data: Array) -> Array:
    """The leaf that each sample reaches in each tree: [samples, trees]."""
    at = np.repeat(attrs.roots.array[np.newaxis], len(data), axis=0)
    member = _membership(attrs)
    while (walking := at >= 0).any():
        sample, _tree = np.nonzero(walking)
        node = at[walking]
        value = data[sample, attrs.features.array[node]]
        holds = np.zeros(len(node), bool)
        branch = attrs.branches.array[node]
        for kind in np.unique(branch).tolist():
            of_kind = branch == kind
            if kind == Branch.MEMBER:
                holds[of_kind] = member(node[of_kind], value[of_kind])
            else:
                threshold = attrs.thresholds.array[node[of_kind]]
                holds[of_kind] = _COMPARE[Branch(kind)](value[of_kind], threshold)
        holds |= attrs.nan_is_true.array[node] & np.isnan(value)
        true, false = attrs.true_children.array[node], attrs.false_children.array[node]
        at[walking] = np.where(holds, true, false)
    return np.asarray(~at)


def _membership(attrs: TreeEnsembleAttrs) -> Callable[[Array, Array], Array]:
    """A predicate: whether values are members of their nodes' sets."""
    numbers, code = np.unique(attrs.members.array, return_inverse=True)
    pairs = np.unique(attrs.member_nodes.array * np.int64(max(1, numbers.size)) + code)

    def is_member(node: Array, value: Array) -> Array:
        if not numbers.size:
            return np.zeros(len(node), bool)
        position = np.minimum(np.searchsorted(numbers, value), numbers.size - 1)
        pair = node * numbers.size + position
        at = np.minimum(np.searchsorted(pairs, pair), pairs.size - 1)
        return np.asarray((numbers[position] == value) & (pairs[at] == pair))

    return is_member


def _aggregate(attrs: TreeEnsembleAttrs, leaves: Array) -> Array:
    """The votes of the leaves [samples, trees], as [samples, targets] in float64."""
    starts, targets = attrs.leaf_starts.array, attrs.vote_targets.array
    begin, end = starts[leaves], starts[leaves + 1]
    extreme = {"MIN": np.minimum, "MAX": np.maximum}.get(attrs.aggregate)
    result = np.zeros((len(leaves), attrs.targets))
    voted = np.zeros(result.shape, bool)
    if extreme is not None:
        result += np.inf if attrs.aggregate == "MIN" else -np.inf
    for offset in range(int((end - begin).max(initial=0))):
        has_vote = begin + offset < end
        sample, _tree = np.nonzero(has_vote)
        vote = begin[has_vote] + offset
        position = (sample, targets[vote])
        combine = np.add if extreme is None else extreme
        combine.at(result, position, attrs.vote_weights.array[vote].astype(np.float64))
        voted[position] = True
    if attrs.aggregate == "AVERAGE":
        result /= max(1, leaves.shape[1])
    return np.asarray(np.where(voted, result, 0))


def _work(attrs: TreeEnsembleAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """One comparison per level, where trees are as balanced as trees of that size can be. It waits
    for what it reads, as long as several operations take."""
    trees, nodes = attrs.roots.array.size, attrs.features.array.size
    levels = math.ceil(math.log2(nodes / max(1, trees) + 1))
    rows = outs[0].shape[0] if outs[0].shape else UNKNOWN
    return Work(0, rows * (trees * (levels + 1) * _WAITING), traffic(ins, outs))


@operator("ml.tree_ensemble", "data", _type, work=_work)
def _meaning(attrs: TreeEnsembleAttrs, data: Array) -> Array:
    """Per sample the aggregated leaves that a forest of decision trees leads to."""
    features = attrs.features.array
    if features.size and features.max() >= data.shape[1]:
        raise IndexError(f"a node asks for feature {features.max()} of {data.shape[1]}")
    if data.dtype.kind != "f" or data.dtype.itemsize < 4:
        data = data.astype(np.float64 if data.dtype.kind in "iu" else np.float32)
    step = max(1, _BLOCK // max(1, attrs.roots.array.size))
    blocks = [
        _aggregate(attrs, _leaves(attrs, data[start : start + step]))
        for start in range(0, len(data), step)
    ]
    dtype = attrs.vote_weights.array.dtype
    return np.concatenate([np.zeros((0, attrs.targets)), *blocks]).astype(dtype)
