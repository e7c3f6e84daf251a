"""What follows from the shapes of inputs: shapes of outputs, computed by generated Python."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import graft
from graft.base.dims import evaluate_dim
from graft.base.errors import GraftError

POOLED = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[n, 1, h, w] x, float[n, 1, h, w] other)
        => (float[n, 1, p, q] pooled, float[n, 1, p, q] again, float[m, 1, h, w] all,
            float[k, a, b] last)
    {
        pooled = MaxPool <kernel_shape = [3, 2], strides = [2, 3]> (x)
        again = AveragePool <kernel_shape = [3, 2], strides = [2, 3]> (other)
        all = Concat <axis = 0> (x, x, other)
        axes = Constant <value_ints = [1]> ()
        small = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (pooled)
        last = Squeeze (small, axes)
    }
"""


@pytest.fixture(scope="module")
def module() -> graft.Module:
    return graft.compile(onnx.parser.parse_model(POOLED), strict=True)


def feeds(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    shape = batch, 1, height, width
    count = np.prod(shape)
    x = np.arange(count, dtype=np.float32).reshape(shape)
    return {"x": x, "other": -x}


@pytest.mark.parametrize("sides", [(1, 7, 5), (3, 8, 11), (2, 9, 12), (2, 64, 33), (0, 9, 9)])
def test_shapes_by_formulas(module: graft.Module, sides: tuple[int, int, int]) -> None:
    inputs = feeds(*sides)
    assert module.dispatcher is not None
    results = module.dispatcher.run(inputs)
    assert results is not None
    symbols = dict(zip("nhw", sides, strict=True))
    for value, result in zip(module.program.outputs, results, strict=True):
        assert value.shape is not None
        assert result.shape == tuple(evaluate_dim(dim, symbols) for dim in value.shape)
    for data in inputs.values():
        data.flags.writeable = False
    assert module.dispatcher.run(inputs) is None
    for one, other in zip(results, module.run(None, inputs), strict=True):
        assert np.array_equal(one, other)


def test_sizes_below_zero_take_the_checked_path() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (float[m] y) {
            pads = Constant <value_ints = [-2, -2]> ()
            y = Pad (x, pads)
        }
    """
    cut = graft.compile(onnx.parser.parse_model(text), strict=True)
    assert cut.dispatcher is not None
    for n in (5, 3, 5):
        x = np.arange(n, dtype=np.float32)
        if n == 5:
            assert cut.run(None, {"x": x})[0].tolist() == [2]
        else:
            assert cut.dispatcher.run({"x": x}) is None
            with pytest.raises(GraftError):
                cut.run(None, {"x": x})


def test_outputs_of_a_kind_have_arrays_of_their_own(module: graft.Module) -> None:
    inputs = feeds(2, 40, 40)
    for _ in range(3):
        pooled, again, *_ = module.run(None, inputs)
        assert not np.may_share_memory(pooled, again)
        assert pooled.max() > 0 > again.max() - 1
