"""Matrix products, Einstein sums and determinants, against ONNX Runtime and plain NumPy."""

from __future__ import annotations

from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import GraftError, ModelError, TypeRuleError, UnsupportedError
from graft.frontends.onnx.importer import import_model
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate, run_op
from graft.ir.graph import Graph
from graft.ir.op import Work
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

RANKED = ("static", "symbolic")
N, M = symbol("n"), symbol("m")
UNRANKED = TensorType(DType.FLOAT32, None)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    drawn = np.random.default_rng(sum(shape) + 5).normal(size=shape) * 3
    return np.asarray(drawn).astype(dtype)


def whole(low: int, high: int, *shape: int, dtype: Any) -> Any:
    return np.random.default_rng(3).integers(low, high, shape).astype(dtype)


def graph_of(name: str, *types: TensorType, **attrs: Any) -> Graph:
    builder = Builder()
    inputs = [builder.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    return builder.build(builder(name, *inputs, **attrs))


def type_of(name: str, *types: TensorType, **attrs: Any) -> TensorType:
    return graph_of(name, *types, **attrs).outputs[0].tensor


def work_of(name: str, *types: TensorType, **attrs: Any) -> Work:
    node = graph_of(name, *types, **attrs).nodes[0]
    return node.op.work(node.attrs, types, [node.output.type])


def op_names(model: Any) -> list[str]:
    return [node.op.name for node in import_model(model).nodes]


MATMUL_SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (2, 5, 4, 1)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 2)),
    ((2, 3, 0), (2, 0, 1)),
    ((0, 3, 4), (1, 4, 2)),
]


@pytest.mark.parametrize(("left", "right"), MATMUL_SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, ml_dtypes.bfloat16])
def test_matmul_follows_numpy(left: Any, right: Any, dtype: Any) -> None:
    a, b = numbers(*left, dtype=dtype), numbers(*right, dtype=dtype)
    wide = np.int64 if dtype is np.int32 else np.float64
    expected = np.matmul(a.astype(wide), b.astype(wide)).astype(dtype)
    agree("MatMul", [a, b], 13, [expected], RANKED)


@pytest.mark.parametrize("right", [(4, 5), (4,)])
def test_matmul_by_a_known_matrix_takes_any_rank(right: Any) -> None:
    b = numbers(*right)
    for left in [(3, 4), (2, 3, 4), (4,)]:
        a = numbers(*left)
        model = one_node("MatMul", [a, b], 9, "unranked", constants=True)
        np.testing.assert_allclose(by_graft(model, [a, b])[0], a @ b, rtol=1e-5, atol=1e-5)


def test_matmul_is_dense_or_batch_matmul() -> None:
    rows = numbers(3, 4)
    assert op_names(one_node("MatMul", [rows, numbers(4, 5)], 13)) == ["transpose", "nn.dense"]
    batch = one_node("MatMul", [numbers(2, 3, 4), numbers(2, 4, 5)], 13)
    assert op_names(batch) == ["nn.batch_matmul"]
    unknown = one_node("MatMul", [rows, rows], 13, "unranked")
    with pytest.raises(UnsupportedError, match="MatMul wants to know the rank of 'x1'"):
        import_model(unknown)


def test_gemm_of_a_linear_layer_is_dense_and_bias_add() -> None:
    graph = import_model(one_node("Gemm", [numbers(3, 4), numbers(5, 4), numbers(5)], 13, transB=1))
    assert [node.op.name for node in graph.nodes] == ["nn.dense", "nn.bias_add"]
    assert graph.nodes[1].attrs.axis == -1  # type: ignore[attr-defined]


@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5), (1, 1)])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"transA": 1, "transB": 1}, {"alpha": 0.25, "beta": -1.5}, {"beta": 0.0, "transA": 1}],
)
def test_gemm(bias: Any, attributes: dict[str, Any]) -> None:
    a = numbers(4, 3) if attributes.get("transA") else numbers(3, 4)
    b = numbers(5, 4) if attributes.get("transB") else numbers(4, 5)
    c = [] if bias is None else [numbers(*bias)]
    agree("Gemm", [a, b, *c], 11 if bias is None else 7, **attributes)


