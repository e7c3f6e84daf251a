"""Forests of decision trees: `ml.tree_ensemble`, for any number of samples.

The attributes become tables of nodes that all ask one question: whether a feature is at most a
threshold. All branches of ONNX reduce to it: `x < t` is `x <= p` with the number p before t; the
opposite of a question exchanges the children; `x == t` is two questions, and a set is as many as it
has members. A leaf is its own child, so that trees are walked down a fixed number of levels.

The threads share the samples. Several samples walk down a tree side by side, so that none waits for
another's loads; each remaining one walks down several trees. Votes are summed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dtypes import Array, DType, dtype_of
from graft.loop.build import Term, call, cast, load, maximum, minimum, select, term
from graft.loop.ir import INDEX, Buffer
from graft.loop.statements import Cell, scratch
from graft.ops.ml_trees import Branch, TreeEnsembleAttrs
from graft.target.target import Target


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
        branch, thresholds = attrs.branches.array, attrs.thresholds.array.astype(compared)
        true, false = (
            a.array.astype(np.int64) for a in (attrs.true_children, attrs.false_children)
        )
        # What is compared with NaN never holds, whichever way it is asked.
        is_inverted = np.isin(branch, (Branch.GT, Branch.GTE)) & ~np.isnan(thresholds) | (
            branch == Branch.NEQ
        )
        self.true, self.false = (
            np.where(is_inverted, false, true),
            np.where(is_inverted, true, false),
        )
        self.nan_is_true = attrs.nan_is_true.array.astype(bool) ^ is_inverted
        self.nan_is_true &= branch != Branch.NEQ
        self.features = attrs.features.array.astype(np.int64)
        strict = np.isin(branch, (Branch.LT, Branch.GTE))
        self.thresholds = np.where(strict, _before(thresholds), thresholds)
        self._more: list[tuple[int, Array, int, int]] = []
        members, owners = attrs.members.array.astype(compared), attrs.member_nodes.array
        for node in np.flatnonzero(np.isin(branch, (Branch.EQ, Branch.NEQ))).tolist():
            self._ask_for(node, thresholds[node : node + 1])
        for node in np.flatnonzero(branch == Branch.MEMBER).tolist():
            self._ask_for(node, members[owners == node])
        self._append()

    def _ask_for(self, node: int, numbers: Array) -> None:
        """Make a node the first of those that ask for some numbers one after the other."""
        if_equal, otherwise = int(self.true[node]), int(self.false[node])
        if not numbers.size:
            self.thresholds[node] = np.nan
        for number in numbers[:0:-1]:
            below = self._add(node, _before(number), otherwise, if_equal)
            otherwise = self._add(node, number, below, otherwise)
        for number in numbers[:1]:
            self.thresholds[node] = number
            self.true[node] = self._add(node, _before(number), otherwise, if_equal)
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


# Samples that walk down a tree side by side, or trees that a sample walks down.
_ABREAST = 8


@node_kernel("ml.tree_ensemble")
def forest(group: Group, stores: Stores, _target: Target) -> Plan:
    """A forest of decision trees, several samples side by side."""
    return node_plan(group, stores, lambda writer: _Walk(writer).write())


class _Walk:
    """Writes the loops over samples, trees and levels."""

    def __init__(self, writer: Writer) -> None:
        self._code, node = writer.code, writer.group.node
        self._rows, self._columns = (writer.dim(dim) for dim in shape_of(node.args[0]))
        self._data, self._result = writer.present_operand(0), writer.result(0)
        self._compared = _compared_in(self._data.dtype, node.attrs.thresholds.array.dtype)
        forest = forest_of(node.attrs, self._compared.numpy)
        self._first_leaf, self._trees = forest.first_leaf, len(forest.roots)
        self._features = writer.table(forest.features, "features")
        self._thresholds = writer.table(forest.thresholds, "thresholds")
        self._children = writer.table(forest.children, "children")
        self._roots = writer.table(forest.roots, "roots")
        self._depths = writer.table(forest.depths, "depths")
        groups = np.resize(forest.depths, (self._trees // _ABREAST, _ABREAST))
        self._group_depths = writer.table(np.append(groups.max(axis=1), 0), "group_depths")
        nan_matters = bool(forest.nan_is_first.any())
        self._nan_is_first = writer.table(forest.nan_is_first, "nan_first") if nan_matters else None
        self._votes = _Votes(writer, node.attrs)

    def write(self) -> None:
        code, whole = self._code, self._rows // _ABREAST
        with code.parallel("several", whole) as iteration:
            rows = [iteration * _ABREAST + number for number in range(_ABREAST)]
            with self._samples(rows) as totals:
                self._tree_by_tree(0, rows, totals)
        with code.parallel("one", self._rows % _ABREAST) as iteration:
            row = whole * _ABREAST + iteration
            with self._samples([row]) as totals:
                self._several_trees(row, totals)

    @contextmanager
    def _samples(self, rows: Sequence[Term]) -> Iterator[Sequence[Buffer]]:
        """The votes for some samples, to the result in the end."""
        totals = self._votes.memory(len(rows))
        with self._code.memory(*totals):
            self._votes.begin(totals)
            yield totals
            for number, row in enumerate(rows):
                self._votes.end(totals, number, self._result, row)

    def _tree_by_tree(self, first: int, rows: Sequence[Term], totals: Sequence[Buffer]) -> None:
        """All samples down one tree after the other."""
        with self._code.loop("tree", self._trees - first) as iteration:
            tree = iteration + first
            walkers = [(tree, number, row) for number, row in enumerate(rows)]
            self._descend(load(self._depths, tree), walkers, totals)

    def _several_trees(self, row: Term, totals: Sequence[Buffer]) -> None:
        """One sample down groups of trees, each as far as the deepest of them goes."""
        groups = self._trees // _ABREAST
        with self._code.loop("group", groups) as group:
            walkers = [(group * _ABREAST + number, 0, row) for number in range(_ABREAST)]
            self._descend(load(self._group_depths, group), walkers, totals)
        self._tree_by_tree(groups * _ABREAST, [row], totals)

    def _descend(
        self, depth: Term, walkers: Sequence[tuple[Term, int, Term]], totals: Sequence[Buffer]
    ) -> None:
        """Walkers, each a tree, the number of a sample and its row, down so many levels."""
        code, places = self._code, [Cell(f"place{number}") for number in range(len(walkers))]
        with code.memory(*places):
            for place, (tree, _, _) in zip(places, walkers, strict=True):
                code.set(place, cast(INDEX, load(self._roots, tree)))
            with code.loop("level", cast(INDEX, depth)):
                for place, (_, _, row) in zip(places, walkers, strict=True):
                    self._step(place, row)
            for place, (_, sample, _) in zip(places, walkers, strict=True):
                self._votes.count(totals, sample, place.value - self._first_leaf)

    def _step(self, place: Cell, row: Term) -> None:
        """One question further down."""
        code = self._code
        with code.scope():
            node = code.let(f"{place.name}_node", place.value)
            feature = cast(INDEX, load(self._features, node))
            number = cast(self._compared, load(self._data, row * self._columns + feature))
            value = code.let(f"{place.name}_value", number)
            holds = value <= load(self._thresholds, node)
            if self._nan_is_first is not None:
                holds = holds | (call("isnan", value) & load(self._nan_is_first, node))
            child = load(self._children, node * 2 + select(holds, term(0), term(1)))
            code.set(place, cast(INDEX, child))


class _Votes:
    """What leaves say, gathered for each target of some samples."""

    def __init__(self, writer: Writer, attrs: TreeEnsembleAttrs) -> None:
        self._code, self._targets, self._how = writer.code, attrs.targets, attrs.aggregate
        self._trees = max(1, attrs.roots.array.size)
        starts = attrs.leaf_starts.array
        self._one_each = np.array_equal(starts, np.arange(len(starts)))
        self._starts = None if self._one_each else writer.table(starts.astype(np.int64), "starts")
        self._of = writer.table(attrs.vote_targets.array.astype(np.int32), "vote_targets")
        self._weights = writer.table(attrs.vote_weights.array, "weights")

    @property
    def _extreme(self) -> bool:
        return self._how in ("MIN", "MAX")

    def memory(self, samples: int) -> tuple[Buffer, ...]:
        """For so many samples: sums or extremes, and for these whether there are any votes."""
        totals = scratch("totals", DType.FLOAT64, samples * self._targets)
        voted = scratch("voted", DType.BOOL, samples * self._targets)
        return (totals, voted) if self._extreme else (totals,)

    def begin(self, memory: Sequence[Buffer]) -> None:
        least = {"MIN": np.inf, "MAX": -np.inf}.get(self._how, 0.0)
        (size,) = memory[0].extents
        with self._code.loop("begun", Term(size)) as at:
            for buffer, value in zip(memory, (least, False), strict=False):
                self._code.store(buffer, at, term(value, buffer.dtype))

    def count(self, memory: Sequence[Buffer], sample: int, leaf: Term) -> None:
        """The votes of a leaf."""
        code, name = self._code, f"vote{sample}"
        with code.scope():
            if self._starts is None:
                self._add(memory, sample, code.let(name, leaf))
                return
            own = code.let(f"leaf{sample}", leaf)
            begin = load(self._starts, own)
            with code.loop(name, load(self._starts, own + 1) - begin, begin) as at:
                self._add(memory, sample, at)

    def _add(self, memory: Sequence[Buffer], sample: int, at: Term) -> None:
        code, (totals, *voted) = self._code, memory
        target = cast(INDEX, load(self._of, at)) + sample * self._targets
        place = code.let(f"target{sample}", target)
        total, weight = load(totals, place), cast(DType.FLOAT64, load(self._weights, at))
        if not self._extreme:
            code.store(totals, place, total + weight)
            return
        code.store(totals, place, (minimum if self._how == "MIN" else maximum)(total, weight))
        for buffer in voted:
            code.store(buffer, place, term(True, DType.BOOL))

    def end(self, memory: Sequence[Buffer], sample: int, result: Buffer, row: Term) -> None:
        """What came of a sample, into the result."""
        totals, *voted = memory
        with self._code.loop(f"target{sample}_of", self._targets) as target:
            place = target + sample * self._targets
            value = load(totals, place)
            if self._how == "AVERAGE":
                value = value / float(self._trees)
            for buffer in voted:
                value = select(load(buffer, place), value, term(0.0, DType.FLOAT64))
            at = row * self._targets + target
            self._code.store(result, at, cast(result.dtype, value))


def _compared_in(data: DType, thresholds: np.dtype) -> DType:
    """What features and thresholds are compared in: nothing is lost of either."""
    wide = DType.FLOAT64 if data.is_integer or data is DType.FLOAT64 else DType.FLOAT32
    return dtype_of(np.promote_types(wide.numpy, thresholds))
