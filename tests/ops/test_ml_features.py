"""ai.onnx.ml: preparing features, looking labels up, and maps to and from tensors.

ONNX Runtime has Binarizer for float alone and no Imputer for double and int32, no LabelEncoder for
int16 and int32, no OneHotEncoder for int32, and takes no maps of strings or integers from Python;
there NumPy says what is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.ops.ml_node import agree, assert_same, by_graft, by_runtime, graph_of, model, texts

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError, ModelError, TypeRuleError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import MapType, SequenceType, TensorType, tensor

NAN, INF = float("nan"), float("inf")
X = np.array([[1, -2, 3], [0, 0, 0], [-1, -5, -2], [0.25, 7, 1e4]], np.float32)
NUMBERS = [np.float32, np.float64, np.int32, np.int64]


def tensor_of(values: Any, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("where", [[2, 0], [[3], [3]], [1], 2])
def test_array_feature_extractor(shape: tuple[int, ...], where: Any) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    for data in (x, x.astype(np.float32), np.array(x.astype(str), object)):
        if shape[0]:
            agree("ArrayFeatureExtractor", [data, np.array(where)])
        else:
            (found,) = by_graft("ArrayFeatureExtractor", [data, np.array(where)])
            assert found.shape == (0, np.size(where))
    with pytest.raises(EvaluationError, match="index 4 is out of range for axis"):
        by_graft("ArrayFeatureExtractor", [np.ones(shape), np.array([4])])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("threshold", [0.0, 1.5, -2.0, INF])
def test_binarizer(dtype: Any, threshold: float) -> None:
    (found,) = by_graft("Binarizer", [X.astype(dtype)], threshold=threshold)
    assert_same([found], [(X.astype(dtype) > threshold).astype(dtype)])
    if dtype is np.float32:
        agree("Binarizer", [X], threshold=threshold)
        nan = by_graft("Binarizer", [np.array([NAN, INF], np.float32)], threshold=threshold)
        assert nan[0].tolist() == [0, float(threshold < INF)]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("count", [1, 3])
def test_scaler(dtype: Any, count: int) -> None:
    offset, scale = [1.5, -2.0, 3.0][:count], [2.0, 0.5, -1.0][:count]
    options: dict[str, Any] = {"offset": offset, "scale": scale}
    for data in (X, X[0], X[:0]):
        agree("Scaler", [data.astype(dtype)], **options)
    (found,) = by_graft("Scaler", [X.reshape(2, 2, 3).astype(dtype)], **options)
    expected = (X.astype(dtype) - offset) * scale
    assert_same([found.reshape(4, 3)], [expected.astype(np.float32)])


def test_scaler_takes_either_half() -> None:
    assert by_graft("Scaler", [X[0]], scale=[2.0])[0].tolist() == [2, -4, 6]
    assert by_graft("Scaler", [X[0]], offset=[1.0, 2.0, 3.0])[0].tolist() == [0, -4, 0]
    assert by_graft("Scaler", [X[0]])[0].tolist() == X[0].tolist()
    with pytest.raises(ModelError, match="there are 1 offsets but 3 scales"):
        by_graft("Scaler", [X], offset=[1.0], scale=[1.0, 2.0, 3.0])
    with pytest.raises(TypeRuleError, match="extents 3 and 2 do not broadcast"):
        by_graft("Scaler", [X], offset=[1.0, 2.0])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(dtype: Any, norm: str) -> None:
    for data in (X, X[0], X[1], X[:0]):
        agree("Normalizer", [data.astype(dtype)], norm=norm)
    with pytest.raises(ModelError, match=r"wants a tensor of shape \[C\] or \[N, C\], not"):
        by_graft("Normalizer", [X.reshape(2, 2, 3).astype(dtype)], norm=norm)


def test_normalizer_refuses_other_norms() -> None:
    with pytest.raises(ModelError, match="norm is 'L3', none of MAX, L1, L2"):
        by_graft("Normalizer", [X], norm="L3")


@pytest.mark.parametrize("values", [[7.0], [7.0, 8.0, 9.0]])
@pytest.mark.parametrize("replaced", [0.0, NAN, -5.0, INF])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_imputer_of_floats(values: list[float], replaced: float, dtype: Any) -> None:
    data = X.copy()
    data[2] = [NAN, INF, -INF]
    options: dict[str, Any] = {
        "imputed_value_floats": values,
        "replaced_value_float": replaced,
    }
    (found,) = by_graft("Imputer", [data.astype(dtype)], **options)
    hit = np.isnan(data) if np.isnan(replaced) else data == replaced
    assert_same([found], [np.where(hit, np.array(values), data).astype(dtype)])
    if dtype is np.float32:
        agree("Imputer", [data], **options)


@pytest.mark.parametrize("values", [[7], [7, 8, 9]])
def test_imputer_of_integers(values: list[int]) -> None:
    options: dict[str, Any] = {"imputed_value_int64s": values, "replaced_value_int64": -2}
    agree("Imputer", [X.astype(np.int64)], **options)
    (found,) = by_graft("Imputer", [X.astype(np.int32)], **options)
    whole = X.astype(np.int32)
    assert_same([found], [np.where(whole == -2, values, whole).astype(np.int32)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "wants one of imputed_value_floats, imputed_value_int64s, has none"),
        (
            {"imputed_value_floats": [1.0], "imputed_value_int64s": [1]},
            "has imputed_value_floats and imputed_value_int64s",
        ),
        ({"imputed_value_int64s": [1]}, "imputed_value_int64s does not fit float32 elements"),
        ({"imputed_value_floats": [1.0, 2.0]}, "extents 3 and 2|extents 2 and 3"),
    ],
)
def test_imputer_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        by_graft("Imputer", [X], **options)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(
    "widths", [[3, 2, 1], [2, 2, 1], [4, 3, 2], [1, 5, 1]], ids=["fit", "cut", "fill", "both"]
)
def test_feature_vectorizer(dtype: Any, widths: list[int]) -> None:
    parts = [X[:, :3], X[:, 1:], X[:, :1]]
    agree("FeatureVectorizer", [part.astype(dtype) for part in parts], inputdimensions=widths)


def test_feature_vectorizer_of_other_ranks() -> None:
    agree("FeatureVectorizer", [X[0], X[1]], inputdimensions=[3, 2])
    agree("FeatureVectorizer", [X.reshape(2, 2, 3)], inputdimensions=[6])
    (found,) = by_graft("FeatureVectorizer", [X, X])
    assert found.tolist() == np.hstack([X, X]).tolist()
    with pytest.raises(ModelError, match="there are 2 inputs but 1 inputdimensions"):
        by_graft("FeatureVectorizer", [X, X], inputdimensions=[3])


def test_feature_vectorizer_of_symbolic_width() -> None:
    proto = model("FeatureVectorizer", [X, X], inputdimensions=[2, 4])
    for info in proto.graph.input:
        info.type.tensor_type.shape.dim[1].dim_param = "c"
    graph = import_model(proto)
    for width in (1, 2, 3, 4, 5):
        data = np.ones((4, width), np.float32)
        (found,) = evaluate(graph, [data, data])
        expected = [1] * min(2, width) + [0] * (2 - min(2, width))
        expected += [1] * min(4, width) + [0] * (4 - min(4, width))
        assert found.tolist() == [expected] * 4


# LabelEncoder and its kin


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (texts("a", "z", "b"), {"keys_strings": ["a", "b"], "values_int64s": [5, 6]}),
        (texts("a", "z"), {"keys_strings": ["a", "b"], "values_strings": ["x", "y"]}),
        (texts("a", "z"), {"keys_strings": ["a"], "values_floats": [2.5], "default_float": 9.0}),
        (np.array([[1], [7]]), {"keys_int64s": [7, 1], "values_strings": ["x", "y"]}),
        (np.array([1, 3]), {"keys_int64s": [3], "values_int64s": [4], "default_int64": 8}),
        (np.array([1, 3]), {"keys_int64s": [3], "values_floats": [4.5]}),
        (np.array([1.5, -0.0], np.float32), {"keys_floats": [0.0, 3.0], "values_floats": [1, 2.0]}),
        (np.array([1.5, INF], np.float32), {"keys_floats": [INF], "values_int64s": [1]}),
        (np.array([1.5, 2], np.float32), {"keys_floats": [2.0], "values_strings": ["two"]}),
        (np.array(1), {"keys_int64s": [1], "values_int64s": [2]}),
        (np.zeros((0, 2), np.int64), {"keys_int64s": [1], "values_strings": ["x"]}),
    ],
)  # fmt: skip
def test_label_encoder(data: Any, options: dict[str, Any]) -> None:
    agree("LabelEncoder", [data], opset=2, **options)
    agree("LabelEncoder", [data], opset=4, **options)


def test_label_encoder_maps_nan_and_lets_the_last_key_win() -> None:
    data = np.array([NAN, 1, 0], np.float32)
    options = {"keys_floats": [1.0, NAN], "values_int64s": [1, 2]}
    agree("LabelEncoder", [data], opset=4, **options)
    assert by_graft("LabelEncoder", [data], opset=2, **options)[0].tolist() == [2, 1, -1]
    twice = {"keys_int64s": [1, 2, 1], "values_strings": ["x", "y", "z"]}
    assert by_graft("LabelEncoder", [np.array([1, 2])], opset=4, **twice)[0].tolist() == ["z", "y"]
    words = {"keys_strings": ["a", "b", "a"], "values_int64s": [1, 2, 3]}
    assert by_graft("LabelEncoder", [texts("a", "b")], opset=4, **words)[0].tolist() == [3, 2]


@pytest.mark.parametrize("key", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.int16, np.int32, np.int64, np.float32, np.float64])
def test_label_encoder_by_tensors(key: Any, value: Any) -> None:
    options = {"keys_tensor": tensor_of([3, 1], key), "values_tensor": tensor_of([30, 10], value)}
    data = np.array([[1, 2], [3, 3]], key)
    for default, expected in (({}, -1), ({"default_tensor": tensor_of([7], value)}, 7)):
        wanted = 0 if not default and np.issubdtype(value, np.floating) else expected
        (found,) = by_graft("LabelEncoder", [data], opset=4, **options, **default)
        assert_same([found], [np.array([[10, wanted], [30, 30]], value)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys_int64s": [1], "values_int64s": [1, 2]}, "there are 1 keys but 2 values"),
        ({"keys_int64s": [1]}, "wants one of values_strings.*, has none"),
        (
            {"keys_int64s": [1], "keys_strings": ["a"], "values_int64s": [1]},
            "has keys_strings and keys_int64s",
        ),
        (
            {"keys_strings": ["a"], "values_int64s": [1]},
            "keys of string do not fit int64 elements",
        ),
        (
            {
                "keys_int64s": [1],
                "values_int64s": [1],
                "default_tensor": tensor_of([1.0], np.float32),
            },
            r"the default is float32\[1\], not one int64",
        ),
    ],
)
def test_label_encoder_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        by_graft("LabelEncoder", [np.array([1])], opset=4, **options)
    assert caught.value.location is not None


def test_label_encoder_of_the_first_version() -> None:
    options: dict[str, Any] = {"opset": 1, "classes_strings": ["a", "b", "c"]}
    agree("LabelEncoder", [texts("c", "z", "a")], default_int64=-7, **options)
    agree("LabelEncoder", [np.array([0, 2, 3, -1])], default_string="none", **options)


def test_category_mapper() -> None:
    options = {"cats_int64s": [3, 1, 7], "cats_strings": ["x", "y", "z"]}
    agree("CategoryMapper", [texts("z", "q", "x").reshape(3, 1)], default_int64=9, **options)
    agree("CategoryMapper", [np.array([[1, 2], [7, 3]])], default_string="none", **options)
    with pytest.raises(ModelError, match="there are 1 integers but 0 strings"):
        by_graft("CategoryMapper", [texts("a")], cats_int64s=[1])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (1, 2, 2)])
def test_one_hot_encoder(dtype: Any, shape: tuple[int, ...]) -> None:
    whole = np.asarray(np.random.default_rng(1).integers(0, 5, shape))
    data = np.asarray(whole + 0.7, dtype)
    (found,) = by_graft("OneHotEncoder", [data], cats_int64s=[3, 1, 4, 1])
    assert_same([found], by_runtime("OneHotEncoder", [whole], cats_int64s=[3, 1, 4, 1]))
    agree("OneHotEncoder", [np.array(whole.astype(str), object)], cats_strings=["3", "1"])


def test_one_hot_encoder_without_zeros() -> None:
    options: dict[str, Any] = {"cats_strings": ["a", "b"], "zeros": 0}
    agree("OneHotEncoder", [texts("b", "a")], **options)
    with pytest.raises(EvaluationError, match="'c' is not one of the categories"):
        by_graft("OneHotEncoder", [texts("b", "c")], **options)
    assert by_graft("OneHotEncoder", [np.zeros((0, 2), object)], **options)[0].shape == (0, 2, 2)


def map_type(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


TO_FLOATS = [map_type(TensorProto.INT64, TensorProto.FLOAT)]
TO_STRINGS = [map_type(TensorProto.INT64, TensorProto.STRING)]


@pytest.mark.parametrize("target", ["TO_FLOAT", "TO_INT64"])
def test_cast_map_of_numbers(target: str) -> None:
    given = [{7: 1.5, 0: -2.5, 3: 4.0}]
    agree("CastMap", given, types=TO_FLOATS, cast_to=target)
    agree("CastMap", given, types=TO_FLOATS, cast_to=target, map_form="SPARSE", max_map=9)


def test_cast_map_to_and_from_strings() -> None:
    numbers, words = [{7: 1.5, 0: -2.5}], [{2: "3.5", 0: "7"}]
    (found,) = by_graft("CastMap", numbers, types=TO_FLOATS, cast_to="TO_STRING")
    assert found.tolist() == [["-2.5", "1.5"]]
    sparse: dict[str, Any] = {"types": TO_STRINGS, "map_form": "SPARSE", "max_map": 4}
    for target, expected in {
        "TO_STRING": ["7", "", "3.5", ""],
        "TO_FLOAT": [7, 0, 3.5, 0],
        "TO_INT64": [7, 0, 3, 0],
    }.items():
        assert by_graft("CastMap", words, cast_to=target, **sparse)[0].tolist() == [expected]
    assert by_graft("CastMap", [{}], types=TO_FLOATS)[0].shape == (1, 0)


@pytest.mark.parametrize("key", [4, -1])
def test_cast_map_refuses_keys_beyond_its_length(key: int) -> None:
    with pytest.raises(EvaluationError, match=f"the key {key} is no column of 4"):
        by_graft("CastMap", [{key: 1.0}], types=TO_FLOATS, map_form="SPARSE", max_map=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cast_to": "TO_BOOL"}, "cast_to is 'TO_BOOL', none of TO_FLOAT, TO_STRING, TO_INT64"),
        ({"map_form": "LOOSE"}, "map_form is 'LOOSE', neither DENSE nor SPARSE"),
        ({"map_form": "SPARSE", "max_map": 0}, "the length is 0"),
        ({"types": [map_type(TensorProto.STRING, TensorProto.FLOAT)]}, "wants int64 keys"),
    ],
)
def test_cast_map_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        by_graft("CastMap", [{0: 1.0}], **({"types": TO_FLOATS} | options))
    with pytest.raises(ModelError, match=r"CastMap wants a map, not float32\[3\]"):
        by_graft("CastMap", [X[0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_dict_vectorizer(dtype: Any) -> None:
    given, columns = [{"a": 4, "zzz": 9, "c": 8}], ["a", "c", "b", "z"]
    types = [map_type(TensorProto.STRING, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))]
    (found,) = by_graft("DictVectorizer", given, types=types, string_vocabulary=columns)
    assert_same([found], [np.array([[4, 8, 0, 0]], dtype)])
    if dtype is np.float32:
        agree("DictVectorizer", given, types=types, string_vocabulary=columns)


def test_dict_vectorizer_of_strings() -> None:
    options: dict[str, Any] = {"types": TO_STRINGS, "int64_vocabulary": [5, 6, 7]}
    (found,) = by_graft("DictVectorizer", [{6: "x", 1: "y"}], **options)
    assert_same([found], [np.array([["", "x", ""]], object)])
    with pytest.raises(TypeRuleError, match="wants string keys, not int64"):
        by_graft("DictVectorizer", [{}], types=TO_STRINGS, string_vocabulary=["a"])


@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [4, 9, -2]}, {"classlabels_strings": ["x", "y", "z"]}]
)
def test_zip_map(labels: dict[str, Any]) -> None:
    for data in (X, X[0], X[:1]):
        (found,) = by_graft("ZipMap", [data], **labels)
        (expected,) = by_runtime("ZipMap", [data], **labels)
        assert [dict(sorted(row.items())) for row in found] == expected
    assert by_graft("ZipMap", [X[:0]], **labels) == [[]]


def test_zip_map_types() -> None:
    graph = graph_of("ZipMap", [X], classlabels_strings=["x", "y", "z"])
    of_labels = MapType(DType.STRING, TensorType(DType.FLOAT32, ()))
    assert graph.outputs[0].type == SequenceType(of_labels)
    with pytest.raises(TypeRuleError, match="numbers of columns and of labels differ: 3 and 2"):
        by_graft("ZipMap", [X], classlabels_int64s=[1, 2])


def test_symbolic_shapes_pass() -> None:
    n, builder = symbol("n"), Builder()
    data = builder.input("data", tensor("int64", n, 3))
    keys, values = np.array([1, 2]), np.array(["a", "b"], object)
    known = builder("ml.label_map", data, keys=keys, values=values)
    assert known.type == tensor("string", n, 3)
    anything = builder.input("anything", TensorType(DType.INT64, None))
    unranked = builder("ml.label_map", anything, keys=keys, values=values)
    assert unranked.type == TensorType(DType.STRING, None)
    given = np.array([[1, 2, 1]])
    results = evaluate(builder.build(known, unranked), [given, np.array(2)])
    assert [result.tolist() for result in results] == [[["a", "b", "a"]], "b"]
