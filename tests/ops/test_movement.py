"""Reshaping, transposing, joining, cutting and repeating, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import AnyDim, Dim, parse_dim, symbol
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.ir.types import TensorType, tensor

N, M = symbol("n"), symbol("m")


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


RESHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 4), (4, 6)),
    ((2, 3, 4), (0, -1)),
    ((2, 3, 4), (-1,)),
    ((2, 3, 4), (1, 24, 1)),
    ((2, 3, 5), (0, 0, -1, 1)),
    ((), (1, 1)),
    ((1,), ()),
    ((0, 3), (3, -1)),
    ((0, 3), (0, 3, 1)),
]


@pytest.mark.parametrize(("before", "after"), RESHAPES)
@pytest.mark.parametrize("opset", [7, 14])
def test_reshape(before: tuple[int, ...], after: tuple[int, ...], opset: int) -> None:
    agree("Reshape", [ramp(*before), ints(*after)], opset)


def test_reshape_to_no_elements() -> None:
    agree("Reshape", [ramp(0, 3, 4), ints(3, 0, 5)], 14, allowzero=1)
    agree("Reshape", [ramp(0, 4), ints(0, -1)], 14, [ramp(0, 4)])


TYPES_OF_RESHAPE: list[tuple[tuple[Dim, ...], tuple[AnyDim, ...], str]] = [
    ((N, 3, 8), (0, -1), "n, 24"),
    ((N, 3, 8), (-1, 12), "2*n, 12"),
    ((N, M, 8), (-1,), "8*m*n"),
    ((N, 4, 6), (2, N, -1), "2, n, 12"),
    ((N, M, 6), (N * M, 2, -1), "m*n, 2, 3"),
]


@pytest.mark.parametrize(("before", "after", "wanted"), TYPES_OF_RESHAPE)
def test_reshape_infers_symbolic_extents(
    before: tuple[Dim, ...], after: tuple[AnyDim, ...], wanted: str
) -> None:
    builder = Builder()
    result = builder("reshape", builder.input("x", tensor("int8", *before)), shape=after)
    assert result.shape == tuple(parse_dim(dim) for dim in wanted.split(", "))


REFUSED: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("reshape", (2, 3), {"shape": (4, 2)}, "6 elements do not fill [4, 2]"),
    ("reshape", (2, 3), {"shape": (4, -1)}, "6 elements do not fill [4, -1]"),
    ("reshape", (2, 3), {"shape": (-1, -1)}, "-1 stands more than once in [-1, -1]"),
    ("reshape", (2, 3), {"shape": (-2, 3)}, "a negative extent in [-2, 3]"),
    ("reshape", (2, 3), {"shape": (2, 3, 0)}, "0 at position 2 copies an axis that is not there"),
    ("reshape", (2, 3), {"shape": (0, -1), "allowzero": True}, "may be anything beside"),
    ("transpose", (2, 3), {"axes": (0,)}, "[0] does not order 2 axes"),
    ("transpose", (2, 3), {"axes": (0, 0)}, "an axis is named twice in [0, 0]"),
    ("expand_dims", (2,), {"axes": (3,)}, "axis 3 is out of range for rank 2"),
    ("expand_dims", (2,), {"axes": (0, -3)}, "an axis is named twice in [0, -3]"),
    ("expand_dims", (2,), {}, "axes are given neither as operand nor as attribute"),
    ("squeeze", (2, 1), {"axes": (0,)}, "axis 0 has extent 2, not 1"),
    ("split", (5,), {"sizes": (2, 2)}, "the extent and the sum of the sizes differ: 5 and 4"),
    ("split", (5,), {"sections": 4}, "5 elements do not make 4 parts"),
    ("split", (5,), {}, "neither sizes nor the number of sections is given"),
    ("broadcast_to", (2, 3), {"shape": (3,)}, "rank 2 does not broadcast to rank 1"),
    ("broadcast_to", (2, 3), {"shape": (3, 3)}, "extents of axis 0 differ: 2 and 3"),
    ("tile", (2, 3), {"reps": (2,)}, "1 repetitions for 2 axes"),
]


@pytest.mark.parametrize(("name", "shape", "attributes", "message"), REFUSED)
def test_contradictions_are_refused(
    name: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", *shape))
    with pytest.raises(TypeRuleError) as caught:
        builder.call(name, data, **attributes)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("shape", "perm"), [((2, 3, 4), (2, 0, 1)), ((2, 0), (1, 0)), ((), None), ((2, 3, 4), None)]
)
def test_transpose(shape: tuple[int, ...], perm: tuple[int, ...] | None) -> None:
    attributes: dict[str, Any] = {} if perm is None else {"perm": perm}
    agree("Transpose", [ramp(*shape)], 13, **attributes)


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 4), (0, -1)), ((3, 4), (-1, 1)), ((), (0, 1)), ((2, 0), (1,))]
)
def test_unsqueeze_and_squeeze(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = ramp(*shape)
    wide = np.expand_dims(x, axes)
    agree("Unsqueeze", [x, ints(*axes)], 13, [wide])
    agree("Unsqueeze", [x], 11, [wide], axes=axes)
    agree("Squeeze", [wide, ints(*axes)], 13, [x])
    agree("Squeeze", [wide], 11, [x], axes=axes)
    agree("Squeeze", [wide], 13, [np.squeeze(wide)])
    agree("Squeeze", [wide], 7, [np.squeeze(wide)])


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 0, 4)])
def test_flatten(shape: tuple[int, ...], axis: int) -> None:
    x = ramp(*shape)
    front = axis if axis >= 0 else axis + 3
    rows, columns = int(np.prod(shape[:front])), int(np.prod(shape[front:]))
    agree("Flatten", [x], 13, [x.reshape(rows, columns)], axis=axis)


def test_flatten_of_short_shapes() -> None:
    agree("Flatten", [ramp()], 13, [np.zeros((1, 1), np.float32)], axis=0)
    agree("Flatten", [ramp(5)], 9, [ramp(5, 1)])
    with pytest.raises(ModelError, match="Flatten at axis 3 of rank 2"):
        import_model(one_node("Flatten", [ramp(2, 3)], 13, axis=3))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(axis: int) -> None:
    pieces = [ramp(*(extent if i == axis % 3 else 2 for i in range(3))) for extent in (1, 0, 3)]
    agree("Concat", pieces, 13, axis=axis)
    agree("Concat", pieces[:1], 11, axis=axis)


def test_concatenate_prefers_plain_extents_and_adds_symbols() -> None:
    builder = Builder()
    x = builder.input("x", tensor("int32", N, M))
    y = builder.input("y", tensor("int32", 4, 3))
    assert builder("concatenate", x, y, axis=1).type == tensor("int32", 4, M + 3)
    unranked = builder.input("z", TensorType(x.dtype, None))
    known = builder("concatenate", y, unranked, axis=1).shape
    assert known is not None
    assert known[0] == 4
    assert known[1] not in (3, M)
    for wrong, message in (
        ((x, builder.input("a", tensor("int32", 2))), "ranks differ: [1, 2]"),
        ((y, builder.input("b", tensor("int32", 5, 3))), "extents of axis 0 differ: 4 and 5"),
        ((y, builder.input("c", tensor("int8", 4, 3))), "dtypes differ: int32, int8"),
        ((), "there is nothing to join"),
    ):
        with pytest.raises(TypeRuleError) as caught:
            builder("concatenate", *wrong, axis=1)
        assert message in caught.value.message


@pytest.mark.parametrize(("axis", "sizes"), [(0, (1, 0, 4)), (-1, (3, 3)), (1, (7,))])
def test_split_at_sizes(axis: int, sizes: tuple[int, ...]) -> None:
    shape = [2, 2, 2]
    shape[axis] = sum(sizes)
    x, parts = ramp(*shape), len(sizes)
    wanted = np.split(x, np.cumsum(sizes)[:-1], axis)
    agree("Split", [x, ints(*sizes)], 13, wanted, axis=axis, outputs=parts)
    agree("Split", [x, ints(*sizes)], 18, wanted, axis=axis, outputs=parts)
    agree("Split", [x], 11, wanted, axis=axis, outputs=parts, split=sizes)


@pytest.mark.parametrize(("extent", "parts"), [(6, 3), (7, 3), (5, 5), (0, 2), (4, 1)])
def test_split_into_sections(extent: int, parts: int) -> None:
    x = ramp(2, extent)
    part = -(-extent // parts)
    wanted = [x[:, i * part : (i + 1) * part] for i in range(parts)]
    agree("Split", [x], 18, wanted, axis=1, outputs=parts, num_outputs=parts)
    if extent % parts == 0:
        agree("Split", [x], 13, wanted, axis=-1, outputs=parts)
        agree("Split", [x], 7, wanted, axis=1, outputs=parts)


def test_split_sizes_must_fill_the_axis_at_run_time() -> None:
    arrays = [ramp(5), ints(2, 2)]
    with pytest.raises(EvaluationError, match=r"sizes \[2, 2\] do not add up to the extent 5"):
        by_graft(one_node("Split", arrays, 13, outputs=2), arrays)


EXPANSIONS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 1), (3, 4)),
    ((3, 1), (2, 1, 6)),
    ((3, 4), (1,)),
    ((3, 4), (1, 1, 1)),
    ((1, 3, 1), (1, 4)),
    ((), (2, 0)),
    ((1,), ()),
    ((0, 1), (1, 3)),
    ((1, 2), (0, 2)),
]


@pytest.mark.parametrize(("before", "after"), EXPANSIONS)
def test_expand(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    x = ramp(*before)
    wanted = np.broadcast_to(x, np.broadcast_shapes(before, after))
    agree("Expand", [x, ints(*after)], 13, [wanted])
    agree("Expand", [x, ints(*after)], 8, [wanted])


@pytest.mark.parametrize(
    ("shape", "repeats"), [((2, 3), (3, 1)), ((2, 3), (0, 2)), ((), ()), ((2, 0), (2, 3))]
)
def test_tile(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    x = ramp(*shape)
    agree("Tile", [x, ints(*repeats)], 13, [np.tile(x, repeats)])
    agree("Tile", [x, ints(*repeats)], 7, [np.tile(x, repeats)])


ODD = [np.bool_, np.uint64, np.complex64, object, ml_dtypes.bfloat16, ml_dtypes.int4]


@pytest.mark.parametrize("dtype", ODD)
def test_movement_keeps_every_dtype(dtype: Any) -> None:
    x = ramp(2, 3).astype(np.int8)
    x = x.astype(str).astype(object) if dtype is object else x.astype(dtype)
    agree("Transpose", [x], 25, [x.T], shapes=["static"])
    agree("Reshape", [x, ints(3, 2)], 25, [x.reshape(3, 2)], shapes=["static"])
    agree("Concat", [x, x], 13, [np.concatenate([x, x], 1)], shapes=["static"], axis=1)
    agree("Tile", [x, ints(2, 1)], 13, [np.concatenate([x, x])], shapes=["static"])
    agree("Expand", [x, ints(2, 1, 1)], 13, [np.stack([x, x])], shapes=["static"])
    agree("Split", [x], 18, [x[:1], x[1:]], shapes=["static"], outputs=2, num_outputs=2)


def graph_of(nodes: list[onnx.NodeProto], opset: int = 21, **constants: Any) -> Graph:
    """Import nodes on x: float32[n, 3, 8]; the last node's results are the graph's."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 8])
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    weights = [onnx.numpy_helper.from_array(np.array(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "shapes", [x], outputs, weights)
    return import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    )


def last(graph: Graph) -> Node:
    return graph.nodes[-1]


BATCH = [
    helper.make_node("Shape", ["x"], ["dims"]),
    helper.make_node("Gather", ["dims", "zero"], ["batch"]),
    helper.make_node("Unsqueeze", ["batch", "front"], ["batch1"]),
]


def after_batch(*nodes: onnx.NodeProto, **constants: Any) -> Graph:
    return graph_of([*BATCH, *nodes], zero=0, front=[0], **constants)


def test_a_computed_shape_becomes_an_attribute() -> None:
    graph = after_batch(
        helper.make_node("Concat", ["batch1", "hole", "eight"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
        hole=[-1],
        eight=[4],
    )
    node = last(graph)
    assert len(node.inputs) == 1
    assert node.attrs.shape == (N, -1, 4)  # type: ignore[attr-defined]
    assert node.output.shape == (N, 6, 4)
    for batch in (0, 1, 5):
        x = ramp(batch, 3, 8)
        assert np.array_equal(evaluate(graph, [x])[0], x.reshape(batch, 6, 4))


def test_a_slice_between_computed_bounds_has_a_symbolic_extent() -> None:
    graph = after_batch(
        helper.make_node("Sub", ["batch1", "one"], ["end"]),
        helper.make_node("Slice", ["x", "front", "end"], ["y"]),
        one=[1],
    )
    assert len(last(graph).inputs) == 1
    assert str(last(graph).output.type) == "float32[max(n - 1, 0), 3, 8]"
    for batch in (0, 1, 4):
        assert evaluate(graph, [ramp(batch, 3, 8)])[0].shape == (max(batch - 1, 0), 3, 8)


def test_an_expansion_to_a_computed_shape_is_symbolic() -> None:
    graph = after_batch(
        helper.make_node("Concat", ["batch1", "ones"], ["shape"], axis=0),
        helper.make_node("Expand", ["column", "shape"], ["y"]),
        ones=[1, 2],
        column=np.ones((1, 7, 1), np.float32),
    )
    assert last(graph).op.name == "broadcast_to"
    assert last(graph).attrs.shape == (N, 7, 2)  # type: ignore[attr-defined]
    assert last(graph).output.shape == (N, 7, 2)


def test_a_range_over_a_computed_limit_is_symbolic() -> None:
    graph = after_batch(helper.make_node("Range", ["zero", "batch", "two"], ["y"]), two=2)
    assert last(graph).inputs == ()
    assert str(last(graph).output.type) == "int64[(n + 1)//2]"
    assert evaluate(graph, [ramp(5, 3, 8)])[0].tolist() == [0, 2, 4]


def test_a_constant_of_a_computed_shape_is_symbolic() -> None:
    shape = helper.make_node("Shape", ["x"], ["shape"], start=-3, end=-1)
    graph = graph_of([shape, helper.make_node("ConstantOfShape", ["shape"], ["y"])])
    assert last(graph).attrs.shape == (N, 3)  # type: ignore[attr-defined]
    assert last(graph).output.type == tensor("float32", N, 3)


def test_shape_arithmetic_survives_casts_and_products() -> None:
    graph = graph_of(
        [
            helper.make_node("Size", ["x"], ["size"]),
            helper.make_node("Cast", ["size"], ["short"], to=onnx.TensorProto.INT32),
            helper.make_node("Cast", ["short"], ["long"], to=onnx.TensorProto.INT64),
            helper.make_node("Reshape", ["long", "one"], ["shape"]),
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
        ],
        one=[1],
    )
    assert last(graph).attrs.shape == (24 * N,)  # type: ignore[attr-defined]


def test_an_extent_that_only_data_decide_stays_an_operand() -> None:
    graph = graph_of(
        [
            helper.make_node("NonZero", ["x"], ["found"]),
            helper.make_node("Shape", ["found"], ["dims"]),
            helper.make_node("Reshape", ["found", "order"], ["moved"]),
            helper.make_node("Expand", ["moved", "shape"], ["y"]),
        ],
        order=[-1, 3],
        shape=[1, 3],
    )
    x = np.zeros((2, 3, 8), np.float32)
    x[1, 2, 7] = 5
    assert evaluate(graph, [x])[0].tolist() == [[1, 2, 7]]
