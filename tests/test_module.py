"""Running what `graft.compile` returns: where data comes from and goes to, threads, memory."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graft
from graft.base.dtypes import Array
from graft.ir.literal import Literal

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
affine (float[2, 3] x, float[3] w) => (float[2, 3] y, float[2, 3] z) {
    scaled = Mul(x, w)
    one = Constant<value = float {1.0}>()
    y = Add(scaled, one)
    z = Sub(y, x)
}
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([1, 2, 3], np.float32)
Y = X * W + 1
Z = Y - X


@pytest.fixture(scope="module", params=["host", "reference"])
def module(request: pytest.FixtureRequest) -> graft.Module:
    return graft.compile(onnx.parser.parse_model(MODEL), target=request.param)


class Tensor:
    """What another library's tensor looks like from here."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "x",
    [Tensor(X), X.data, np.asfortranarray(X), X[::-1][::-1]],
    ids=["dlpack", "buffer", "column-major", "strided"],
)
def test_inputs_come_in_many_forms(module: graft.Module, x: Any) -> None:
    y, z = module.run(None, {"x": x, "w": Tensor(W)})
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(z, Z)


def test_inputs_that_cannot_be_read_are_refused(module: graft.Module) -> None:
    class Elsewhere(Tensor):
        def __dlpack__(self, **_options: Any) -> Any:
            raise BufferError("this tensor lies on a device")

    with pytest.raises(graft.UserError, match="the input 'x' cannot be read: this tensor lies"):
        module.run(None, {"x": Elsewhere(X), "w": W})


def test_results_go_where_the_user_wants_them(module: graft.Module) -> None:
    home = np.full((2, 3), np.nan, np.float32)
    y, z = module.run(None, {"x": X, "w": W}, {"z": home})
    assert z is home
    np.testing.assert_array_equal(home, Z)
    np.testing.assert_array_equal(y, Y)
    (only,) = module.run(["y"], {"x": X, "w": W}, outputs={"y": home, "z": np.empty_like(home)})
    assert only is home
    np.testing.assert_array_equal(home, Y)


def test_results_may_replace_inputs(module: graft.Module) -> None:
    """Even where another result is computed from that input."""
    x = X.copy()
    wide = np.zeros((2, 6), np.float32)
    strided = wide[:, ::2]
    y, z = module.run(None, {"x": x, "w": W}, {"y": x, "z": strided})
    assert y is x
    assert z is strided
    np.testing.assert_array_equal(x, Y)
    np.testing.assert_array_equal(wide[:, ::2], Z)
    assert not wide[:, 1::2].any()


READ_ONLY = np.zeros((2, 3), np.float32)
READ_ONLY.flags.writeable = False
ZEROS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"q": ZEROS}, "there is no output 'q'"),
        ({"y": ZEROS[:1]}, r"the output 'y' wants float32\[2, 3\], not float32\[1, 3\]"),
        ({"y": np.zeros((2, 3))}, r"the output 'y' wants float32\[2, 3\], not float64\[2, 3\]"),
        ({"y": READ_ONLY}, "the array for the output 'y' is read-only"),
        ({"y": [[0.0] * 3] * 2}, "the array for the output 'y' is a list"),
        ({"y": ZEROS, "z": ZEROS[::-1]}, "the array for the output 'z' overlaps another output's"),
    ],
)
def test_bad_homes_are_refused(module: graft.Module, outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(graft.UserError, match=message):
        module.run(None, {"x": X, "w": W}, outputs)


def test_homes_of_unknown_size_are_checked_when_it_is_known() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    found (float[n] x) => (int64[1, m] y) { y = NonZero(x) }
    """
    module = graft.compile(onnx.parser.parse_model(text))
    x = np.array([0, 4, 0, 5], np.float32)
    home = np.zeros((1, 2), np.int64)
    assert module.run(["y"], {"x": x}, {"y": home})[0] is home
    assert home.tolist() == [[1, 3]]
    wrong = np.zeros((1, 3), np.int64)
    with pytest.raises(graft.UserError, match=r"'y' came out as \[1, 2\], .* array is \[1, 3\]"):
        module.run(None, {"x": x}, {"y": wrong})


def test_a_result_that_is_an_input_survives_another_in_its_place() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[n] x) => (float[n] negative, float[n] same) { negative = Neg(x)  same = Identity(x) }
    """
    x = np.array([0, 4, 0, 5], np.float32)
    module = graft.compile(onnx.parser.parse_model(text))
    negative, same = module.run(None, {"x": x}, {"negative": x})
    assert negative is x
    assert (negative.tolist(), same.tolist()) == ([0, -4, 0, -5], [0, 4, 0, 5])


@pytest.mark.parametrize("threads", [1, 2])
def test_four_python_threads_get_identical_results(threads: int) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1, 16, 19, 17] x, float[24, 16, 3, 3] w) => (float[1, 24, 17, 15] y) {
        c = Conv(x, w)
        y = Relu(c)
    }
    """
    module = graft.compile(onnx.parser.parse_model(text), threads=threads)
    generator = np.random.default_rng(0)
    w = generator.standard_normal((24, 16, 3, 3)).astype(np.float32)
    inputs = [generator.standard_normal((1, 16, 19, 17)).astype(np.float32) for _ in range(4)]
    expected = [module.run(None, {"x": x, "w": w})[0] for x in inputs]

    def fifty_runs(number: int) -> int:
        home = np.empty_like(expected[0])
        right = 0
        for _ in range(50):
            module.run(None, {"x": inputs[number], "w": w}, {"y": home})
            right += np.array_equal(home, expected[number])
        return right

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fifty_runs, range(4))) == [50] * 4


def test_a_module_does_not_keep_the_models_weights(tmp_path: Path) -> None:
    """The program has them in its own layout; those of the graph go when it is compiled."""
    shape = (37, 29)
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "net",
        [info("x", onnx.TensorProto.FLOAT, [3, 37])],
        [info("y", onnx.TensorProto.FLOAT, [3, 29])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    module = graft.compile(path, target="host")
    x = np.ones((3, 37), np.float32)
    np.testing.assert_allclose(module.run(None, {"x": x})[0], x @ weight, rtol=1e-5)
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, Literal)]
    assert [one for one in kept if one.array.shape == shape] == []
