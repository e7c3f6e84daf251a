"""Attention on awkward operands, against ONNX Runtime and against loops over single queries."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import Feeds, assert_same, by_graft, by_runtime, graph_of, normal

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

QKV = {"q": normal(2, 4, 3, 5), "k": normal(2, 2, 7, 5), "v": normal(2, 2, 7, 6)}
MERGED = {"q": normal(2, 3, 8), "k": normal(2, 7, 4), "v": normal(2, 7, 6)}
SOME = normal(2, 4, 3, 7) > 0.3
NO_PAST = {"past_key": None, "past_value": None}
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}

# what ONNX Runtime runs too: feeds, opset, outputs, attributes
LIKE_RUNTIME: dict[str, tuple[Feeds, int, int, dict[str, Any]]] = {
    "plain": (QKV, 23, 1, {}),
    "newest": (QKV, 25, 1, {}),
    "one of everything": ({name: normal(1, 1, 1, 1) for name in "qkv"}, 23, 1, {}),
    "causal": (QKV, 23, 1, {"is_causal": 1}),
    "causal, more queries than keys": ({**QKV, "q": normal(2, 4, 9, 5)}, 23, 1, {"is_causal": 1}),
    "scaled and capped": (QKV, 23, 1, {"scale": 2.5, "softcap": 0.75}),
    "float mask of rank 2": ({**QKV, "mask": normal(3, 7)}, 23, 1, {}),
    "float mask of rank 4": ({**QKV, "mask": normal(2, 1, 3, 7)}, 23, 1, {}),
    "bool mask of rank 3": ({**QKV, "mask": SOME[0]}, 23, 1, {}),
    "rows that see nothing": ({**QKV, "mask": SOME & (np.arange(3) > 0)[:, None]}, 23, 1, {}),
    "causal and masked": ({**QKV, "mask": SOME}, 23, 1, {"is_causal": 1}),
    "merged heads": (MERGED, 23, 1, HEADS),
    "merged heads, masked": ({**MERGED, "mask": SOME[0, 0]}, 23, 1, {**HEADS, "is_causal": 1}),
    "cache": (
        {**QKV, "mask": None, "past_key": normal(2, 2, 4, 5), "past_value": normal(2, 2, 4, 6)},
        23, 3, {"is_causal": 1},
    ),
    "cache of merged heads": (
        {**MERGED, "mask": None, "past_key": normal(2, 2, 1, 2), "past_value": normal(2, 2, 1, 3)},
        23, 3, HEADS,
    ),
    "real lengths": ({**QKV, "mask": None, **NO_PAST, "lengths": np.array([4, 7])}, 24, 1, {}),
    "real lengths, causal": (
        {**QKV, "mask": None, **NO_PAST, "lengths": np.array([5, 3])}, 24, 1, {"is_causal": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE_RUNTIME)
def test_agrees_with_onnx_runtime(name: str) -> None:
    feeds, opset, outputs, attributes = LIKE_RUNTIME[name]
    expected = by_runtime("Attention", feeds, opset, outputs=outputs, **attributes)
    actual = by_graft("Attention", feeds, opset, outputs=outputs, **attributes)
    assert_same(actual, expected, 2e-6)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_scores_of_each_stage(mode: int, softcap: float) -> None:
    feeds = {**QKV, "mask": normal(2, 1, 3, 7)}
    attributes = {"qk_matmul_output_mode": mode, "softcap": softcap}
    expected = by_runtime("Attention", feeds, 23, outputs=4, **attributes)
    assert_same(by_graft("Attention", feeds, 23, outputs=4, **attributes), expected, 2e-6)


def by_hand(offsets: list[int], sees: Any) -> Array:
    """Attention query by query: `sees(batch, position of the query, key)` says which keys count."""
    q, k, v = QKV.values()
    batch, heads, queries, size = q.shape
    result = np.zeros((batch, heads, queries, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, queries):
        head = h * k.shape[1] // heads
        keys = [j for j in range(k.shape[2]) if sees(b, offsets[b] + i, j)]
        weights = [math.exp(q[b, h, i] @ k[b, head, j] / math.sqrt(size)) for j in keys]
        for j, weight in zip(keys, weights, strict=True):
            result[b, h, i] += weight / sum(weights) * v[b, head, j]
    return result.astype(np.float32)


@pytest.mark.parametrize(("left", "right"), [(2, 0), (-1, 1), (1, -1), (0, 0), (3, 2)])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(left: int, right: int, causal: int) -> None:
    windows = {"left_window_size": left, "right_window_size": right}

    def sees(_batch: int, at: int, key: int) -> bool:
        near = (left < 0 or at - key <= left) and (right < 0 or key - at <= right)
        return near and not (causal and key > at)

    actual = by_graft("Attention", QKV, 25, is_causal=causal, **windows)
    assert_same(actual, [by_hand([0, 0], sees)], 2e-6)
    lengths = np.array([6, 1])
    feeds = {**QKV, "mask": None, **NO_PAST, "lengths": lengths}
    expected = by_hand([3, -2], lambda b, at, key: sees(b, at, key) and key < lengths[b])
    actual = by_graft("Attention", feeds, 25, is_causal=causal, **windows)
    assert_same(actual, [expected], 2e-6)


@pytest.mark.parametrize("mask", [normal(3, 5) > 0, normal(2, 4, 3, 5), normal(4, 3, 1)])
def test_mask_shorter_than_the_keys_hides_the_rest(mask: Array) -> None:
    """From opset 24 on; a mask of a single column is short as well."""
    length = mask.shape[-1]
    cut = {"q": QKV["q"], "k": QKV["k"][:, :, :length], "v": QKV["v"][:, :, :length]}
    expected = by_graft("Attention", {**cut, "mask": mask}, 24)
    assert_same(by_graft("Attention", {**QKV, "mask": mask}, 24), expected, 1e-6)


def test_mask_of_a_single_column_is_stretched_before_opset_24() -> None:
    mask = normal(3, 1)
    assert_same(
        by_graft("Attention", {**QKV, "mask": mask}, 23), by_graft("Attention", QKV, 23), 1e-6
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("precision", [None, 1, 10, 11, 16])
def test_dtypes_and_softmax_precision(dtype: Any, precision: int | None) -> None:
    feeds = {name: array.astype(dtype) for name, array in QKV.items()}
    exact = by_graft("Attention", {n: a.astype(np.float64) for n, a in feeds.items()}, 23)[0]
    attributes = {} if precision is None else {"softmax_precision": precision}
    actual = by_graft("Attention", feeds, 23, **attributes)
    rounding = {10: 2e-3, 16: 2e-2, 1: 1e-6}.get(precision or 11, 1e-12)
    coarsest = max(rounding, {2: 2e-3, 8: 1e-12}[np.dtype(dtype).itemsize])
    if dtype is ml_dtypes.bfloat16:
        coarsest = 2e-2
    assert_same(actual, [exact.astype(dtype)], coarsest)


def test_integer_mask_is_added() -> None:
    mask = np.array([[0, -1, 2, 0, 1, 0, -3]], np.int32)
    expected = by_graft("Attention", {**QKV, "mask": mask.astype(np.float32)}, 23)
    assert_same(by_graft("Attention", {**QKV, "mask": mask}, 23), expected, 0)


def test_hidden_nan_does_not_spread_into_blind_rows() -> None:
    q = QKV["q"].copy()
    q[:, :, 0] = np.nan
    sees = np.ones((3, 7), bool)
    sees[0] = False
    result = by_graft("Attention", {"q": q, "k": QKV["k"], "v": QKV["v"], "mask": sees}, 23)[0]
    assert (result[:, :, 0] == 0).all()
    assert np.isfinite(result).all()


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 7, 2), (3, 0, 2), (3, 7, 0), (0, 0, 0)])
@pytest.mark.parametrize("merged", [False, True])
def test_nothing_to_attend(queries: int, keys: int, batch: int, merged: bool) -> None:
    if merged:
        feeds = {"q": normal(batch, queries, 8), "k": normal(batch, keys, 4)}
        feeds["v"] = normal(batch, keys, 6)
        expected: tuple[int, ...] = (batch, queries, 12)
    else:
        feeds = {"q": normal(batch, 4, queries, 5), "k": normal(batch, 2, keys, 5)}
        feeds["v"] = normal(batch, 2, keys, 6)
        expected = (batch, 4, queries, 6)
    (result,) = by_graft("Attention", feeds, 25, is_causal=1, **(HEADS if merged else {}))
    assert result.shape == expected
    if keys == 0:
        assert (result == 0).all()


def test_symbolic_extents_of_a_growing_cache() -> None:
    feeds = {**QKV, "mask": None, "past_key": normal(2, 2, 4, 5), "past_value": normal(2, 2, 4, 6)}
    shapes: dict[str, list[int | str]] = {
        "q": ["b", 4, "s", 5],
        "k": ["b", 2, "n", 5],
        "v": ["b", 2, "n", 6],
        "past_key": ["b", 2, "p", 5],
        "past_value": ["b", 2, "p", 6],
    }
    options: dict[str, Any] = {"outputs": 3, "is_causal": 1}
    graph = graph_of("Attention", feeds, 23, shapes=shapes, **options)
    b, s, total = symbol("b"), symbol("s"), symbol("n") + symbol("p")
    assert [value.type for value in graph.outputs] == [
        tensor("float32", b, 4, s, 6),
        tensor("float32", b, 2, total, 5),
        tensor("float32", b, 2, total, 6),
    ]
    (node,) = [node for node in graph.nodes if node.op.name == "nn.attention"]
    assert node.attrs.offset == symbol("p")  # type: ignore[attr-defined]
    assert_same(
        by_graft("Attention", feeds, 23, shapes=shapes, **options),
        by_runtime("Attention", feeds, 23, **options),
        2e-6,
    )


def test_symbolic_merged_heads_with_a_short_mask_and_lengths() -> None:
    feeds = {**MERGED, "mask": SOME[:, :1, :, :5], **NO_PAST, "lengths": np.array([5, 2])}
    shapes: dict[str, Any] = {"q": ["b", "s", 8], "k": ["b", "t", 4], "v": ["b", "t", "w"]}
    shapes["mask"] = ["b", 1, "s", "m"]
    options: dict[str, Any] = {**HEADS, "is_causal": 1, "left_window_size": 3}
    graph = graph_of("Attention", feeds, 25, shapes=shapes, **options)
    assert isinstance(graph.outputs[0].type, TensorType)
    assert graph.outputs[0].type.rank == 3
    expected = by_graft("Attention", feeds, 25, **options)
    assert_same(by_graft("Attention", feeds, 25, shapes=shapes, **options), expected, 1e-6)


ATTENTION_REFUSALS: list[tuple[Feeds, int, dict[str, Any], str]] = [
    ({**QKV, "k": normal(2, 2, 7, 4)}, 23, {}, "sizes of query and key differ: 5 and 4"),
    ({**QKV, "v": normal(2, 2, 6, 6)}, 23, {}, "lengths of key and value differ: 7 and 6"),
    ({**QKV, "q": normal(2, 3, 3, 5)}, 23, {}, "3 query heads do not share 2 key heads evenly"),
    ({**QKV, "q": normal(3, 4, 3, 5)}, 23, {}, "batches of query and key differ: 3 and 2"),
    ({**QKV, "mask": normal(2, 7)}, 23, {}, "extents of mask and scores differ: 2 and 3"),
    ({**QKV, "mask": normal(1, 2, 4, 3, 7)}, 23, {}, "the mask has rank 5, more than 4"),
    (MERGED, 23, {}, "Attention lacks the attribute 'q_num_heads'"),
    (MERGED, 23, {**HEADS, "q_num_heads": 3}, "hidden size of 8 does not divide into 3 heads"),
    (MERGED, 23, {**HEADS, "q_num_heads": 0}, "the number of heads is 0"),
    ({**QKV, "m": None, "past": normal(2, 2, 4, 5)}, 23, {}, "past_key and past_value come"),
    (QKV, 23, {"qk_matmul_output_mode": 4, "outputs": 4}, "qk_matmul_output_mode is 4"),
    (QKV, 23, {"softmax_precision": 7}, "softmax_precision is int64"),
    ({"q": normal(3, 5), "k": QKV["k"], "v": QKV["v"]}, 23, {}, "query has rank 2, not 4"),
    (
        {**QKV, "m": None, "pk": QKV["k"], "pv": QKV["v"], "n": np.array([1, 2])},
        24,
        {},
        "nonpad_kv_seqlen does not go together with past_key",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("feeds", "opset", "attributes", "message"), ATTENTION_REFUSALS)
def test_attention_refuses(
    feeds: Feeds, opset: int, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        by_graft("Attention", feeds, opset, **attributes)


def attention_graph(*types: TensorType, **attrs: Any) -> Graph:
    builder = Builder()
    inputs = [builder.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    return builder.build(*builder.call("nn.attention", *inputs, **attrs))


def test_unknown_ranks() -> None:
    anything = TensorType(DType.FLOAT32, None)
    graph = attention_graph(anything, anything, anything, scores="raw")
    assert [value.type.rank for value in graph.outputs] == [4, 4]  # type: ignore[union-attr]
    result, scores = evaluate(graph, list(QKV.values()))
    assert_same([result], by_runtime("Attention", QKV, 23), 2e-6)
    assert scores.shape == (2, 4, 3, 7)


@pytest.mark.parametrize(
    ("mask", "attrs", "message"),
    [
        (tensor("int64", 3, 7), {}, "the mask is int64, not bool or float32"),
        (tensor("bool", 3, 7), {"scores": "some"}, "scores is 'some', not one of none, raw"),
    ],
)
def test_operator_refuses(mask: TensorType, attrs: dict[str, Any], message: str) -> None:
    types = [tensor("float32", *array.shape) for array in QKV.values()]
    with pytest.raises(UserError, match=message):
        attention_graph(*types, mask, **attrs)


def test_work_counts_both_products() -> None:
    n = symbol("n")
    query, key = tensor("float32", 2, 4, 3, 5), tensor("float32", 2, 2, n, 5)
    value, result = tensor("float32", 2, 2, n, 6), tensor("float32", 2, 4, 3, 6)
    attention = get_op("nn.attention")
    work = attention.work(attention.attrs(), [query, key, value], [result])
    assert work.macs == n * (2 * 4 * 3) * (5 + 6)
