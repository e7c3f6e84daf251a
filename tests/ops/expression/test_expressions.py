"""Every expression, lowered without any schedule and interpreted, against the evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.expression.cases import CASES, Case, arrays, graph

from graft.base.dtypes import Array
from graft.ir.evaluate import evaluate
from graft.loop.interpret import interpret
from graft.loop.lower import lower
from graft.loop.tensor import Tensor, in_order, placeholder
from graft.ops import OPS
from graft.ops.expression import Table, Unexpressed, express


def expressed(one: Case) -> tuple[list[Tensor | None], tuple[Tensor, ...]]:
    """The case's operands and results as tensors."""
    (node,) = graph(one).nodes
    inputs = [
        None if value is None else placeholder(value.name, value.shape, value.dtype)
        for value in node.inputs
    ]
    made = express(node, inputs, "out")
    assert not isinstance(made, Unexpressed), made.reason
    return inputs, made


def interpreted(one: Case, numbers: list[Array]) -> list[Array]:
    """The results, by the interpreter."""
    inputs, results = expressed(one)
    wanted = [result for result in results if 0 not in _shape(result)]
    arguments = [tensor for tensor in in_order(wanted) if tensor.body is None]
    given = dict(zip([t.name for t in inputs if t is not None], numbers, strict=True))
    passed = {t.name: t.array if isinstance(t, Table) else given[t.name] for t in arguments}
    found = {t.name: np.zeros(_shape(t), t.dtype.numpy) for t in results}
    if wanted:
        interpret(lower("f", [*arguments, *wanted]), {**passed, **found})
    return [found[tensor.name] for tensor in results]


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(extent.value for extent in tensor.shape)


def assert_close(found: Array, wanted: Array) -> None:
    """Equal, but for the rounding that the dtype allows."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    tolerance = {2: 2e-2, 4: 3e-5, 8: 1e-11}[found.dtype.itemsize]
    wide = [array.astype(np.float64) for array in (found, wanted)]
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("one", CASES, ids=str)
def test_the_interpreter_agrees_with_the_evaluator(one: Case) -> None:
    numbers = arrays(one)
    wanted = evaluate(graph(one), numbers)
    with np.errstate(all="ignore"):
        found = interpreted(one, numbers)
    for mine, theirs in zip(found, wanted, strict=True):
        assert_close(mine, np.asarray(theirs))


def test_every_expression_has_a_case() -> None:
    expressed = {name for name in OPS if OPS.get(name).expression is not None}
    assert {one.op for one in CASES} == expressed