def test_gemm_without_rows_columns_or_depth() -> None:
    for rows, depth, columns in [(0, 4, 5), (3, 4, 0), (3, 0, 5)]:
        a, b, c = numbers(rows, depth), numbers(depth, columns), numbers(columns)
        agree("Gemm", [a, b, c], 13, [a @ b + c])


def test_gemm_of_integers_is_exact() -> None:
    a, b = whole(-9, 9, 3, 4, dtype=np.int64), whole(-9, 9, 4, 2, dtype=np.int64)
    c = np.array([2**60, -(2**60)])
    agree("Gemm", [a, b, c], 13, [3 * (a @ b) - 2 * c], alpha=3.0, beta=-2.0)
    with pytest.raises(UnsupportedError, match=r"alpha is 0\.5, which integers"):
        import_model(one_node("Gemm", [a, b], 13, alpha=0.5))


GEMM_MISTAKES = [
    ((3, 4), (4, 5), (2, 5), r"C is float32\[2, 5\], which does not broadcast to float32\[3, 5\]"),
    ((1, 4), (4, 5), (3, 5), "does not broadcast to"),
    ((3, 4), (4, 5), (1, 3, 5), "does not broadcast to"),
    ((2, 3, 4), (4, 5), (5,), "A has rank 3, not 2"),
    ((3, 4), (3, 5), (5,), "extents to sum over differ: 4 and 3"),
]


@pytest.mark.parametrize(("a", "b", "c", "message"), GEMM_MISTAKES)
def test_gemm_refuses(a: Any, b: Any, c: Any, message: str) -> None:
    model = one_node("Gemm", [numbers(*a), numbers(*b), numbers(*c)], 13)
    with pytest.raises((ModelError, TypeRuleError), match=message) as caught:
        import_model(model)
    assert "(Gemm)" in str(caught.value)


@given(st.integers(0, 3), st.integers(0, 2), st.randoms(use_true_random=False))
def test_batches_broadcast(rank_a: int, rank_b: int, random: Any) -> None:
    extents = [random.randint(0, 3) for _ in range(max(rank_a, rank_b))]
    batches = [
        [random.choice([1, e]) for e in extents[len(extents) - rank :]] for rank in (rank_a, rank_b)
    ]
    flags = random.random() < 0.5, random.random() < 0.5
    a = numbers(*batches[0], *((2, 3) if flags[0] else (3, 2)), dtype=np.float64)
    b = numbers(*batches[1], *((4, 2) if flags[1] else (2, 4)), dtype=np.float64)
    types = tensor("float64", *a.shape), tensor("float64", *b.shape)
    graph = graph_of("nn.batch_matmul", *types, transpose_a=flags[0], transpose_b=flags[1])
    left, right = ("ji" if flags[0] else "ij"), ("kj" if flags[1] else "jk")
    expected = np.einsum(f"...{left},...{right}->...ik", a, b)
    np.testing.assert_allclose(evaluate(graph, [a, b])[0], expected, atol=1e-9)


INTEGERS = [
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("int4", "uint4", "int2", "uint2"),
]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("magnitude", ["small", "huge"])
def test_integers_are_exact_modulo_their_range(name: str, magnitude: str) -> None:
    """Against Python's integers; the large ones do not fit into any float."""
    dtype = DType(name)
    low, high = (0, 1) if dtype.is_unsigned_integer else (-1, 1)
    if magnitude == "huge":
        high = (1 << dtype.bits - dtype.is_signed_integer) - 1
        low = -high - 1 if dtype.is_signed_integer else high // 2
    random = Random(5)
    exact = [
        np.array([[random.randint(low, high) for _ in range(5)] for _ in range(rows)], object)
        for rows in (7, 3)
    ]
    data, weight = (array.astype(dtype.numpy) for array in exact)
    found = run_op(get_op("nn.dense"), Attrs(), [data, weight])[0]
    assert found.dtype == dtype.numpy
    modulus = 1 << dtype.bits
    if dtype.bits < 8:  # Python's integers come from NumPy's own types only
        found = found.astype(np.int8)
    assert np.all(found.astype(object) % modulus == exact[0] @ exact[1].T % modulus)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_floats_are_rounded_once(dtype: Any) -> None:
    """Sums of many small numbers, which a narrow accumulator would lose."""
    data, weight = np.full((1, 4096), 0.0625, dtype), np.ones((3, 4096), dtype)
    found = run_op(get_op("nn.dense"), Attrs(), [data, weight])[0]
    assert found.dtype == dtype
    assert np.all(found.astype(np.float32) == 256)


