"""Random numbers: their types, their moments, and what a seed promises."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import tensor
from graft.ops import get_op
from graft.ops.random import MultinomialAttrs, UniformAttrs, random_bits

COUNT = 20_000
DTYPES = [(1, np.float32), (10, np.float16), (11, np.float64), (16, ml_dtypes.bfloat16)]


def drawn(op_type: str, *operands: Array, opset: int = 22, **attributes: Any) -> Array:
    shapes = attributes.pop("shapes", "static")
    model = one_node(op_type, operands, opset, shapes, **attributes)
    (found,) = by_graft(model, operands)
    return found


@pytest.mark.parametrize(("code", "dtype"), DTYPES)
def test_uniform(code: int, dtype: Any) -> None:
    found = drawn("RandomUniform", shape=[4, 5000], low=-1.0, high=3.0, dtype=code, seed=5.0)
    assert (found.dtype, found.shape) == (dtype, (4, 5000))
    numbers = found.astype(np.float64)
    assert -1 <= numbers.min() < -0.98
    assert 2.98 < numbers.max() <= 3
    assert abs(numbers.mean() - 1) < 0.03
    assert abs(numbers.std() - 4 / np.sqrt(12)) < 0.02


@pytest.mark.parametrize(("code", "dtype"), DTYPES)
def test_uniform_never_reaches_one(code: int, dtype: Any) -> None:
    assert drawn("RandomUniform", shape=[COUNT], dtype=code, seed=1.0).max() < 1


@pytest.mark.parametrize(("code", "dtype"), DTYPES)
def test_normal(code: int, dtype: Any) -> None:
    found = drawn("RandomNormal", shape=[COUNT], mean=3.0, scale=2.0, dtype=code, seed=0.5)
    assert found.dtype == dtype
    numbers = (found.astype(np.float64) - 3) / 2
    moments = [np.mean(numbers**power) for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.15)


@pytest.mark.parametrize("kind", ["RandomUniform", "RandomNormal"])
@pytest.mark.parametrize("shapes", ["static", "symbolic", "unranked"])
def test_like(kind: str, shapes: str) -> None:
    like = np.zeros((3, 5), np.float64)
    found = drawn(f"{kind}Like", like, seed=2.0, shapes=shapes)
    assert (found.dtype, found.shape) == (np.float64, (3, 5))
    plain = drawn(kind, shape=[3, 5], dtype=11, seed=2.0, opset=7)
    np.testing.assert_array_equal(found, plain)
    counts = np.zeros((0, 2), np.int64)
    assert drawn(f"{kind}Like", counts, dtype=1).shape == (0, 2)
    with pytest.raises(TypeRuleError, match="random numbers cannot be int64"):
        drawn(f"{kind}Like", counts)


@pytest.mark.parametrize("kind", ["RandomUniform", "RandomNormal"])
def test_seeds(kind: str) -> None:
    first = drawn(kind, shape=[100], seed=1.0)
    np.testing.assert_array_equal(first, drawn(kind, shape=[100], seed=1.0))
    np.testing.assert_array_equal(first[:7], drawn(kind, shape=[7], seed=1.0))
    for other in ({"seed": 1.5}, {"seed": -1.0}, {}):
        assert not (first == drawn(kind, shape=[100], **other)).any()
    anew = [drawn(kind, shape=[4]) for _ in range(2)]
    assert (anew[0] != anew[1]).all()


def test_bits_are_those_of_splitmix64() -> None:
    """The generator as it is usually written, one word at a time."""
    state, mask, words = 0, (1 << 64) - 1, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & mask
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        words.append(word ^ (word >> 31))
    assert random_bits(0.0, 3).tolist() == words
    assert words[0] == 0xE220A8397B1DCDAF


def test_nothing_is_folded() -> None:
    model = one_node("RandomNormal", [], 22, shape=[2], seed=1.0)
    graph = import_model(model)
    assert [node.op.name for node in graph.nodes] == ["random.normal"]
    assert not get_op("random.normal").pure
    assert not get_op("random.multinomial").pure


def test_symbolic_shape() -> None:
    n = symbol("n")
    builder = Builder()
    data = builder.input("x", tensor("float32", n, 2))
    drawn_ = builder("random.uniform", builder("shape_of", data), seed=3.0)
    assert str(drawn_.type) == "float32[n, 2]"
    (found,) = evaluate(builder.build(drawn_), [np.zeros((6, 2), np.float32)])
    assert found.shape == (6, 2)
    op = get_op("random.uniform")
    assert str(op.result_types(UniformAttrs(), (tensor("int64", 3),))[0]) == "float32[?, ?, ?]"
    assert op.evaluate(UniformAttrs(shape=()), None).shape == ()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_bernoulli(dtype: Any) -> None:
    odds = np.repeat(np.array([0, 0.25, 0.75, 1]), COUNT // 4).astype(dtype)
    found = drawn("Bernoulli", odds, seed=4.0)
    assert found.dtype == dtype
    means = found.astype(np.float64).reshape(4, -1).mean(axis=1)
    np.testing.assert_allclose(means, [0, 0.25, 0.75, 1], atol=0.02)
    assert (means[0], means[3]) == (0, 1)
    flags = drawn("Bernoulli", odds, seed=4.0, dtype=9, opset=15, shapes="symbolic")
    np.testing.assert_array_equal(flags, found.astype(bool))


def test_bernoulli_with_small_odds() -> None:
    odds = np.full(200_000, 1e-4, np.float16)
    assert 5 <= drawn("Bernoulli", odds, seed=1.0).astype(np.int64).sum() <= 45


@pytest.mark.parametrize(("code", "dtype"), [(6, np.int32), (7, np.int64)])
def test_multinomial(code: int, dtype: Any) -> None:
    odds = np.array([[1, 2, 3, 4], [0, 1, 0, 0], [0, 0, 1, 1]], np.float32)
    given = {"sample_size": COUNT, "dtype": code, "seed": 9.0}
    with np.errstate(divide="ignore"):
        found = drawn("Multinomial", np.log(odds) + 50, **given)
    assert (found.dtype, found.shape) == (dtype, (3, COUNT))
    shares = np.stack([np.bincount(row, minlength=4) / COUNT for row in found])
    np.testing.assert_allclose(shares, odds / odds.sum(axis=1, keepdims=True), atol=0.015)
    assert ((shares == 0) == (odds == 0)).all()


def test_multinomial_of_little() -> None:
    assert drawn("Multinomial", np.zeros((2, 1), np.float32)).tolist() == [[0], [0]]
    assert drawn("Multinomial", np.zeros((0, 3), np.float32), sample_size=4).shape == (0, 4)
    assert drawn("Multinomial", np.zeros((2, 3), np.float16), sample_size=0).shape == (2, 0)


@pytest.mark.parametrize("row", [[], [-np.inf, -np.inf], [0, np.nan], [0, np.inf]])
def test_multinomial_without_a_possible_outcome(row: list[float]) -> None:
    with pytest.raises(EvaluationError, match="no possible outcome or an infinite one"):
        drawn("Multinomial", np.array([row], np.float32))


def test_multinomial_types() -> None:
    op = get_op("random.multinomial")
    found = op.result_types(MultinomialAttrs(5), (tensor("float32", symbol("n"), 3),))
    assert str(found[0]) == "int32[n, 5]"
    with pytest.raises(TypeRuleError, match="odds have rank 1, not 2"):
        op.result_types(MultinomialAttrs(5), (tensor("float32", 3),))
    with pytest.raises(TypeRuleError, match="outcomes cannot be float32"):
        op.result_types(MultinomialAttrs(5, None, tensor("float32").dtype), (tensor("float32"),))
