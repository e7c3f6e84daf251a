"""Dense layers on a number of rows that is known only when they run: one kernel for all of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.backends.host.symbolic import Build, Sizes, check

import graft
from graft.backends.host.kernel import Kernel
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.loop.print import to_text

# Nothing, all that may be left of a tile of six rows, and more than a tile.
ROWS = [{"n": n} for n in (*range(15), 40, 67)]
PAIRS = [{"n": n, "m": m} for n, m in ((0, 3), (1, 1), (3, 0), (5, 7), (2, 3), (1, 9), (8, 8))]


def is_product(kernel: Kernel) -> bool:
    """Whether the weights are packed, as the default schedule never does."""
    return any(one.name == "weights" for one in kernel.function.parameters)


@pytest.mark.parametrize(("inputs", "units"), [(1, 1), (5, 3), (40, 64), (33, 31), (17, 100)])
def test_any_number_of_rows(inputs: int, units: int) -> None:
    def build(s: Sizes) -> Value:
        return s("nn.dense", s.input(s.n, inputs), s.constant(units, inputs))

    assert is_product(check(build, *ROWS))


def test_rows_of_several_axes() -> None:
    """All of them are one axis; a bias runs along the last, however it is counted."""

    def build(s: Sizes) -> Value:
        y = s("nn.dense", s.input(s.n, 3, s.m, 20), s.constant(37, 20))
        y = s("nn.gelu", s("nn.bias_add", y, s.constant(37), axis=-1))
        y = s("nn.bias_add", s("add", y, s.input(s.n, 3, s.m, 37)), s.constant(37), axis=3)
        y = s("multiply", y, s.constant(1, 1, 37))
        return s("clip", y, a_min=-1.0, a_max=2.0)

    assert is_product(check(build, *PAIRS))


def test_powers_of_two_are_one_tile() -> None:
    """A tile of two, four, eight or sixteen rows reads the weights once."""

    def build(s: Sizes) -> Value:
        return s("nn.dense", s.input(s.n, 48), s.constant(64, 48))

    function = check(build, *({"n": n} for n in (*range(34), 64))).function
    text = to_text(function)
    sizes = {int(one) for one in re.findall(r"let row_(\d+):", text)}
    largest = max(sizes)
    assert sizes == {largest, 3} | {n for n in (1, 2, 4, 8, 16) if n < largest}


def test_the_data_added_to_its_own_product() -> None:
    def build(s: Sizes) -> Value:
        x = s.input(s.n, 24)
        return s("add", s("nn.dense", x, s.constant(24, 24)), x)

    assert is_product(check(build, *ROWS))


def test_float64() -> None:
    def build(s: Sizes) -> Value:
        x, w = s.input(s.n, 30, dtype="float64"), s.constant(11, 30, dtype="float64")
        return s("nn.dense", x, w)

    assert is_product(check(build, *ROWS))


def one_number_per_row(s: Sizes) -> Value:
    y = s("nn.dense", s.input(s.n, s.m, 8), s.constant(33, 8))
    return s("multiply", y, s.input(s.n, s.m, 1))


def a_number(s: Sizes) -> Value:
    return s("add", s("nn.dense", s.input(s.n, s.m, 8), s.constant(33, 8)), s.input())


@pytest.mark.parametrize("build", [one_number_per_row, a_number])
def test_operands_that_are_broadcast(build: Build) -> None:
    assert is_product(check(build, *PAIRS))


def some_leading_axes(s: Sizes) -> Value:
    y = s("nn.dense", s.input(s.n, s.m, 8), s.constant(33, 8))
    return s("subtract", y, s.input(s.m, 33))


def bias_along_rows(s: Sizes) -> Value:
    y = s("nn.dense", s.input(s.n, 5, 8), s.constant(33, 8))
    return s("nn.bias_add", y, s.constant(5), axis=1)


@pytest.mark.parametrize("build", [some_leading_axes, bias_along_rows])
def test_operands_with_some_of_the_leading_axes(build: Build) -> None:
    bindings = [binding for binding in PAIRS if binding["n"] and binding["m"]]
    assert is_product(check(build, *bindings))


def agree(g: Builder, result: Value, *inputs: Array) -> None:
    """The model in native code, with threads, and on the evaluator."""
    graph = g.build(result)
    names = (value.name for value in graph.inputs)
    module = graft.compile(graph, strict=True, threads=2)
    (found,) = module.run(None, dict(zip(names, inputs, strict=True)))
    (wanted,) = evaluate(graph, inputs)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_no_weights(shape: tuple[int, int], rows: int) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), shape[1]))
    y = g("nn.dense", x, g.constant(np.zeros(shape, np.float32)))
    agree(g, g("exp", y), np.ones((rows, shape[1]), np.float32))


@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 50])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 131), ("int8", -7)])
def test_bytes(dtype: str, zero: int, rows: int) -> None:
    random = np.random.default_rng(4)
    weight = random.integers(-128, 128, (33, 36)).astype(np.int8)
    g = Builder()
    x = g.input("x", tensor(dtype, symbol("n"), 36))
    sums = g("qnn.dense", x, g.constant(weight), g.constant(np.array(zero, dtype)))
    factor = g.constant(random.uniform(1e-3, 1e-2, 33).astype(np.float32))
    data = random.integers(-100, 100, (rows, 36)).astype(dtype)
    agree(g, g("multiply", g("cast", sums, dtype="float32"), factor), data)


@pytest.mark.parametrize("rows", [0, 1, 6, 13, 200])
def test_in_a_model(rows: int) -> None:
    """Two layers, in native code and with threads."""
    random = np.random.default_rng(5)
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), 4, 30))
    first = g.constant(random.standard_normal((50, 30), dtype=np.float32))
    second = g.constant(random.standard_normal((9, 50), dtype=np.float32))
    y = g("nn.dense", g("nn.relu", g("nn.dense", x, first)), second)
    agree(g, y, random.standard_normal((rows, 4, 30), dtype=np.float32))