def test_nan_and_infinity_go_through() -> None:
    a = np.array([[np.inf, 1], [np.nan, 0], [-np.inf, np.inf]], np.float32)
    agree("MatMul", [a, np.array([[1, 0], [1, 2]], np.float32)], 13, shapes=RANKED)


DENSE_TYPES = [
    (tensor("float32", N, 7), tensor("float32", 5, 7), tensor("float32", N, 5)),
    (tensor("float32", N, N * 2), tensor("float32", M, N * 2), tensor("float32", N, M)),
    (UNRANKED, tensor("float32", 5, 7), UNRANKED),
    (tensor("float16", 7), tensor("float16", 5, 7), tensor("float16", 5)),
]


@pytest.mark.parametrize(("data", "weight", "result"), DENSE_TYPES)
def test_dense_type(data: TensorType, weight: TensorType, result: TensorType) -> None:
    assert type_of("nn.dense", data, weight) == result


def test_types_and_work_with_symbols() -> None:
    a, b = tensor("float32", N, 1, 3, 4), tensor("float32", 5, M, 4)
    found = type_of("nn.batch_matmul", a, b, transpose_b=True)
    assert found == tensor("float32", N, 5, 3, M)
    work = work_of("nn.batch_matmul", a, b, transpose_b=True)
    assert work.macs == N * 5 * 3 * M * 4
    assert work.bytes == 4 * (N * 12 + M * 20 + N * M * 15)
    dense = work_of("nn.dense", tensor("int8", N, 3, 7), tensor("int8", 5, 7))
    assert (dense.macs, dense.bytes) == (N * 105, N * 21 + 35 + N * 15)
    unknown = graph_of("nn.dense", tensor("float32", N, 4), UNRANKED)
    assert unknown.outputs[0].tensor.rank == 2


MISTAKES: list[tuple[str, tuple[TensorType, ...], dict[str, Any], str]] = [
    (
        "nn.dense",
        (tensor("float32", 3, 4), tensor("float32", 5, 3)),
        {},
        "sum over differ: 4 and 3",
    ),
    ("nn.dense", (tensor("float32"), tensor("float32", 5, 3)), {}, "no axis to sum over"),
    ("nn.dense", (tensor("float32", 3), tensor("float32", 5, 1, 3)), {}, "rank 3, not 2"),
    ("nn.dense", (tensor("float32", 3), tensor("float64", 5, 3)), {}, "dtypes differ"),
    ("nn.dense", (tensor("bool", 3), tensor("bool", 5, 3)), {}, "wants numeric operands, not bool"),
    ("nn.batch_matmul", (tensor("float32", 3), tensor("float32", 3, 1)), {}, "rank 1, less than 2"),
    (
        "nn.batch_matmul",
        (tensor("float32", 2, N, 4), tensor("float32", 3, 4, 1)),
        {},
        "extents 2 and 3 do not broadcast",
    ),
    (
        "nn.batch_matmul",
        (tensor("float32", N, 4), tensor("float32", N + 1, 4)),
        {"transpose_a": True},
        r"sum over differ: n and n \+ 1",
    ),
    ("det", (tensor("float32", 2, 3),), {}, "square matrices differ: 2 and 3"),
    ("det", (tensor("float32", 2),), {}, "rank 1, less than 2"),
    ("det", (tensor("int32", 2, 2),), {}, "floating-point"),
    ("einsum", (tensor("float32", 2, 3),), {"equation": "i->i"}, "'i' does not fit rank 2"),
    ("einsum", (tensor("float32", 2),), {"equation": "...ij->i..."}, "'...ij' does not fit rank 1"),
    ("einsum", (tensor("float32", 2),), {"equation": "i,i->"}, "wants 2 operands, not 1"),
    ("einsum", (tensor("float32", 2),), {"equation": "i->j"}, "result index that no operand"),
    ("einsum", (tensor("float32", 2),), {"equation": "i->ii"}, "repeats an index"),
    ("einsum", (tensor("float32", 2),), {"equation": "...i->i"}, "ellipsis in its operands but"),
    ("einsum", (tensor("float32", 2),), {"equation": "1->1"}, "'1' in the equation"),
    ("einsum", (tensor("float32", 2),), {"equation": "i->i->i"}, "'i->i' in the equation"),
    (
        "einsum",
        (tensor("float32", 2, 3), tensor("float32", 4, 5)),
        {"equation": "ij,jk"},
        "extents 3 and 4 do not broadcast",
    ),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), MISTAKES)
