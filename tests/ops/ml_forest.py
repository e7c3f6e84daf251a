"""Random forests of decision trees, walked by recursion, and how ONNX writes them down.

For the tests of ai.onnx.ml's tree operators: in goes a seed, out come trees as nested nodes, the
scores that they give, and the attributes of the ONNX operators in the old and the new encoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import numpy_helper

from graft.ops.ml_trees import Branch

FEATURES = 4
PLAIN = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
NAN = float("nan")
COMPARE = {
    "LEQ": lambda x, node: x <= node.threshold,
    "LT": lambda x, node: x < node.threshold,
    "GTE": lambda x, node: x >= node.threshold,
    "GT": lambda x, node: x > node.threshold,
    "EQ": lambda x, node: x == node.threshold,
    "NEQ": lambda x, node: x != node.threshold,
    "MEMBER": lambda x, node: x in node.members,
}


@dataclass
class Tree:
    """A node with two children, or a leaf with votes (target, weight)."""

    votes: list[tuple[int, float]] = field(default_factory=list)
    mode: str = "LEAF"
    feature: int = 0
    threshold: float = 0.0
    tracks_nan: bool = False
    members: list[float] = field(default_factory=list)
    true: Tree | None = None
    false: Tree | None = None

    def walk(self, row: Any) -> Tree:
        if self.true is None or self.false is None:
            return self
        value = float(row[self.feature])
        holds = COMPARE[self.mode](value, self) or (self.tracks_nan and math.isnan(value))
        return (self.true if holds else self.false).walk(row)

    def nodes(self) -> list[Tree]:
        children = [child for child in (self.true, self.false) if child is not None]
        return [self, *[node for child in children for node in child.nodes()]]


def grow(
    random: np.random.Generator, depth: int, modes: tuple[str, ...], targets: list[int], **more: Any
) -> Tree:
    """A random tree; `positive` weights, so many `votes` per leaf."""
    if depth == 0 or random.random() < 0.15:
        count = int(random.integers(*more.get("votes", (1, 2))))
        low = 0.0 if more.get("positive") else -1.0
        chosen = random.choice(targets, count, replace=False).tolist()
        return Tree([(target, round(float(random.uniform(low, 1)), 3)) for target in chosen])
    return Tree(
        mode=str(random.choice(modes)),
        feature=int(random.integers(FEATURES)),
        threshold=float(random.integers(-2, 3)) / 2,
        tracks_nan=bool(more.get("tracks") and random.random() < 0.5),
        members=[float(n) / 2 for n in random.integers(-2, 3, random.integers(0, 3))],
        true=grow(random, depth - 1, modes, targets, **more),
        false=grow(random, depth - 1, modes, targets, **more),
    )


def forest(seed: int, count: int = 5, depth: int = 4, modes: tuple[str, ...] = PLAIN,
           targets: tuple[int, ...] = (0,), **more: Any) -> list[Tree]:  # fmt: skip
    random = np.random.default_rng(seed)
    return [grow(random, depth, modes, list(targets), **more) for _ in range(count)]


def samples(seed: int, count: int = 23, nan: bool = False) -> Any:
    random = np.random.default_rng(seed)
    data = (random.integers(-3, 4, (count, FEATURES)) / 2).astype(np.float32)
    if nan:
        data[random.random(data.shape) < 0.3] = NAN
    return data


def aggregated(trees: list[Tree], data: Any, targets: int, how: str = "SUM") -> Any:
    """The votes of the leaves that each row reaches, aggregated per target."""
    result = np.zeros((len(data), targets))
    for row, scores in zip(data, result, strict=True):
        votes: dict[int, list[float]] = {}
        for tree in trees:
            for target, weight in tree.walk(row).votes:
                votes.setdefault(target, []).append(weight)
        for target, given in votes.items():
            by = {"SUM": sum, "MIN": min, "MAX": max}
            scores[target] = sum(given) / len(trees) if how == "AVERAGE" else by[how](given)
    return result


def old(trees: list[Tree], prefix: str, tracks: bool = False) -> dict[str, Any]:
    """The attributes of TreeEnsembleRegressor ("target") and -Classifier ("class")."""
    lists: dict[str, list[Any]] = {}
    for number, tree in enumerate(trees):
        nodes = tree.nodes()
        place = {id(node): at for at, node in enumerate(nodes)}
        for at, node in enumerate(nodes):
            leaf = node.mode == "LEAF"
            columns: dict[str, Any] = {
                "nodes_treeids": number,
                "nodes_nodeids": at,
                "nodes_featureids": node.feature,
                "nodes_values": node.threshold,
                "nodes_modes": "LEAF" if leaf else f"BRANCH_{node.mode}",
                "nodes_truenodeids": 0 if leaf else place[id(node.true)],
                "nodes_falsenodeids": 0 if leaf else place[id(node.false)],
            }
            if tracks:
                columns["nodes_missing_value_tracks_true"] = int(node.tracks_nan)
            for name, value in columns.items():
                lists.setdefault(name, []).append(value)
            for target, weight in node.votes:
                vote = {"treeids": number, "nodeids": at, "ids": target, "weights": weight}
                for name, value in vote.items():
                    lists.setdefault(f"{prefix}_{name}", []).append(value)
    return lists


def as_tensor(values: Any, dtype: Any) -> Any:
    return numpy_helper.from_array(np.array(values, dtype))


def new(trees: list[Tree], dtype: Any) -> dict[str, Any]:
    """The attributes of TreeEnsemble."""
    inner = [node for tree in trees for node in tree.nodes() if node.mode != "LEAF"]
    leaves = [node for tree in trees for node in tree.nodes() if node.mode == "LEAF"]
    place = {id(node): at for nodes in (inner, leaves) for at, node in enumerate(nodes)}
    modes = [Branch[node.mode] for node in inner]
    options: dict[str, Any] = {
        "tree_roots": [place[id(tree)] for tree in trees],
        "nodes_featureids": [node.feature for node in inner],
        "nodes_modes": as_tensor(modes, np.uint8),
        "nodes_splits": as_tensor([node.threshold for node in inner], dtype),
        "nodes_missing_value_tracks_true": [int(node.tracks_nan) for node in inner],
        "leaf_targetids": [leaf.votes[0][0] for leaf in leaves],
        "leaf_weights": as_tensor([leaf.votes[0][1] for leaf in leaves], dtype),
    }
    for way in ("true", "false"):
        children = [getattr(node, way) for node in inner]
        options[f"nodes_{way}nodeids"] = [place[id(child)] for child in children]
        options[f"nodes_{way}leafs"] = [int(child.mode == "LEAF") for child in children]
    members = [node.members for node in inner if node.mode == "MEMBER"]
    if members:
        flat = [number for listed in members for number in (*listed, NAN)]
        options["membership_values"] = as_tensor(flat, dtype)
    return options
