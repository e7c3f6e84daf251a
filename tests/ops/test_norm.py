"""Normalisations, against ONNX Runtime and plain NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import (
    EvaluationError,
    GraftError,
    ModelError,
    TypeRuleError,
    UnsupportedError,
)
from graft.frontends.onnx.importer import import_model
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import run_op
from graft.ir.op import Work
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

RANKED = ("static", "symbolic")
N, C = symbol("n"), symbol("c")
F32 = np.float32
NARROW = [np.float16, ml_dtypes.bfloat16]


def numbers(*shape: int, dtype: Any = F32, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).normal(size=shape) * 2 + 1
    return np.asarray(drawn).astype(dtype)


def positive(*shape: int, dtype: Any = F32) -> Any:
    return np.abs(numbers(*shape, seed=9)).astype(dtype)


def run(name: str, *operands: Any, **attrs: Any) -> Any:
    op = get_op(name)
    with np.errstate(all="ignore"):
        return run_op(op, make_attrs(op.attrs, attrs), operands)[0]


def made(name: str, *types: TensorType, **attrs: Any) -> TensorType:
    builder = Builder()
    inputs = [builder.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    return builder(name, *inputs, **attrs).tensor


def standardized(x: Any, axes: tuple[int, ...], epsilon: float = 1e-5) -> Any:
    """By NumPy's own mean and variance, in float64."""
    wide = x.astype(np.float64)
    if wide.size == 0:
        return wide
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    return (wide - mean) / np.sqrt(variance + epsilon)


def per_channel(parameter: Any, rank: int) -> Any:
    return parameter.astype(np.float64).reshape(-1, *[1] * (rank - 2))


BATCH_SHAPES = [(2, 3, 4, 5), (2, 3), (4, 3, 7), (1, 3, 2, 2, 2), (0, 3, 4), (2, 3, 0)]


@pytest.mark.parametrize("shape", BATCH_SHAPES)
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_norm_in_inference(shape: Any, opset: int) -> None:
    x, parameters = numbers(*shape), [numbers(3, seed=i) for i in range(1, 4)]
    agree("BatchNormalization", [x, *parameters, positive(3)], opset, epsilon=1e-2)


@pytest.mark.parametrize("dtype", [*NARROW, np.float64])
def test_batch_norm_of_mixed_types(dtype: Any) -> None:
    x, mean, variance = numbers(2, 3, 5, dtype=dtype), numbers(3), positive(3)
    scale, bias = numbers(3, dtype=np.float16, seed=1), numbers(3, dtype=np.float16, seed=2)
    wide = [per_channel(value, 3) for value in (scale, bias, mean, variance)]
    expected = (x.astype(np.float64) - wide[2]) / np.sqrt(wide[3] + 1e-5) * wide[0] + wide[1]
    operands = [x, scale, bias, mean, variance]
    agree("BatchNormalization", operands, 15, [expected.astype(dtype)])


def test_batch_norm_of_one_axis_has_one_channel() -> None:
    x = numbers(5)
    one = [np.array([v], F32) for v in (2, 3, 0.5, 4)]
    expected = (x - 0.5) / np.sqrt(np.float32(4 + 1e-5)) * 2 + 3
    agree("BatchNormalization", [x, *one], 15, [expected], RANKED)
    results = [standardized(x, (0,)) * 2 + 3, 0.45 + 0.1 * x.mean(), 3.6 + 0.1 * x.var()]
    trained = [np.atleast_1d(result).astype(F32) for result in results]
    more: dict[str, Any] = {"training_mode": 1, "outputs": 3}
    agree("BatchNormalization", [x, *one], 15, trained, RANKED, **more)


@pytest.mark.parametrize("dtype", [F32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 3), (3, 3, 2, 4)])
def test_batch_norm_in_training(shape: Any, dtype: Any) -> None:
    x = numbers(*shape, dtype=dtype)
    scale, bias = numbers(3, dtype=dtype, seed=1), numbers(3, dtype=dtype, seed=2)
    mean, variance = numbers(3, seed=3), positive(3)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = x.astype(np.float64)
    current = wide.mean(axes), wide.var(axes)
    spread = per_channel(scale, x.ndim), per_channel(bias, x.ndim)
    expected = [
        (standardized(x, axes, 1e-3) * spread[0] + spread[1]).astype(dtype),
        (mean * 0.7 + current[0] * 0.3).astype(F32),
        (variance * 0.7 + current[1] * 0.3).astype(F32),
    ]
    operands = [x, scale, bias, mean, variance]
    options: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.7, "outputs": 3}
    agree("BatchNormalization", operands, 15, expected, RANKED, training_mode=1, **options)
    if dtype is F32:  # before opset 14, asking for the statistics means training
        saved = [value.astype(F32) for value in current]
        options["outputs"] = 5
        agree("BatchNormalization", operands, 9, [*expected, *saved], RANKED, **options)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [F32, np.float16])
