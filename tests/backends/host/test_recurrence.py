"""Recurrent layers as native code: every cell, direction, operand and function, odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.ops.rnn import ACTIVATIONS

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS = {
    "rnn": ["tanh"],
    "gru": ["sigmoid", "tanh"],
    "lstm": ["sigmoid", "tanh", "tanh"],
}
TOLERANCE = {"float32": 3e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}
ALL = ("b", "lengths", "h", "c", "p")


def operands(
    cell: str, sizes: tuple[int, int, int, int], directions: int, dtype: str
) -> dict[str, Array]:
    """Everything that a layer may take, by name and in order."""
    length, batch, inputs, hidden = sizes
    random = np.random.default_rng(sizes)
    rows, state = GATES[cell] * hidden, (directions, batch, hidden)

    def normal(*shape: int) -> Array:
        return (random.standard_normal(shape) * 0.5).astype(DType(dtype).numpy)

    found = {
        "x": normal(length, batch, inputs),
        "w": normal(directions, rows, inputs),
        "r": normal(directions, rows, hidden),
        "b": normal(directions, 2 * rows),
        "lengths": random.integers(0, length + 1, batch).astype(np.int32),
        "h": normal(*state),
    }
    return {**found, "c": normal(*state), "p": normal(directions, 3 * hidden)}


def layer(
    cell: str,
    sizes: tuple[int, int, int, int],
    given: tuple[str, ...] = ALL,
    constant: str = "wrbp",
    dtype: str = "float32",
    **attrs: Any,
) -> tuple[Graph, dict[str, Array]]:
    """A graph of one layer, and what to feed it."""
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    builder, feeds, inputs = Builder(), {}, []
    for name, array in operands(cell, sizes, directions, dtype).items():
        if name in ("c", "p") and cell != "lstm":
            continue
        if name not in ("x", "w", "r", *given):
            inputs.append(None)
        elif name in constant:
            inputs.append(builder.constant(array))
        else:
            type_ = TensorType(DType(str(array.dtype)), array.shape)
            inputs.append(builder.input(name, type_))
            feeds[name] = array
    while inputs[-1] is None:
        inputs.pop()
    attrs.setdefault("activations", FUNCTIONS[cell] * directions)
    return builder.build(*builder.call(f"nn.{cell}", *inputs, **attrs)), feeds


def check(cell: str, sizes: tuple[int, int, int, int], **options: Any) -> None:
    """Native results are the evaluator's, with one thread and two."""
    graph, feeds = layer(cell, sizes, **options)
    wanted = evaluate(graph, list(feeds.values()))
    tolerance = TOLERANCE[options.get("dtype", "float32")]
    for threads in (1, 2):
        found = graft.compile(graph, strict=True, threads=threads).run(None, feeds)
        for mine, right in zip(found, wanted, strict=True):
            assert mine.dtype == right.dtype
            np.testing.assert_allclose(
                mine.astype(np.float64), right.astype(np.float64), tolerance, tolerance
            )


@pytest.mark.each_value
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("cell", GATES)
def test_all_operands_in_all_directions(cell: str, direction: str) -> None:
    check(cell, (5, 3, 4, 7), direction=direction)


@pytest.mark.parametrize("cell", GATES)
def test_nothing_but_weights_which_are_not_constant(cell: str) -> None:
    check(cell, (4, 9, 3, 16), given=(), constant="")


@pytest.mark.each_value
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (6, 1, 5, 33), (2, 17, 3, 8)])
@pytest.mark.parametrize("cell", GATES)
def test_sizes_that_fill_no_tile(cell: str, sizes: tuple[int, int, int, int]) -> None:
    check(cell, sizes)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_float(dtype: str) -> None:
    check("lstm", (5, 2, 4, 6), dtype=dtype)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_function(name: str) -> None:
    check("rnn", (4, 2, 3, 9), activations=[name], activation_alpha=[0.7], activation_beta=[0.3])


def test_functions_that_differ_between_directions() -> None:
    names = ["sigmoid", "tanh", "hard_sigmoid", "softsign"]
    coefficients = {"activation_alpha": [0, 0, 0.2, 0], "activation_beta": [0, 0, 0.5, 0]}
    check("gru", (5, 2, 4, 9), direction="bidirectional", activations=names, **coefficients)


@pytest.mark.parametrize(
    ("cell", "attrs"),
    [
        ("gru", {"linear_before_reset": True}),
        ("gru", {"linear_before_reset": True, "direction": "bidirectional", "clip": 0.3}),
        ("lstm", {"input_forget": True}),
        ("lstm", {"clip": 0.2}),
        ("rnn", {"clip": 0.1}),
    ],
)
def test_variants(cell: str, attrs: dict[str, Any]) -> None:
    check(cell, (5, 3, 4, 10), **attrs)


def test_infinity_and_nan_pass_through() -> None:
    graph, feeds = layer("lstm", (3, 2, 4, 6), given=("b",))
    feeds["x"][0, 0, 0], feeds["x"][1, 1, 1] = np.inf, np.nan
    wanted = evaluate(graph, list(feeds.values()))
    found = graft.compile(graph, strict=True).run(None, feeds)
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, right, 3e-6, 3e-6)


def test_length_and_batch_that_are_known_only_at_run_time() -> None:
    builder = Builder()
    shape = (symbol("n"), symbol("b"), 3)
    data = builder.input("x", TensorType(DType.FLOAT32, shape))
    known = operands("gru", (2, 2, 3, 10), 1, "float32")
    weights = [builder.constant(known[name]) for name in ("w", "r", "b")]
    results = builder.call("nn.gru", data, *weights, activations=FUNCTIONS["gru"])
    graph = builder.build(*results)
    random = np.random.default_rng(0)
    sizes = [(4, 1), (1, 5), (7, 3)]
    runs = [[random.standard_normal((*two, 3)).astype(np.float32)] for two in sizes]
    assert check_flow(graph, *runs, tolerance=3e-6) == ["Segment"]
