"""Linear attention as native code: shared heads, decay, beta, states, odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType

SHAPES = {
    "q": (2, 4, 5, 3),
    "k": (2, 2, 5, 3),
    "v": (2, 2, 5, 7),
    "state": (2, 2, 3, 7),
    "decay": (2, 2, 5, 3),
    "beta": (2, 2, 5, 1),
}


def check(dtype: str, given: tuple[str, ...], **shapes: tuple[int, ...]) -> None:
    random = np.random.default_rng(len(given))
    builder = Builder()
    feeds: dict[str, Array] = {}
    operands = []
    for name, usual in SHAPES.items():
        if name not in ("q", "k", "v", *given):
            operands.append(None)
            continue
        shape = shapes.get(name, usual)
        feeds[name] = (random.standard_normal(shape) * 0.5).astype(DType(dtype).numpy)
        operands.append(builder.input(name, TensorType(DType(dtype), shape)))
    while operands[-1] is None:
        operands.pop()
    graph = builder.build(*builder.call("nn.linear_attention", *operands))
    wanted = evaluate(graph, list(feeds.values()))
    tolerance = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    for threads in (1, 2):
        found = graft.compile(graph, strict=True, threads=threads).run(None, feeds)
        for mine, right in zip(found, wanted, strict=True):
            assert mine.dtype == right.dtype
            assert mine.shape == right.shape
            np.testing.assert_allclose(
                mine.astype(np.float64), right.astype(np.float64), tolerance, tolerance
            )


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("given", [(), ("state",), ("decay", "beta"), ("state", "decay", "beta")])
def test_operands(dtype: str, given: tuple[str, ...]) -> None:
    check(dtype, given)


def test_decay_and_beta_for_all() -> None:
    check("float32", ("decay", "beta"), decay=(2, 1, 5, 1), beta=(1, 2, 1, 1))


def test_no_steps_leave_the_state() -> None:
    nothing = {"q": (2, 4, 0, 3), "k": (2, 2, 0, 3), "v": (2, 2, 0, 7)}
    check("float32", ("state",), **nothing)
