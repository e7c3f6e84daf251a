"""Recurrent layers in all their variants, against ONNX Runtime and against equations by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of, normal

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.rnn import LstmAttrs

LENGTH, BATCH, INPUT, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RESULTS = {"RNN": 2, "GRU": 2, "LSTM": 3}


def operands(op_type: str, directions: int = 1, *optional: str) -> dict[str, Array | None]:
    """Operands of a layer, the named optional ones among them."""
    rows = GATES[op_type] * HIDDEN
    state = (directions, BATCH, HIDDEN)
    everything: dict[str, Array] = {
        "x": normal(LENGTH, BATCH, INPUT),
        "w": normal(directions, rows, INPUT),
        "r": normal(directions, rows, HIDDEN),
        "b": normal(directions, 2 * rows),
        "lengths": np.array([LENGTH, 2, 0], np.int32),
        "h": normal(*state, seed=1),
        "c": normal(*state, seed=2),
        "p": normal(directions, 3 * HIDDEN),
    }
    names = list(everything)[: 8 if op_type == "LSTM" else 6]
    wanted = ("x", "w", "r", *optional)
    return {name: everything[name] if name in wanted else None for name in names}


OPTIONAL = [(), ("b",), ("h",), ("lengths",), ("b", "lengths", "h"), ("b", "h", "c", "p")]


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("optional", OPTIONAL, ids="-".join)
def test_operands_and_directions(op_type: str, direction: str, optional: tuple[str, ...]) -> None:
    feeds = operands(op_type, 2 if direction == "bidirectional" else 1, *optional)
    options = {"hidden_size": HIDDEN, "direction": direction, "outputs": RESULTS[op_type]}
    expected = by_runtime(op_type, feeds, 14, **options)
    assert_same(by_graft(op_type, feeds, 14, **options), expected, 3e-6)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {"clip": 0.5}),
    ("GRU", {"clip": 0.3}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "clip": 0.4}),
    ("LSTM", {"clip": 0.25}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"input_forget": 1, "clip": 0.75}),
]


@pytest.mark.parametrize(("op_type", "attributes"), VARIANTS)
@pytest.mark.parametrize("opset", [7, 22])
def test_variants(op_type: str, attributes: dict[str, Any], opset: int) -> None:
    feeds = operands(op_type, 1, "b", "h", "c", "lengths", "p")
    options = {"hidden_size": HIDDEN, "outputs": RESULTS[op_type], **attributes}
    expected = by_runtime(op_type, feeds, opset, **options)
    assert_same(by_graft(op_type, feeds, opset, **options), expected, 3e-6)


# activations, alpha, beta: coefficients go in turn to those functions that take one
ACTIVATIONS: list[tuple[str, list[str], list[float], list[float]]] = [
    ("RNN", ["Relu"], [], []),
    ("RNN", ["Tanh", "Tanh"], [], []),
    ("RNN", ["Affine"], [0.5], [0.25]),
    ("RNN", ["LeakyRelu"], [], []),
    ("RNN", ["ThresholdedRelu"], [0.5], []),
    ("RNN", ["ScaledTanh"], [1.5], [0.5]),
    ("RNN", ["HardSigmoid"], [], []),
    ("RNN", ["Elu"], [], []),
    ("RNN", ["Softsign"], [], []),
    ("RNN", ["Softplus"], [], []),
    ("GRU", ["HardSigmoid", "LeakyRelu"], [0.3, 0.2], [0.4]),
    ("GRU", ["Sigmoid", "ScaledTanh"], [1.25], [0.75]),
    ("LSTM", ["Sigmoid", "Affine", "HardSigmoid"], [0.5, 0.25], [0.125]),
    ("LSTM", ["hardsigmoid", "tanh", "leakyrelu"], [], []),
    ("LSTM", ["Sigmoid", "Relu", "Elu"], [0.75], []),
]


@pytest.mark.parametrize(("op_type", "names", "alpha", "beta"), ACTIVATIONS)
def test_activations(op_type: str, names: list[str], alpha: list[float], beta: list[float]) -> None:
    feeds = operands(op_type, 1, "b", "h")
    options: dict[str, Any] = {"hidden_size": HIDDEN, "outputs": RESULTS[op_type]}
    options["activations"] = names
    if alpha:
        options["activation_alpha"] = alpha
    if beta:
        options["activation_beta"] = beta
    expected = by_runtime(op_type, feeds, 14, **options)
    assert_same(by_graft(op_type, feeds, 14, **options), expected, 3e-6)


def test_each_direction_has_its_own_activations() -> None:
    feeds = operands("GRU", 2, "b")
    options: dict[str, Any] = {"direction": "bidirectional", "outputs": 2, "hidden_size": HIDDEN}
    options["activations"] = ["HardSigmoid", "Elu", "Sigmoid", "LeakyRelu"]
    options["activation_alpha"] = [0.25, 0.5, 0.125]
    expected = by_runtime("GRU", feeds, 14, **options)
    assert_same(by_graft("GRU", feeds, 14, **options), expected, 3e-6)


def test_affine_is_the_identity_by_default() -> None:
    feeds = {"x": normal(1, 7, 1), "w": np.ones((1, 1, 1)), "r": np.zeros((1, 1, 1))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    _, last = by_graft("RNN", feeds, 14, outputs=2, activations=["Affine"])
    assert_same([last], [feeds["x"]], 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Relu", [math.inf, 0, math.nan]),
        ("ThresholdedRelu", [math.inf, 0, 0]),
        ("Softplus", [math.inf, 0, math.nan]),
        ("Elu", [math.inf, -1, math.nan]),
        ("LeakyRelu", [math.inf, -math.inf, math.nan]),
        ("HardSigmoid", [1, 0, math.nan]),
        ("Sigmoid", [1, 0, math.nan]),
    ],
)
def test_activations_of_infinity_and_nan(name: str, expected: list[float]) -> None:
    x = np.array([math.inf, -math.inf, math.nan]).reshape(1, 3, 1)
    feeds = {"x": x, "w": np.ones((1, 1, 1)), "r": np.zeros((1, 1, 1))}
    everything, _ = by_graft("RNN", feeds, 14, outputs=2, activations=[name])
    np.testing.assert_array_equal(everything.reshape(-1), expected)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first_layout(op_type: str, direction: str) -> None:
    feeds = operands(op_type, 2 if direction == "bidirectional" else 1, "b", "h", "c", "lengths")
    options = {"hidden_size": HIDDEN, "direction": direction, "outputs": RESULTS[op_type]}
    everything, *lasts = by_graft(op_type, feeds, 14, **options)
    expected = [everything.transpose(2, 0, 1, 3), *(last.swapaxes(0, 1) for last in lasts)]
    swapped = {
        name: array.swapaxes(0, 1) if array is not None and name in "xhc" else array
        for name, array in feeds.items()
    }
    assert_same(by_graft(op_type, swapped, 14, layout=1, **options), expected, 0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float64, 1e-12), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]
)
def test_dtypes_against_equations(dtype: Any, tolerance: float) -> None:
    """A single cell, its peepholes included, with plain Python numbers."""
    x, w, r, b, h, c, p = (
        normal(*shape, dtype=dtype)
        for shape in [(3, 1, 1), (1, 4, 1), (1, 4, 1), (1, 8), (1, 1, 1), (1, 1, 1), (1, 3)]
    )
    feeds = {"x": x, "w": w, "r": r, "b": b, "lengths": None, "h": h, "c": c, "p": p}
    hidden, cell = float(h[0, 0, 0]), float(c[0, 0, 0])
    see_i, see_o, see_f = map(float, p[0])

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    for given in x[:, 0, 0].tolist():
        i, o, f, g = (
            given * float(w[0, k, 0]) + hidden * float(r[0, k, 0]) + float(b[0, k] + 0.0)
            + float(b[0, k + 4] + 0.0)
            for k in range(4)
        )  # fmt: skip
        kept = sigmoid(f + see_f * cell) * cell
        cell = kept + sigmoid(i + see_i * cell) * math.tanh(g)
        hidden = sigmoid(o + see_o * cell) * math.tanh(cell)
    _, last, last_cell = by_graft("LSTM", feeds, 22, outputs=3, hidden_size=1)
    expected = [np.full((1, 1, 1), value).astype(dtype) for value in (hidden, cell)]
    assert_same([last, last_cell], expected, tolerance)


@pytest.mark.parametrize("op_type", GATES)
def test_empty_sequences_and_batches(op_type: str) -> None:
    for length, batch in ((0, 2), (4, 0)):
        feeds = operands(op_type) | {"x": normal(length, batch, INPUT)}
        everything, *lasts = by_graft(op_type, feeds, 14, outputs=RESULTS[op_type])
        assert everything.shape == (length, 1, batch, HIDDEN)
        assert [last.shape for last in lasts] == [(1, batch, HIDDEN)] * len(lasts)
        assert all((last == 0).all() for last in lasts)


@pytest.mark.parametrize("op_type", GATES)
def test_symbolic_length_and_batch(op_type: str) -> None:
    feeds = operands(op_type, 2, "b", "h", "lengths")
    shapes = {"x": ["t", "n", INPUT], "h": [2, "n", HIDDEN], "lengths": ["n"]}
    options: dict[str, Any] = {"direction": "bidirectional", "outputs": RESULTS[op_type]}
    graph = graph_of(op_type, feeds, 14, shapes=shapes, **options)
    last = tensor("float32", 2, symbol("n"), HIDDEN)
    wanted = [
        tensor("float32", symbol("t"), 2, symbol("n"), HIDDEN),
        *[last] * (len(graph.outputs) - 1),
    ]
    assert [value.type for value in graph.outputs] == wanted
    expected = by_graft(op_type, feeds, 14, **options)
    assert_same(by_graft(op_type, feeds, 14, shapes=shapes, **options), expected, 0)
    unranked = dict.fromkeys(("x", "w", "r"))
    assert_same(by_graft(op_type, feeds, 14, shapes=unranked, **options), expected, 0)


REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("RNN", {}, {"activations": ["Sine"]}, "'Sine' is no activation of RNN"),
    ("RNN", {}, {"activations": ["ScaledTanh"]}, "wants its coefficient in activation_alpha"),
    ("LSTM", {}, {"activations": ["Tanh"]}, "wants 3 activations, has 1"),
    ("GRU", {}, {"direction": "backward"}, "direction is 'backward', not of forward, reverse"),
    ("GRU", {}, {"hidden_size": 3}, "hidden_size is 3, but the recurrent weight is for 2"),
    ("GRU", {}, {"direction": "bidirectional"}, "extents of weight and .* differ: 1 and 2"),
    ("LSTM", {"w": normal(1, 6, 4)}, {}, "extents of weight and .* differ: 6 and 8"),
    ("LSTM", {"p": normal(1, 4)}, {}, "extents of peephole and .* differ: 4 and 6"),
    ("RNN", {"h": normal(1, 2, 2)}, {}, "extents of an initial state and .* differ: 2 and 3"),
    ("RNN", {"b": normal(4)}, {}, "bias has rank 1, not 2"),
    ("RNN", {"x": normal(5, 3)}, {}, "data has rank 2, not 3"),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "changed", "attributes", "message"), REFUSALS)
def test_refusals(
    op_type: str, changed: dict[str, Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        by_graft(op_type, operands(op_type) | changed, 14, **attributes)


OPERATOR_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"activations": ["sine"]}, "there is no activation 'sine'"),
    ({"activations": ["elu"]}, "activation_alpha has 0 values, not 1"),
    ({"activations": ["tanh"], "activation_beta": [1, 2]}, "activation_beta has 2 values, not 1"),
    ({}, "attribute 'activations' is missing"),
]


@pytest.mark.parametrize(("attrs", "message"), OPERATOR_REFUSALS)
def test_operator_refuses(attrs: dict[str, Any], message: str) -> None:
    builder = Builder()
    types = [tensor("float32", *shape) for shape in [(5, 3, 4), (1, 2, 4), (1, 2, 2)]]
    inputs = [builder.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    with pytest.raises(UserError, match=message):
        builder.call("nn.rnn", *inputs, **attrs)


def test_integers_are_refused() -> None:
    builder = Builder()
    inputs = [builder.input(name, TensorType(tensor("int32").dtype)) for name in "xwr"]
    with pytest.raises(UserError, match="wants floating-point operands, not int32"):
        builder.call("nn.rnn", *inputs, activations=["tanh"])


def test_work_counts_every_step() -> None:
    data, weight = tensor("float32", symbol("t"), 3, 4), tensor("float32", 2, 8, 4)
    recurrent, result = tensor("float32", 2, 8, 2), tensor("float32", symbol("t"), 2, 3, 2)
    attrs = LstmAttrs(("sigmoid", "tanh", "tanh"))
    work = get_op("nn.lstm").work(attrs, [data, weight, recurrent], [result])
    assert work.macs == symbol("t") * 3 * (2 * 8 * 4 + 2 * 8 * 2)