def test_contradictions_are_refused(name: str, types: Any, attrs: Any, message: str) -> None:
    with pytest.raises(GraftError, match=message.replace("...", r"\.\.\.")):
        type_of(name, *types, **attrs)


# equation, operand shapes
EINSUMS = [
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("i,i", [(4,), (4,)]),
    ("bij, bjk -> bik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 2)]),
    ("...ij,jk", [(2, 3, 4), (4, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("bn,anm,bm->ba", [(2, 3), (4, 3, 5), (2, 5)]),
    ("->", [()]),
    (",->", [(), ()]),
    ("Ba,aB", [(2, 3), (3, 2)]),
    ("bA,Ac", [(2, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
    ("ij,kj->ikj", [(0, 4), (3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EINSUMS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16])
def test_einsum(equation: str, shapes: list[tuple[int, ...]], dtype: Any) -> None:
    data = [numbers(*shape, dtype=dtype) for shape in shapes]
    wide = [array.astype(np.float64) for array in data]
    expected = np.asarray(np.einsum(equation, *wide)).astype(dtype)
    agree("Einsum", data, 28, [expected], equation=equation)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "...j,...k->...jk", "ij,ij->ij"])
def test_einsum_broadcasts_extents_of_one(equation: str) -> None:
    a, b = numbers(2, 1), numbers(2, 3)
    if equation.startswith("ij,jk"):
        b = numbers(3, 4)
    agree("Einsum", [a, b], 12, [np.einsum(equation, a, b, optimize=False)], equation=equation)


def test_einsum_types_and_work() -> None:
    a, b = tensor("float32", N, 3, 4), tensor("float32", 4, M)
    assert type_of("einsum", a, b, equation="...j,jk") == tensor("float32", N, 3, M)
    assert work_of("einsum", a, b, equation="...j,jk").macs == N * 3 * 4 * M
    single = work_of("einsum", a, equation="bij->b")
    assert (single.macs, single.flops) == (0, N * 12)
    assert type_of("einsum", UNRANKED, b, equation="...j,jk").shape is None
    assert type_of("einsum", UNRANKED, b, equation="ij,jk").rank == 2


DETERMINANTS = [(3, 3), (2, 4, 4), (2, 0, 3, 3), (0, 0), (5, 0, 0), (1, 1)]


@pytest.mark.parametrize("shape", DETERMINANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_det(shape: tuple[int, ...], dtype: Any) -> None:
    x = numbers(*shape, dtype=dtype)
    agree("Det", [x], 22, [_determinant(x.astype(np.float64)).astype(dtype)])


def _determinant(x: Any) -> Any:
    """By Laplace's expansion of the first row."""
    if x.shape[-1] == 0:
        return np.ones(x.shape[:-2])
    total = np.zeros(x.shape[:-2])
    for column in range(x.shape[-1]):
        minor = np.delete(x[..., 1:, :], column, axis=-1)
        total = total + (-1) ** column * x[..., 0, column] * _determinant(minor)
    return total


def test_det_type_and_work() -> None:
    assert type_of("det", tensor("float32", N, 3, 3)) == tensor("float32", N)
    assert work_of("det", tensor("float32", 5, 6, 6)).flops == 5 * 6**3 * 2 // 3
    assert type_of("det", UNRANKED).shape is None
