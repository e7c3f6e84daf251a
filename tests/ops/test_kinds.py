"""An operator's kind is a promise: what is elementwise does not look at where an element stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.literal import Literal
from graft.ir.op import Kind, Op
from graft.ir.types import TensorType
from graft.ops import OPS, get_op

SHAPE = (2, 3)
# Attributes that have no default.
NEEDED: dict[str, dict[str, Any]] = {
    "bitcast": {"dtype": DType.INT32},
    "cast": {"dtype": DType.FLOAT16},
    "ml.label_map": {
        "keys": Literal(np.arange(-9, 9, dtype=np.int64)),
        "values": Literal(np.arange(18, dtype=np.float32) ** 2),
    },
    "qnn.saturate": {"dtype": DType.INT8},
    "string.regex_full_match": {"pattern": "[12]2?"},
}
NUMBERS = np.array([[-2.5, 0.5, 3.0], [1.25, -1.0, 4.0]])
WORDS = np.array([["1", "12", "-2.5"], ["2", "0", "1e3"]], object)


def pointwise() -> list[str]:
    """The operators that promise it for whole tensors, whichever way those are turned."""
    kinds = (Kind.ELEMENTWISE, Kind.BROADCAST)
    ops = [op for op in map(OPS.get, OPS) if op.kind in kinds]
    return [op.name for op in ops if "axis" not in op.attrs.__dataclass_fields__]


def operands(op: Op, dtype: DType) -> list[Array]:
    count = sum(not operand.optional for operand in op.operands)
    if dtype is DType.STRING:
        return [np.roll(WORDS, number) for number in range(count)]
    found = [np.roll(NUMBERS, number).astype(dtype.numpy) for number in range(count)]
    if op.name == "where":
        found[0] = NUMBERS > 0
    return found


def graph_on(op: Op, arrays: list[Array], dtype: DType) -> Graph:
    g = Builder()
    types = [DType.BOOL if array.dtype == bool else dtype for array in arrays]
    shapes = [array.shape for array in arrays]
    named = [
        g.input(f"x{i}", TensorType(*parts))
        for i, parts in enumerate(zip(types, shapes, strict=True))
    ]
    return g.build(g(op.name, *named, **NEEDED.get(op.name, {})))


@pytest.mark.parametrize("name", pointwise())
def test_elements_are_computed_wherever_they_stand(name: str) -> None:
    op = get_op(name)
    tried = 0
    for dtype in (DType.FLOAT32, DType.INT64, DType.BOOL, DType.STRING):
        arrays = operands(op, dtype)
        try:
            graph = graph_on(op, arrays, dtype)
        except GraftError:
            continue  # not for this dtype
        turned = [array.T.copy() for array in arrays]
        with np.errstate(all="ignore"):
            (one,) = evaluate(graph, arrays)
            (other,) = evaluate(graph_on(op, turned, dtype), turned)
        assert one.shape == SHAPE
        np.testing.assert_array_equal(other, one.T)
        tried += 1
    assert tried, "no dtype fits"


def test_triangles_and_padding_depend_on_places() -> None:
    """They move elements, and put constants in the place of others."""
    assert get_op("trilu").kind is get_op("nn.pad").kind is Kind.INJECTIVE