def test_batch_norm_per_element(training: bool, dtype: Any) -> None:
    x = numbers(6, 3, 2, dtype=dtype)
    given = [numbers(3, 2, seed=i).astype(dtype) for i in range(1, 4)] + [
        positive(3, 2, dtype=dtype)
    ]
    scale, bias, mean, variance = (value.astype(np.float64) for value in given)
    wide = x.astype(np.float64)
    used = (wide.mean(0), wide.var(0)) if training else (mean, variance)
    y = (wide - used[0]) / np.sqrt(used[1] + 1e-5) * scale + bias
    expected = [y, mean * 0.9 + used[0] * 0.1, variance * 0.9 + used[1] * 0.1, *used]
    count = 5 if training else 1
    results = [value.astype(dtype) for value in expected[:count]]
    agree("BatchNormalization", [x, *given], 7, results, RANKED, spatial=0, outputs=count)


def test_batch_norm_refuses_statistics_without_training() -> None:
    operands = [numbers(2, 3), *[numbers(3)] * 4]
    model = one_node("BatchNormalization", operands, 15, outputs=3)
    with pytest.raises(ModelError, match="statistics are wanted, but training_mode is 0"):
        import_model(model)
    model = one_node("BatchNormalization", operands, 15, "unranked", outputs=3, training_mode=1)
    with pytest.raises(UnsupportedError, match="wants to know the rank"):
        import_model(model)


LAYER_CASES = [
    *itertools.product([(2, 3, 4), (5,), (1, 7)], [-1, 0]),
    ((2, 3, 4), 1),
    ((2, 3, 4), -2),
    ((0, 4), -1),
    ((3, 0), -1),
    ((3, 1), 1),
]


@pytest.mark.parametrize(("shape", "axis"), LAYER_CASES)
def test_layer_norm(shape: Any, axis: int) -> None:
    x, last = numbers(*shape), shape[axis:]
    scale, bias = numbers(*last, seed=1), numbers(*last, seed=2)
    axes = tuple(range(len(shape)))[axis:]
    normal = standardized(x, axes, 1e-3)
    options: dict[str, Any] = {"axis": axis, "epsilon": 1e-3}
    agree("LayerNormalization", [x, scale], 17, [(normal * scale).astype(F32)], **options)
    expected = (normal * scale + bias).astype(F32)
    agree("LayerNormalization", [x, scale, bias], 17, [expected], **options)
    wide = x.astype(np.float64)
    if x.size:
        mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
        statistics = [mean.astype(F32), (1 / np.sqrt(variance + 1e-3)).astype(F32)]
        results = [expected, *statistics]
        agree("LayerNormalization", [x, scale, bias], 17, results, RANKED, outputs=3, **options)


@pytest.mark.parametrize("parameter", [(), (1,), (4,), (3, 1), (3, 4), (1, 1, 4), (2, 3, 4)])
def test_parameters_broadcast_to_the_data(parameter: Any) -> None:
    x, scale, bias = numbers(2, 3, 4), numbers(*parameter, seed=1), numbers(*parameter, seed=2)
    expected = standardized(x, (2,)) * scale + bias
    agree("LayerNormalization", [x, scale, bias], 17, [expected.astype(F32)])
    squares = np.mean(x.astype(np.float64) ** 2, 2, keepdims=True)
    rms = (x / np.sqrt(squares + 1e-5) * scale).astype(F32)
    agree("RMSNormalization", [x, scale], 23, [rms])


