"""`bind`: the same arrays again and again."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import graft
from graft.base.dtypes import Array

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
affine (float[ROWS, 3] x, float[3] w) => (float[ROWS, 3] y, float[ROWS, 3] z) {
    scaled = Mul(x, w)
    one = Constant<value = float {1.0}>()
    y = Add(scaled, one)
    z = Sub(y, x)
}
"""
KINDS = ["static", "symbolic", "variant", "loaded", "loaded symbolic", "reference"]


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind = request.param
    text = TEXT.replace("ROWS", "n" if "symbolic" in kind or kind == "variant" else "2")
    options: dict[str, Any] = {"shapes": {"n": [2]}} if kind == "variant" else {}
    if kind == "reference":
        options = {"target": "reference"}
    module = graft.compile(onnx.parser.parse_model(text), **options)
    if "loaded" not in kind:
        return module
    path: Path = tmp_path_factory.mktemp("bind") / "model.graft"
    module.save(path)
    return graft.load(path)


def fresh() -> dict[str, Array]:
    return {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "w": np.array([1, 2, 3], np.float32),
    }


def expected(feeds: dict[str, Array]) -> tuple[Array, Array]:
    y = feeds["x"] * feeds["w"] + 1
    return y, y - feeds["x"]


def check(results: list[Any], feeds: dict[str, Array]) -> None:
    for result, right in zip(results, expected(feeds), strict=True):
        np.testing.assert_array_equal(result, right)


def test_calls_see_what_the_arrays_hold(model: Any) -> None:
    feeds = fresh()
    bound = model.bind(feeds)
    for n in range(4):
        feeds["x"][:] = n
        check(bound(), feeds)
        check(model.run(None, feeds), feeds)


def test_results_lie_in_the_same_arrays(model: Any) -> None:
    feeds = fresh()
    y, z = np.empty((2, 3), np.float32), np.zeros((2, 3), np.float32)
    bound = model.bind(feeds, {"y": y, "z": z})
    for _ in range(3):
        y[:] = np.nan
        results = bound()
        assert results[0] is y
        assert results[1] is z
        check(results, feeds)
        feeds["x"] += 1
    bound = model.bind(feeds, outputs={"z": z})
    assert bound()[1] is z
    check(bound(), feeds)


def test_results_of_their_own_are_the_same_each_time(model: Any) -> None:
    if not any(True for _ in model.program.segments):
        pytest.skip("the evaluator makes its results anew")
    bound = model.bind(fresh())
    first, second = bound(), bound()
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert first is not second


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.asfortranarray(fresh()["x"]),
        np.ma.masked_array(fresh()["x"]),
    ],
    ids=["strided", "column-major", "masked"],
)
def test_arrays_that_have_to_be_copied(model: Any, x: Array) -> None:
    feeds = fresh() | {"x": x}
    bound = model.bind(feeds)
    for _ in range(3):
        check(bound(), {name: np.asarray(one) for name, one in feeds.items()})
        x += 1


def test_read_only_inputs(model: Any) -> None:
    feeds = fresh()
    feeds["x"].flags.writeable = False
    check(model.bind(feeds)(), feeds)


def test_results_in_the_place_of_inputs(model: Any) -> None:
    feeds = fresh()
    bound = model.bind(feeds, {"y": feeds["x"]})
    for _ in range(3):
        y, z = expected(feeds)
        results = bound()
        assert results[0] is feeds["x"]
        np.testing.assert_array_equal(results[0], y)
        np.testing.assert_array_equal(results[1], z)


READ_ONLY = np.zeros((2, 3), np.float32)
READ_ONLY.flags.writeable = False
ZEROS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("change", "outputs", "message"),
    [
        ({"x": ZEROS.astype(np.float64)}, {}, r"the input 'x' wants float32\[\w, 3\], not float64"),
        ({"x": ZEROS[:, :2].copy()}, {}, r"the input 'x' wants float32\[\w, 3\], not .*\[2, 2\]"),
        ({"x": [["a"]]}, {}, "the input 'x'|not a dtype|strings"),
        ({"q": ZEROS}, {}, "there is no input 'q'"),
        ({}, {"q": ZEROS}, "there is no output 'q'"),
        ({}, {"y": READ_ONLY}, "the array for the output 'y' is read-only"),
        ({}, {"y": [[0.0] * 3] * 2}, "the array for the output 'y' is a list"),
        ({}, {"y": ZEROS, "z": ZEROS[::-1]}, "the output 'z' overlaps another output's"),
    ],
)
def test_wrong_arrays_are_refused_when_they_are_bound(
    model: Any, change: dict[str, Any], outputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(graft.UserError, match=message):
        model.bind(fresh() | change, outputs)


def test_missing_inputs_are_refused(model: Any) -> None:
    with pytest.raises(graft.UserError, match="the input 'w' is missing"):
        model.bind({"x": ZEROS})


def test_outputs_of_wrong_sizes_are_refused(model: Any) -> None:
    if not any(True for _ in model.program.segments):
        pytest.skip("the evaluator finds sizes when it runs")
    for wrong in (ZEROS[:1], ZEROS.astype(np.float64)):
        with pytest.raises(graft.UserError, match="the output 'y'"):
            model.bind(fresh(), {"y": wrong})


def test_four_threads_call_one_binding(model: Any) -> None:
    feeds = fresh()
    bound = model.bind(feeds, {"y": np.empty((2, 3), np.float32)})
    y, _ = expected(feeds)

    def calls(_: int) -> bool:
        return all(np.array_equal(bound()[0], y) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))


def test_a_binding_outlives_its_model() -> None:
    for rows in ("2", "n"):
        module = graft.compile(onnx.parser.parse_model(TEXT.replace("ROWS", rows)))
        feeds = fresh()
        bound = module.bind(feeds)
        del module
        gc.collect()
        trash = [np.full((2, 3), 7, np.float32) for _ in range(1000)]
        check(bound(), feeds)
        del trash


def test_sizes_that_depend_on_data() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    found (float[n] x) => (int64[1, m] y) { y = NonZero(x) }
    """
    module = graft.compile(onnx.parser.parse_model(text))
    x = np.array([0, 4, 0, 5], np.float32)
    bound = module.bind({"x": x})
    assert bound()[0].tolist() == [[1, 3]]
    x[0] = 1
    assert bound()[0].tolist() == [[0, 1, 3]]


def test_changed_feeds_do_not_matter() -> None:
    """The arrays are bound, not the mapping that they came in."""
    for target in ("host", "reference"):
        module = graft.compile(onnx.parser.parse_model(TEXT.replace("ROWS", "2")), target=target)
        feeds = fresh()
        bound = module.bind(feeds)
        given = dict(feeds)
        feeds.clear()
        check(bound(), given)
