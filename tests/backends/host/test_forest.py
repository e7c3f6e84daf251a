"""Forests of decision trees as native code: every branch, NaN, any number of samples and votes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.backends.host.flows import check_flow
from tests.ops.ml_forest import FEATURES, PLAIN, forest, new, old, samples
from tests.ops.ml_node import graph_of

import graft
from graft.backends.host.backend import HostBackend
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.byoc.executable import Settings
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.ops import get_op
from graft.ops.ml_trees import TreeEnsembleAttrs

SAMPLES, COLUMNS = symbol("samples"), symbol("columns")
COUNTS = (0, 1, 3, 8, 9, 16, 31)
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1, 1e-45, -1e-45], np.float32)


def _attrs(op_type: str, **options: Any) -> TreeEnsembleAttrs:
    graph = graph_of(op_type, [samples(0)], **options)
    return next(n.attrs for n in graph.nodes if n.op.name == "ml.tree_ensemble")


def _alone(attrs: TreeEnsembleAttrs, dtype: DType, columns: Dim = FEATURES) -> Graph:
    build = Builder()
    data = build.input("x", TensorType(dtype, (SAMPLES, columns)))
    return build.build(*build.add(get_op("ml.tree_ensemble"), [data], attrs))


def _special(count: int) -> Array:
    return np.random.default_rng(count).choice(SPECIAL, (count, FEATURES))


@pytest.mark.each_value
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("mode", [*PLAIN, "all"])
@pytest.mark.parametrize("tracks", [True, False])
def test_every_branch(mode: str, how: str, tracks: bool) -> None:
    modes = PLAIN if mode == "all" else (mode,)
    trees = forest(7, 9, 5, modes, (0, 1, 2), tracks=tracks, votes=(0, 4))
    lists = old(trees, "target", tracks)
    thresholds = lists["nodes_values"]
    thresholds[::5] = [float(n) for n in np.resize(SPECIAL[:5], len(thresholds[::5]))]
    attrs = _attrs("TreeEnsembleRegressor", n_targets=3, aggregate_function=how, **lists)
    given = [[_special(count)] for count in COUNTS] + [[samples(5, 40, nan=True)]]
    assert check_flow(_alone(attrs, DType.FLOAT32), *given) == ["Segment"]


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT16, DType.INT64, DType.UINT8], ids=str)
def test_samples_of_every_kind(dtype: DType) -> None:
    trees = forest(3, 5, 6)
    attrs = _attrs("TreeEnsembleRegressor", n_targets=1, **old(trees, "target"))
    given = [[np.abs(samples(1, count)).astype(dtype.numpy)] for count in COUNTS]
    check_flow(_alone(attrs, dtype), *given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sets(dtype: Any) -> None:
    """Sets of no, one and several members; thresholds of another precision than the samples."""
    trees = forest(11, 12, 5, ("MEMBER", "LEQ"), (0, 1), tracks=True)
    attrs = _attrs("TreeEnsemble", opset=5, n_targets=2, **new(trees, dtype))
    given = [[samples(2, count, nan=True)] for count in COUNTS]
    assert check_flow(_alone(attrs, DType.FLOAT32), *given) == ["Segment"]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 27])
def test_one_sample_walks_down_several_trees(count: int) -> None:
    """Of different depths, a leaf among them."""
    trees = [tree for n in range(count) for tree in forest(n, 1, n % 5, targets=(0, 1))]
    attrs = _attrs("TreeEnsembleRegressor", n_targets=2, **old(trees, "target"))
    check_flow(_alone(attrs, DType.FLOAT32), *([samples(n, 1)] for n in range(5)))


def test_trees_that_are_leaves() -> None:
    attrs = _attrs("TreeEnsembleRegressor", n_targets=1, **old(forest(0, 3, 0), "target"))
    assert attrs.features.array.size == 0
    check_flow(_alone(attrs, DType.FLOAT32), *([samples(2, count)] for count in COUNTS))
    check_flow(_alone(attrs, DType.FLOAT32, 0), [np.zeros((5, 0), np.float32)])


def test_features_that_are_not_there() -> None:
    attrs = _attrs("TreeEnsembleRegressor", n_targets=1, **old(forest(1), "target"))
    graph = _alone(attrs, DType.FLOAT32, COLUMNS)
    check_flow(graph, [samples(1)], [np.pad(samples(1), ((0, 0), (0, 2)))])
    native = HostBackend(Settings(threads=1)).build(graph)
    with pytest.raises(EvaluationError, match=r"a node asks for feature 3.*columns = 2"):
        native([samples(1)[:, :2]])


def test_a_classifier_is_native_to_its_labels() -> None:
    trees = forest(4, 20, 6, ("LEQ",), (0, 1, 2), positive=True, votes=(3, 4))
    options = {"classlabels_int64s": [4, 5, 9], "post_transform": "SOFTMAX", **old(trees, "class")}
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **options
    )
    shapes = {"x": ["n", FEATURES], "label": ["n"], "scores": ["n", 3]}
    kinds = {"x": 1, "label": 7, "scores": 1}
    infos = {n: helper.make_tensor_value_info(n, kinds[n], s) for n, s in shapes.items()}
    graph = helper.make_graph([node], "g", [infos["x"]], [infos["label"], infos["scores"]])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    native, reference = (
        graft.compile(model, **o) for o in ({"strict": True}, {"target": "reference"})
    )
    for count in COUNTS:
        mine, right = (m.run(None, {"x": samples(6, count)}) for m in (native, reference))
        np.testing.assert_array_equal(mine[0], right[0])
        np.testing.assert_allclose(mine[1], right[1], rtol=1e-6)