@pytest.mark.parametrize("dtype", [*NARROW, np.float64])
@pytest.mark.parametrize("stash", [TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_stash_type_gives_the_statistics_their_type(dtype: Any, stash: int) -> None:
    x, scale = numbers(3, 8, dtype=dtype) + np.array(100, dtype), numbers(8, dtype=dtype)
    stats = {1: F32, 16: ml_dtypes.bfloat16, 11: np.float64}[stash]
    wide = x.astype(np.float64)
    mean, variance = wide.mean(1, keepdims=True), wide.var(1, keepdims=True)
    normal = standardized(x, (1,)) * scale.astype(np.float64)
    inverse = 1 / np.sqrt(variance + 1e-5)
    expected = [normal.astype(dtype), mean.astype(stats), inverse.astype(stats)]
    options: dict[str, Any] = {"stash_type": stash, "outputs": 3}
    agree("LayerNormalization", [x, scale], 17, expected, RANKED, **options)
    model = one_node("LayerNormalization", [x, scale], 17, stash_type=TensorProto.INT8)
    with pytest.raises(ModelError, match="stash_type is int8, not a floating-point type"):
        import_model(model)


def test_layer_norm_is_one_node() -> None:
    model = one_node("LayerNormalization", [numbers(2, 3), numbers(3), numbers(3)], 17)
    assert [node.op.name for node in import_model(model).nodes] == ["nn.layer_norm"]


@pytest.mark.parametrize(("shape", "axis"), LAYER_CASES)
def test_rms_norm(shape: Any, axis: int) -> None:
    x, scale = numbers(*shape), numbers(*shape[axis:], seed=1)
    axes = tuple(range(len(shape)))[axis:]
    count = max(1, int(np.prod([shape[a] for a in axes])))
    squares = np.sum(x.astype(np.float64) ** 2, axes, keepdims=True) / count
    expected = (x / np.sqrt(squares + 1e-4) * scale).astype(F32)
    agree("RMSNormalization", [x, scale], 23, [expected], axis=axis, epsilon=1e-4)


def test_rms_norm_has_the_type_of_the_scale() -> None:
    x, scale = numbers(3, 4, dtype=np.float16), numbers(4, seed=1)
    squares = np.mean(x.astype(np.float64) ** 2, -1, keepdims=True)
    normal = (x / np.sqrt(squares + 1e-5)).astype(np.float16)
    agree("RMSNormalization", [x, scale], 23, [normal.astype(F32) * scale], RANKED)
    long = TensorProto.DOUBLE
    agree("RMSNormalization", [x, scale], 23, [normal.astype(F32) * scale], RANKED, stash_type=long)


INSTANCE_SHAPES = [(2, 3, 4, 5), (1, 3, 7), (2, 3), (0, 3, 4), (2, 3, 0), (2, 3, 1, 1)]


@pytest.mark.parametrize("shape", INSTANCE_SHAPES)
@pytest.mark.parametrize("dtype", [F32, *NARROW])
def test_instance_norm(shape: Any, dtype: Any) -> None:
    x, scale = numbers(*shape, dtype=dtype), numbers(3, dtype=dtype, seed=1)
    bias = numbers(3, dtype=dtype, seed=2)
    normal = standardized(x, tuple(range(2, len(shape))))
    expected = normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
    agree("InstanceNormalization", [x, scale, bias], 22, [expected.astype(dtype)])


def test_channels_may_be_on_another_axis() -> None:
    x, scale, bias = numbers(2, 5, 6), numbers(6, seed=1), numbers(6, seed=2)
    moved = x.transpose(0, 2, 1)
    for name, attrs in [("nn.instance_norm", {}), ("nn.group_norm", {"num_groups": 3})]:
        front = run(name, moved, scale, bias, **attrs)
        back = run(name, x, scale, bias, axis=-1, **attrs)
        np.testing.assert_allclose(back, front.transpose(0, 2, 1), rtol=1e-6)
    statistics = numbers(6), positive(6)
    front = run("nn.batch_norm", moved, scale, bias, *statistics)
    back = run("nn.batch_norm", x, scale, bias, *statistics, axis=-1)
    np.testing.assert_array_equal(back, front.transpose(0, 2, 1))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (1, 6), (0, 6, 2), (2, 6, 0)])
