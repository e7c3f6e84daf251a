"""Resizing, against ONNX Runtime and, where the two disagree, ONNX's reference or formulas."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.resize import ResizeAttrs

RANDOM = np.random.default_rng(7)
IMAGE = RANDOM.normal(size=(1, 2, 5, 7)).astype(np.float32)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
]
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("attributes", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_modes_agree_with_runtime(attributes: dict[str, Any], coordinates: str) -> None:
    given = {**attributes, "coordinate_transformation_mode": coordinates}
    agree("Resize", [IMAGE, None, floats(1, 1, 1.7, 0.6)], 19, shapes=["static"], **given)
    agree("Resize", [IMAGE, None, None, ints(1, 2, 4, 16)], 19, shapes=["static"], **given)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_every_form(mode: str) -> None:
    agree("Resize", [IMAGE, None, floats(1, 1, 2, 0.5)], 13, mode=mode)
    agree("Resize", [IMAGE, None, None, ints(1, 2, 9, 1)], 13, mode=mode)
    corners = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    agree("Resize", [IMAGE, None, None, ints(1, 2, 9, 4)], 13, **corners)
    agree("Resize", [IMAGE, None, None, ints(1, 2, 1, 1)], 13, **corners)
    if mode != "cubic":  # ONNX Runtime's cubic wants four axes
        agree("Resize", [IMAGE[0, 0], None, None, ints(3, 10)], 13, mode=mode)
        agree("Resize", [IMAGE[0][None, None], None, floats(1, 1, 1.5, 2, 1.2)], 13, mode=mode)


def test_one_axis() -> None:
    row = IMAGE[0, 0, 0]
    looked_at = (np.arange(10) + 0.5) * 0.7 - 0.5
    expected = np.interp(looked_at, np.arange(7), row).astype(np.float32)
    agree("Resize", [row, None, None, ints(10)], 13, [expected], mode="linear")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("extents", [(1, 2, 6, 9), (1, 2, 1, 9), (1, 2, 3, 1)])
def test_crop(mode: str, extents: tuple[int, ...]) -> None:
    roi = floats(0, 0, 0.3, -0.2, 1, 1, 0.8, 1.3)
    given = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.5,
    }
    agree("Resize", [IMAGE, roi, None, ints(*extents)], 13, **given)


def test_crop_without_scaling_moves_all_the_same() -> None:
    roi = floats(0, 0, 0, 0, 1, 1, 1, 0.5)
    given = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    expected = np.stack([np.interp(np.arange(7) / 2, np.arange(7), row) for row in IMAGE[0, 0]])
    (found,) = by_graft(
        one_node("Resize", [IMAGE, roi, None, ints(1, 2, 5, 7)], 13, **given),
        [IMAGE, roi, None, ints(1, 2, 5, 7)],
    )
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-5)


REFERENCE: list[tuple[list[Any], dict[str, Any]]] = [
    ([None, floats(1, 1, 0.6, 1.7)], {"coordinate_transformation_mode": "align_corners"}),
    ([None, floats(1.6, 0.7)], {"axes": [3, 2]}),
    ([None, None, ints(8, 4)], {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ([None, None, ints(8, 4)], {"axes": [3, 2], "keep_aspect_ratio_policy": "not_smaller"}),
    ([None, None, ints(8, 4)], {"axes": [0, 2]}),
    ([floats(0.2, 0.8), None, ints(4)], {"axes": [3], "coordinate_transformation_mode": "crop"}),
    ([None, floats(1, 1.5, 1.2, 1.1)], {}),
]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("operands", "attributes"), REFERENCE)
def test_onnx_reference(operands: list[Any], attributes: dict[str, Any], mode: str) -> None:
    given = {**attributes, "mode": mode}
    if given.get("coordinate_transformation_mode") == "crop":
        given["coordinate_transformation_mode"] = "tf_crop_and_resize"
    arrays = [IMAGE, *operands]
    model = one_node("Resize", arrays, 19, **given)
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if array is not None}
    expected = ReferenceEvaluator(model).run(None, feeds)
    agree("Resize", arrays, 19, [result.astype(np.float32) for result in expected], **given)


def test_older_opsets() -> None:
    for mode in ("nearest", "linear"):
        agree("Upsample", [IMAGE], 7, mode=mode, scales=[1.0, 1.0, 1.7, 2.0])
        agree("Upsample", [IMAGE, floats(1, 1, 1.7, 2)], 9, mode=mode)
        agree("Resize", [IMAGE, floats(1, 1, 0.6, 1.7)], 10, mode=mode)
        none = floats()
        agree("Resize", [IMAGE, none, none, ints(1, 2, 8, 3)], 11, mode=mode)
        agree("Resize", [IMAGE, none, floats(1, 1, 0.6, 1.7)], 12, mode=mode)
    tensorflow = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    agree("Resize", [IMAGE, none, floats(1, 1, 0.6, 1.7)], 11, mode="nearest", **tensorflow)


def test_empty_sizes_stand_for_none() -> None:
    expected = [np.repeat(IMAGE, 2, axis=3)]
    agree("Resize", [IMAGE, None, floats(1, 1, 1, 2), ints()], 13, expected, ["static"])


@pytest.mark.parametrize("opset", [11, 18])
def test_extents_are_those_of_float32(opset: int) -> None:
    row = np.arange(10, dtype=np.float32)
    kept = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    agree("Resize", [row, floats(), floats(0.7)], opset, mode="nearest", **kept)


def test_halfway_despite_rounding() -> None:
    """4 / (8 / 7) is 3.4999998 in float32."""
    row = np.arange(7, dtype=np.float32)
    kept = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest"}
    agree("Resize", [row, None, None, ints(8)], 13, nearest_mode="round_prefer_ceil", **kept)
    agree("Resize", [row, None, None, ints(8)], 13, nearest_mode="round_prefer_floor", **kept)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.uint64])
def test_integers_are_rounded_and_saturate(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    row = np.array([limits.min, limits.min, limits.max, limits.max, 0, 1], dtype)
    attrs = ResizeAttrs(scales=(4.0,), method="cubic")
    found = get_op("resize").evaluate(attrs, row, None, None, None)
    assert found.dtype == dtype
    assert (found.min(), found.max()) == (limits.min, limits.max)
    middle = get_op("resize").evaluate(ResizeAttrs(sizes=(3,), method="linear"), row[4:], *NONE)
    assert middle.tolist() == [0, 0, 1]  # 0, 1/2 to the even one, 1


NONE = (None, None, None)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.complex64])
def test_odd_dtypes(dtype: Any) -> None:
    data = (IMAGE * 8).astype(dtype)
    attrs = ResizeAttrs(scales=(1, 1, 1.5, 0.7), method="linear")
    found = get_op("resize").evaluate(attrs, data, *NONE)
    assert found.dtype == dtype
    if dtype == np.complex64:
        data = data + 2j * data
        found = get_op("resize").evaluate(attrs, data, *NONE)
        np.testing.assert_allclose(found.imag, 2 * found.real, rtol=1e-6)
    else:
        wide = np.float64 if dtype == np.float64 else np.float32
        exact = get_op("resize").evaluate(attrs, data.astype(wide), *NONE)
        np.testing.assert_array_equal(found, exact.astype(dtype))


def test_copies_of_anything() -> None:
    for row in (np.array(["a", "", "c"], object), np.array([True, False, True])):
        agree("Resize", [row, None, None, ints(6)], 13, [np.repeat(row, 2)], mode="nearest")


def test_nothing_and_little() -> None:
    empty = np.zeros((0, 3, 4), np.float32)
    for mode in ("nearest", "linear", "cubic"):
        expected = [np.zeros((0, 6, 2), np.float32)]
        agree("Resize", [empty, None, None, ints(0, 6, 2)], 13, expected, mode=mode)
        expected = [np.zeros((1, 0), np.float32)]
        agree("Resize", [IMAGE[0, 0, :1], None, floats(1, 0.1)], 13, expected, mode=mode)
    agree("Resize", [np.float32(3).reshape(()), None, floats()], 13, [np.float32(3)])


def test_not_a_number_stays_where_it_is() -> None:
    row = np.array([1, np.nan, 3, 4, np.inf, 6, 7, 8], np.float32)
    attrs = ResizeAttrs(scales=(0.5,), method="linear")
    found = get_op("resize").evaluate(attrs, row, *NONE)
    np.testing.assert_array_equal(found, [np.nan, 3.5, np.inf, 7.5])


def result_type(data: TensorType, **attrs: Any) -> str:
    return str(get_op("resize").result_types(ResizeAttrs(**attrs), (data,))[0])


def test_types() -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    data = tensor("float32", n, 3, h, w)
    assert result_type(data, scales=(1, 1, 2, 0.5)) == "float32[n, 3, 2*h, w//2]"
    assert result_type(data, scales=(1, 2, 1.5, 0.3)) == "float32[n, 6, h + h//2, ?]"
    assert result_type(data, sizes=(n, 3, 2 * w, h)) == "float32[n, 3, 2*w, h]"
    assert result_type(data, sizes=(7, h), axes=(-1, 2)) == "float32[n, 3, h, 7]"
    policy = {"keep_aspect_ratio_policy": "not_larger", "axes": (2, 3)}
    assert result_type(data, sizes=(8, 8), **policy) == "float32[n, 3, ?, ?]"
    assert result_type(tensor("int8", 1, 3, 4, 6), sizes=(8, 8), **policy) == "int8[1, 3, 5, 8]"
    unranked = TensorType(data.dtype, None)
    assert result_type(unranked, sizes=(7, h)) == "float32[7, h]"
    assert result_type(unranked, scales=(7, 1)) == "float32[?, ?]"
    assert result_type(unranked, scales=(7, 1), axes=(0, 1)) == "float32[*]"


def test_symbolic_extents_hold() -> None:
    builder = Builder()
    data = builder.input("x", tensor("float32", symbol("h"), symbol("w")))
    graph = builder.build(builder("resize", data, scales=(1.25, 0.375), method="linear"))
    for extents in ((1, 3), (5, 7), (11, 16)):
        (found,) = evaluate(graph, [np.ones(extents, np.float32)])
        assert found.shape == (extents[0] * 5 // 4, extents[1] * 3 // 8)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "wants either scales or sizes"),
    ({"scales": (1, 1), "sizes": (1, 1)}, "wants either scales or sizes"),
    ({"scales": (1, 1, 1)}, "scales has 3 elements for 2 axes"),
    ({"sizes": (1, 1), "axes": (1,)}, "sizes has 2 elements for 1 axes"),
    ({"sizes": (1, 1), "axes": (1, -1)}, "an axis is named twice"),
    ({"scales": (1, 0)}, "scales have to be positive"),
    ({"sizes": (1, -1)}, "sizes cannot be negative"),
    ({"sizes": (1, 1), "method": "lanczos"}, "the method 'lanczos' is none of nearest_neighbor"),
    ({"sizes": (1, 1), "rounding_method": "up"}, "the rounding 'up' is none of"),
    ({"sizes": (1, 1), "antialias": True}, "nearest neighbour has no antialiasing"),
    ({"sizes": (1, 1), "coordinate_transformation_mode": "x"}, "the coordinate mode 'x'"),
    ({"sizes": (1, 1), "coordinate_transformation_mode": "tf_crop_and_resize"}, "wants a roi"),
    ({"sizes": (1, 1), "keep_aspect_ratio_policy": "x"}, "the aspect ratio policy 'x'"),
]


@pytest.mark.parametrize(("attrs", "message"), REFUSED)
def test_refusals(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        result_type(tensor("float32", 2, 3), **attrs)


def test_refusals_that_depend_on_operands() -> None:
    with pytest.raises(TypeRuleError, match="bool elements cannot be interpolated"):
        result_type(tensor("bool", 2), sizes=(3,), method="linear")
    with pytest.raises(TypeRuleError, match="an empty axis cannot grow"):
        result_type(tensor("float32", 0), sizes=(3,))
    assert result_type(tensor("float32", 0), sizes=(symbol("n"),)) == "float32[n]"
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "roi": (0, 1)}
    with pytest.raises(TypeRuleError, match="strings have no value to extrapolate with"):
        result_type(tensor("string", 2), sizes=(3,), **crop)
    with pytest.raises(ModelError, match="both scales and sizes"):
        by_graft(one_node("Resize", [IMAGE, None, floats(1), ints(1)], 13), [])
    with pytest.raises(ModelError, match="mode is 'area', none of nearest, linear, cubic"):
        by_graft(one_node("Resize", [IMAGE, None, floats(1)], 13, mode="area"), [])
    empty = np.zeros((0,), np.float32)
    model = one_node("Resize", [empty, None, None, ints(3)], 13, "symbolic")
    with pytest.raises(EvaluationError, match="an empty axis cannot grow"):
        by_graft(model, [empty, None, None, ints(3)])
