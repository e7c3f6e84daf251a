"""Indices that are data: expressions clamp them, and operators declare which are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UnsupportedError
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor
from graft.loop.build import Term, cast, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops import OPS
from graft.ops import expression as te
from graft.ops.index import AxisAttrs
from graft.ops.index_bounds import along_axis
from graft.ops.rules import operator

Index = Callable[[Term, Any], Term]  # of the element that is the index, and the extent


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(OPS, "_entries", dict(OPS._entries))
        yield


def declare(index: Index, **options: Any) -> Graph:
    """An operator that reads a list at `index`, and a graph of it alone."""

    def type_rule(attrs: Any, data: TensorType, at: TensorType) -> TensorType:
        return TensorType(data.dtype, at.shape)

    @operator("demo.look_up", "data at", type_rule, **options)
    def _look_up(attrs: AxisAttrs, data: Array, at: Array) -> Array:
        """Elements of a list."""
        return np.asarray(data[at])

    @te.expresses("demo.look_up")
    def _express(attrs: Any, out: te.Out, data: Tensor, at: Tensor) -> te.Results:
        extent = te.sizes(data)[0]
        return out.of(lambda i: te.read(data, [index(cast(INDEX, te.read(at, [i])), extent)]))

    build = Builder()
    data, at = build.input("data", tensor("float32", 5)), build.input("at", tensor("int64", 3))
    return build.build(build("demo.look_up", data, at))


FEEDS = {"data": np.arange(5, dtype=np.float32), "at": np.array([4, 0, 2])}
FAR = {**FEEDS, "at": np.array([4, 1 << 40, 2])}


@pytest.mark.parametrize(
    "index",
    [
        lambda at, extent: at,
        lambda at, extent: maximum(at, 0),
        lambda at, extent: minimum(at, extent - 1) + at,
        lambda at, extent: select(at < 3, maximum(minimum(at, extent - 1), 0), at),
    ],
)
def test_not_clamped(index: Index) -> None:
    graph = declare(index)
    with pytest.raises(UnsupportedError, match="its operand 'data' at an index that is data"):
        graft.compile(graph, strict=True)
    (result,) = graft.compile(graph).run(None, FEEDS)  # on the evaluator
    assert result.tolist() == [4, 0, 2]


@pytest.mark.parametrize(
    "index",
    [
        lambda at, extent: maximum(minimum(at, extent - 1), 0),
        lambda at, extent: minimum(maximum(at, 0), extent - 1),
        lambda at, extent: at % extent,
        lambda at, extent: select(at < extent, at % extent, term(extent - 1)),
    ],
)
def test_clamped(index: Index) -> None:
    module = graft.compile(declare(index), strict=True)
    assert module.run(None, FEEDS)[0].tolist() == [4, 0, 2]
    assert module.run(None, FAR)[0][0] == 4


def test_declared() -> None:
    graph = declare(te.clamped, index_bounds=along_axis)
    module = graft.compile(graph, strict=True)
    assert module.run(None, FEEDS)[0].tolist() == [4, 0, 2]
    with pytest.raises(EvaluationError, match="is out of range for axis 0 of extent 5"):
        module.run(None, FAR)