@pytest.mark.parametrize("opset", [18, 21])
def test_group_norm(groups: int, shape: Any, opset: int) -> None:
    """Until opset 21, scale and bias were one per group."""
    x, count = numbers(*shape), groups if opset == 18 else 6
    scale, bias = numbers(count, seed=1), numbers(count, seed=2)
    grouped = x.reshape(shape[0], groups, 6 // groups, *shape[2:])
    normal = standardized(grouped, tuple(range(2, grouped.ndim))).reshape(shape)
    spread = [per_channel(np.repeat(v, 6 // count), x.ndim) for v in (scale, bias)]
    expected = (normal * spread[0] + spread[1]).astype(F32)
    agree("GroupNormalization", [x, scale, bias], opset, [expected], num_groups=groups)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 1 << 62])
@pytest.mark.parametrize("shape", [(2, 5, 3, 2), (1, 1, 2, 2), (2, 0, 3, 3), (3, 4)])
def test_lrn(size: int, shape: Any) -> None:
    x = numbers(*shape)
    factors = {"alpha": 0.3, "beta": 0.6, "bias": 1.5}
    sums = np.zeros(shape)
    for channel in range(shape[1]):
        first, last = channel - (size - 1) // 2, channel + size // 2
        sums[:, channel] = np.sum(x[:, max(first, 0) : last + 1].astype(np.float64) ** 2, 1)
    expected = (x / (1.5 + 0.3 / size * sums) ** 0.6).astype(F32)
    agree("LRN", [x], 13, [expected], size=size, **factors)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [3, 5])
def test_lrn_as_onnxruntime(size: int) -> None:
    agree("LRN", [numbers(2, 7, 3, 3)], 13, size=size)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    x = numbers(3, 4, 2)
    x[:, 1] = 0
    x[1] = 0
    agree("LpNormalization", [x], 1, p=p, axis=axis)
    agree("LpNormalization", [x[:, :0]], 1, [x[:, :0]], p=p, axis=axis)


@pytest.mark.parametrize("dtype", NARROW)
def test_lp_normalization_does_not_overflow(dtype: Any) -> None:
    x = np.array([300, 400, 0], dtype)
    agree("LpNormalization", [x], 22, [np.array([0.6, 0.8, 0], dtype)])


@pytest.mark.parametrize("axes", [None, [0], [-1, 1], [0, 1, 2, 3]])
@pytest.mark.parametrize("dtype", [F32, np.float16])
def test_mean_variance_normalization(axes: Any, dtype: Any) -> None:
    x = numbers(2, 3, 4, 5, dtype=dtype)
    chosen = tuple(axes or (0, 2, 3))
    expected = standardized(x, chosen, 1e-12).astype(dtype)
    given = {} if axes is None else {"axes": axes}
    agree("MeanVarianceNormalization", [x], 13, [expected], RANKED, **given)
    flat = np.full((2, 3, 4, 5), 2.5, dtype)
    agree("MeanVarianceNormalization", [flat], 9, [flat * 0], RANKED, **given)


def test_nan_and_infinity_stay_in_their_row() -> None:
    x = np.array([[1, 2, 3], [1, np.nan, 3], [np.inf, 0, 1]], F32)
    ones = np.ones(3, F32)
    for name in ("nn.layer_norm", "nn.rms_norm"):
        found = run(name, x, ones)
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1]).all()
    assert found[2, 1:].tolist() == [0, 0]
    assert np.isnan(run("nn.lp_normalize", x)[1]).all()
    statistics = np.zeros(3, F32), np.array([1, 0, np.inf], F32)
    scaled = run("nn.batch_norm", x, ones, ones, *statistics, epsilon=0.0)
    assert np.isnan(scaled[1, 1])
    assert scaled[0].tolist() == [2, np.inf, 1]


def test_large_means_do_not_spoil_small_variances() -> None:
    x = np.array([[1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3]], F32)
    found = run("nn.layer_norm", x)
    np.testing.assert_allclose(found, standardized(x, (1,)), rtol=1e-6)


def test_types_with_symbols_and_unknown_rank() -> None:
    data, channels = tensor("float16", N, C, 7), tensor("float16", C)
    assert made("nn.instance_norm", data, channels, channels) == data
    assert made("nn.group_norm", data, channels, channels, num_groups=4) == data
    assert made("nn.batch_norm", data, *[tensor("float32", C)] * 4) == data
    assert made("nn.layer_norm", data, tensor("float16", C, 1), tensor("float16", 7)) == data
    unranked = TensorType(DType.FLOAT16, None)
    assert made("nn.layer_norm", unranked, channels, axis=-9) == unranked
    assert made("nn.lrn", unranked, size=3) == unranked
    assert made("nn.batch_norm", unranked, *[tensor("float32", C)] * 4) == unranked


def test_parameters_tell_how_many_channels_there_are() -> None:
    """What follows then knows it, and a contradiction shows when the graph is made."""
    data, known = tensor("float32", N, C, 7), tensor("float32", N, 6, 7)
    six = tensor("float32", 6)
    assert made("nn.batch_norm", data, *[six] * 4) == known
    assert made("nn.batch_norm", data, six, *[tensor("float32", C)] * 3) == known
    assert made("nn.instance_norm", data, six, six) == known
    assert made("nn.group_norm", data, six, six, num_groups=3) == known
    assert made("nn.bias_add", data, six) == known
    assert made("nn.bias_add", data, tensor("float32", N), axis=0) == data
    with pytest.raises(TypeRuleError, match="6 channels do not make 4 equal groups"):
        made("nn.group_norm", data, six, six, num_groups=4)


