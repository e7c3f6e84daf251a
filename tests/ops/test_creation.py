"""Constants, shapes, ranges and identity matrices, and operators that hand their operand on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import AnyDim, symbol
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import tensor

N, M = symbol("n"), symbol("m")


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


CONSTANTS: list[tuple[str, Any, Any]] = [
    ("value_int", -(2**62), np.array(-(2**62))),
    ("value_ints", [3, 1], ints(3, 1)),
    ("value_ints", [], ints()),
    ("value_float", 0.5, np.array(0.5, np.float32)),
    ("value_floats", [0.25, -1.0], np.array([0.25, -1], np.float32)),
    ("value_string", "grün", np.array("grün", object)),
    ("value_strings", ["a", ""], np.array(["a", ""], object)),
]


@pytest.mark.parametrize(("name", "value", "wanted"), CONSTANTS)
def test_plain_constants(name: str, value: Any, wanted: Any) -> None:
    attribute = helper.make_attribute(name, value, attr_type=_KINDS[name])
    model = one_node("Constant", [], 13)
    model.graph.node[0].attribute.append(attribute)
    (found,) = by_graft(model, [])
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tolist() == wanted.tolist()


_KINDS = {
    "value_int": onnx.AttributeProto.INT,
    "value_ints": onnx.AttributeProto.INTS,
    "value_float": onnx.AttributeProto.FLOAT,
    "value_floats": onnx.AttributeProto.FLOATS,
    "value_string": onnx.AttributeProto.STRING,
    "value_strings": onnx.AttributeProto.STRINGS,
}


@pytest.mark.parametrize("dtype", [np.bool_, np.complex128, ml_dtypes.bfloat16, ml_dtypes.uint4])
def test_constants_of_every_dtype(dtype: Any) -> None:
    wanted = np.array([[1, 0, 1]]).astype(dtype)
    agree("Constant", [], 25, [wanted], value=numpy_helper.from_array(wanted))


@pytest.mark.parametrize("indices", [ints(1, 5), np.array([[0, 1], [1, 2]])])
def test_sparse_constants(indices: Any) -> None:
    values = numpy_helper.from_array(np.array([2.5, -1], np.float32), "v")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
    wanted = np.array([[0, 2.5, 0], [0, 0, -1]], np.float32)
    agree("Constant", [], 13, [wanted], sparse_value=sparse)


def test_a_constant_wants_one_value() -> None:
    with pytest.raises(ModelError, match="Constant wants exactly one value, has 2"):
        import_model(one_node("Constant", [], 13, value_int=1, value_float=2.0))


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
def test_constant_of_shape(shape: tuple[int, ...]) -> None:
    agree("ConstantOfShape", [ints(*shape)], 9)
    fill = numpy_helper.from_array(np.array([7], np.int8))
    agree("ConstantOfShape", [ints(*shape)], 9, value=fill)
    odd = numpy_helper.from_array(np.array([1]).astype(ml_dtypes.bfloat16))
    agree("ConstantOfShape", [ints(*shape)], 20, [np.ones(shape, ml_dtypes.bfloat16)], value=odd)


SHAPES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 4), {}),
    ((2, 3, 4), {"start": 1}),
    ((2, 3, 4), {"start": -2, "end": -1}),
    ((2, 3, 4), {"end": 9}),
    ((2, 3, 4), {"start": 2, "end": 1}),
    ((), {"start": -1}),
    ((0,), {}),
]


@pytest.mark.parametrize(("shape", "attributes"), SHAPES)
def test_shape_and_size(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x = np.zeros(shape, np.float32)
    agree("Shape", [x], 15, **attributes)
    agree("Size", [x], 13)


RANGES: list[tuple[Any, Any, Any]] = [
    (0, 5, 1),
    (3, 10, 4),
    (10, 4, -2),
    (5, 5, 1),
    (5, 2, 1),
    (-3, -9, -4),
]


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(("start", "limit", "delta"), RANGES)
def test_range(start: int, limit: int, delta: int, dtype: Any) -> None:
    operands = [np.array(number, dtype) for number in (start, limit, delta)]
    agree("Range", operands, 11)
    agree("Range", operands, 27, [np.arange(start, limit, delta).astype(dtype)])


def test_range_of_fractions() -> None:
    thirds = [np.array(number, np.float32) for number in (0, 0.3, 0.1)]
    agree("Range", thirds, 11)
    agree("Range", [np.array(n) for n in (-1.0, 1.0, 0.37)], 11)
    short = [np.array(n, np.float16) for n in (2048, 2056, 1)]
    wanted = np.arange(2048, 2056, dtype=np.float32).astype(np.float16)
    agree("Range", short, 27, [wanted], stash_type=1)
    zero = [np.array(n) for n in (0, 3, 0)]
    with pytest.raises(EvaluationError, match="the step is 0"):
        by_graft(one_node("Range", zero, 11), zero)


def test_range_of_floats_up_to_a_size() -> None:
    """As exporters write the rows and columns of a grid."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        grid (float[n, m] x0) => (float[k] rows, float[j] odd) {
            sizes = Shape (x0)
            zero = Constant <value = int64 {0}> ()
            size = Gather (sizes, zero)
            limit = Cast <to = 1> (size)
            start = Constant <value = float {0.0}> ()
            step = Constant <value = float {1.0}> ()
            two = Constant <value = float {2.0}> ()
            rows = Range (start, limit, step)
            odd = Range (step, limit, two)
        }""")
    rows, odd = import_model(model).outputs
    assert str(rows.type) == "float32[n]"
    assert str(odd.type) == "float32[n//2]"
    for count in (0, 1, 2, 7):
        data = [np.zeros((count, 3), np.float32)]
        expected = [np.arange(count), np.arange(1, count, 2)]
        for found, wanted in zip(by_graft(model, data), expected, strict=True):
            np.testing.assert_array_equal(found, wanted.astype(np.float32), strict=True)


ARANGES: list[tuple[tuple[AnyDim, AnyDim, AnyDim], str]] = [
    ((0, N, 1), "n"),
    ((2, N, 1), "max(n - 2, 0)"),
    ((0, 2 * N, 2), "n"),
    ((N, 0, -1), "n"),
    ((N, N + 3, 1), "3"),
]


@pytest.mark.parametrize(("bounds", "wanted"), ARANGES)
def test_arange_over_symbols(bounds: tuple[AnyDim, AnyDim, AnyDim], wanted: str) -> None:
    builder = Builder()
    builder.input("x", tensor("int8", N, M))
    start, limit, delta = bounds
    value = builder("arange", start=start, limit=limit, delta=delta)
    assert str(value.type) == f"int64[{wanted}]"


def test_arange_is_known_where_its_bounds_are() -> None:
    builder = Builder()
    known = builder.knowledge.known(builder("arange", start=1, limit=6, delta=2))
    assert known is not None
    assert known.tolist() == [1, 3, 5]
    for attributes, message in (
        ({"start": 0, "limit": 3, "delta": 0}, "the step is 0"),
        ({"start": 0, "limit": 3}, "start, limit or step is missing"),
        ({"start": 0, "limit": 3, "delta": 1, "dtype": "float32"}, "not float32 as the result"),
    ):
        with pytest.raises(TypeRuleError, match=message):
            builder("arange", **attributes)


@pytest.mark.parametrize("k", [0, 1, -2, 9])
@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (0, 3)])
def test_eye_like(k: int, shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    agree("EyeLike", [x], 9, [np.eye(*shape, k=k, dtype=np.float32)], k=k)
    agree("EyeLike", [x], 9, [np.eye(*shape, k=k, dtype=np.int64)], k=k, dtype=TensorProto.INT64)
    odd = np.eye(*shape, k=k).astype(ml_dtypes.bfloat16)
    agree("EyeLike", [x], 22, [odd], k=k, dtype=TensorProto.BFLOAT16)


def test_an_identity_matrix_has_two_axes() -> None:
    with pytest.raises(TypeRuleError, match="a matrix has two axes, not 3"):
        import_model(one_node("EyeLike", [np.zeros((1, 2, 3))], 9))


def test_full_follows_dims() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", N))
    known = builder.knowledge.known(builder("full", builder("shape_of", x), shape=(2,)))
    assert known is not None
    assert known.tolist() == [N, N]


@pytest.mark.parametrize("opset", [7, 14, 25])
def test_identity_is_no_node(opset: int) -> None:
    graph = import_model(one_node("Identity", [np.zeros(3, np.float32)], opset))
    assert graph.nodes == ()
    assert graph.outputs == graph.inputs


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_identity_of_what_is_not_a_tensor(kind: str) -> None:
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    make = {
        "sequence": helper.make_sequence_type_proto,
        "optional": helper.make_optional_type_proto,
    }
    info = helper.make_value_info("x", make[kind](element))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=10)
    value = [np.ones(2, np.float32)] if kind == "sequence" else None
    assert evaluate(import_model(model), [value]) == [value]