def test_work() -> None:
    types = (tensor("float32", N, 6),)
    op = get_op("nn.lrn")
    work = op.work(make_attrs(op.attrs, {"size": 5}), types, types)
    assert work == Work(0, N * 6 * 9, N * 6 * 4 * 2)
    normal = get_op("nn.layer_norm").work(None, (*types, tensor("float32", 6)), types)
    assert normal.flops == N * 48
    assert normal.bytes == N * 48 + 24


F = "float32"
REFUSALS: list[tuple[str, tuple[TensorType, ...], dict[str, Any], str]] = [
    ("nn.batch_norm", (tensor(F, 2, 3), *[tensor(F, 4)] * 4), {}, "and gamma differ: 3 and 4"),
    ("nn.batch_norm", (tensor(F, 2, 3), *[tensor(F, 3, 1)] * 4), {}, "gamma has rank 2, not 1"),
    ("nn.batch_norm", (tensor(F, 3), *[tensor(F, 3)] * 4), {}, "axis 1 is out of range for rank 1"),
    ("nn.batch_norm", (tensor("int32", 2, 3), *[tensor(F, 3)] * 4), {}, "floating-point"),
    ("nn.layer_norm", (tensor(F, 2, 3), tensor(F, 2)), {}, "does not broadcast to"),
    ("nn.layer_norm", (tensor(F, 2, 1), tensor(F, 3)), {}, "does not broadcast to"),
    ("nn.layer_norm", (tensor(F, 2), tensor(F, 1, 2)), {}, "gamma is .* does not broadcast to"),
    ("nn.layer_norm", (tensor(F, 2), tensor("float16", 2)), {}, "dtypes differ"),
    ("nn.layer_norm", (tensor(F),), {}, "axis -1 is out of range for rank 0"),
    ("nn.rms_norm", (tensor(F, 2),), {"axis": 1}, "axis 1 is out of range for rank 1"),
    ("nn.instance_norm", (tensor(F, 3), *[tensor(F, 3)] * 2), {"axis": 0}, "less than 2"),
    ("nn.instance_norm", (tensor(F, 3, 4), *[tensor(F, 3)] * 2), {"axis": -2}, "axis 0 is that of"),
    (
        "nn.group_norm",
        (tensor(F, 2, 5), *[tensor(F, 5)] * 2),
        {"num_groups": 2},
        "5 channels do not",
    ),
    ("nn.group_norm", (tensor(F, 2, 5), *[tensor(F, 5)] * 2), {"num_groups": 0}, "num_groups is 0"),
    ("nn.lrn", (tensor(F, 2, 3),), {"size": 0}, "size is 0"),
    ("nn.lrn", (tensor(F, 2),), {"size": 1}, "axis 1 is out of range"),
    ("nn.lp_normalize", (tensor(F, 2),), {"p": 3}, "p is 3, neither 1 nor 2"),
    ("nn.lp_normalize", (tensor(F, 2),), {"axis": 1}, "axis 1 is out of range"),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), REFUSALS)
def test_contradictions_are_refused(name: str, types: Any, attrs: Any, message: str) -> None:
    with pytest.raises(GraftError, match=message):
        made(name, *types, **attrs)


def test_contradictions_only_data_show_are_refused() -> None:
    x, three = numbers(2, 5), numbers(3)
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("LayerNormalization", [x, three], {}),
        ("InstanceNormalization", [x, three, three], {}),
        ("GroupNormalization", [x, numbers(5), numbers(5)], {"num_groups": 2}),
    ]
    for op_type, operands, attributes in cases:
        model = one_node(op_type, operands, 22, "symbolic", **attributes)
        with pytest.raises(EvaluationError):
            by_graft(model, operands)


def test_a_default_is_the_float_that_it_would_be_if_it_were_given() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4))
    parts = [rng.uniform(0.01, 0.02, 3) for _ in range(4)]
    arrays = [x, *parts]
    implicit = by_graft(one_node("BatchNormalization", arrays, 15), arrays)
    given = by_graft(one_node("BatchNormalization", arrays, 15, epsilon=1e-5), arrays)
    np.testing.assert_array_equal(implicit[0], given[0])
