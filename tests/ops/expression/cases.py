"""Operators on small, awkward operands: what every way to run an expression is tested with.

A case is an operator, its operands as specifications (dtype and shape) and its attributes. `graph`
makes the one-node graph of a case and `arrays` numbers for its inputs.
"""

from __future__ import annotations

import numpy as np
from tests.ops.expression.signals import SIGNALS
from tests.ops.expression.specs import (
    FLOATS,
    INTEGERS,
    SIGNED,
    Case,
    bf16,
    case,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    truth,
    u8,
)

from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType


def graph(one: Case) -> Graph:
    """The case as a graph whose inputs are its operands."""
    builder = Builder()
    values = [
        None if spec is None else builder.input(f"x{n}", TensorType(DType(spec[0]), spec[1]))
        for n, spec in enumerate(one.operands)
    ]
    return builder.build(*builder.call(one.op, *values, **one.attrs))


def arrays(one: Case, seed: int = 0) -> list[Array]:
    """Numbers for the operands, special ones among them where they are floats."""
    generator = np.random.default_rng([seed, len(str(one))])
    specs = [spec for spec in one.operands if spec is not None]
    return [_numbers(generator, one, DType(dtype), shape) for dtype, shape in specs]


def _numbers(
    generator: np.random.Generator, one: Case, dtype: DType, shape: tuple[int, ...]
) -> Array:
    if dtype is DType.BOOL:
        return generator.random(shape) < 0.5
    if dtype.is_integer:
        low = max(0, int(one.low)) if dtype.is_unsigned_integer else int(one.low)
        return generator.integers(low, max(int(one.high), low) + 1, shape).astype(dtype.numpy)
    return generator.uniform(one.low, one.high, shape).astype(dtype.numpy)


def _pointwise() -> list[Case]:
    found: list[Case] = []
    unary = ("abs", "negative", "sign", "nn.relu")
    for name in unary:
        found += [case(name, (dtype, (3, 7))) for dtype in (*FLOATS, "int8", "int64", "uint16")]
    functions = ("ceil", "floor", "round", "exp", "erf", "sigmoid", "sin", "cos", "tan", "tanh")
    functions += ("atan", "sinh", "cosh", "asinh", "nn.gelu", "nn.leaky_relu", "isnan", "isinf")
    for name in functions:
        found += [case(name, (dtype, (23,))) for dtype in FLOATS]
    for name in ("sqrt", "log"):
        found += [case(name, (dtype, (23,)), low=0.1) for dtype in FLOATS]
    for name in ("asin", "acos", "atanh"):
        found += [case(name, (dtype, (23,)), low=-0.99, high=0.99) for dtype in FLOATS]
    found += [case("acosh", (dtype, (23,)), low=1.0, high=9.0) for dtype in FLOATS]
    for name in ("add", "subtract", "multiply", "maximum", "minimum"):
        found += [case(name, (d, (2, 1, 5)), (d, (3, 1))) for d in (*FLOATS, *INTEGERS)]
    for name in ("divide", "mod", "floor_mod"):
        found += [case(name, (d, (3, 7)), (d, (3, 7)), low=1, high=99) for d in INTEGERS]
        found += [case(name, (d, (3, 7)), (d, (7,))) for d in FLOATS]
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        found += [case(name, (d, (3, 7)), (d, (3, 1))) for d in ("float16", "float64", *INTEGERS)]
    for name in ("logical_and", "logical_or", "logical_xor", "equal"):
        found.append(case(name, truth(3, 1, 5), truth(2, 1)))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        found += [case(name, (d, (3, 7)), (d, (7,)), low=-99, high=99) for d in INTEGERS]
    for name in ("left_shift", "right_shift"):
        found += [case(name, (d, (3, 7)), (d, (7,)), low=0, high=9) for d in INTEGERS]
    found += [case("bitwise_not", (d, (3, 7))) for d in INTEGERS]
    found.append(case("logical_not", truth(9)))
    found += [
        case("where", truth(3, 1), (d, (3, 5)), (d, (5,))) for d in ("float16", "int8", "bool")
    ]
    return found + _mixed()


def _mixed() -> list[Case]:
    found = [case("nn.prelu", f16(2, 3, 5), f16(3, 1)), case("nn.prelu", i32(2, 3), i32(3))]
    for source in ("float16", "float32", "float64", "int8", "uint16", "int64", "bool"):
        for target in ("bfloat16", "float32", "float64", "int16", "uint8", "int64", "bool"):
            low = 0.0 if target == "uint8" else -4.0
            found.append(case("cast", (source, (3, 5)), dtype=DType(target), low=low))
    found += [
        case("power", (a, (3, 5)), (b, (5,)), low=0.1, high=3.0)
        for a, b in (
            ("float32", "float32"),
            ("float16", "float16"),
            ("float32", "int64"),
            ("float64", "int8"),
            ("int32", "float32"),
            ("int64", "int64"),
            ("int8", "int32"),
            ("uint64", "int16"),
        )
    ]
    found.append(case("power", i64(40), i64(40), low=-4, high=70))
    found += [
        case("clip", f16(3, 5), a_min=-1.5, a_max=2.1),
        case("clip", i8(3, 5), a_min=-2.7),
        case("clip", f32(3, 5), f32(), f32()),
        case("clip", i32(7), None, i32(1)),
        case("nn.bias_add", f16(2, 3, 5), f16(3)),
        case("nn.bias_add", i64(2, 3, 5), i64(5), axis=-1),
        case("nn.gelu", f64(3, 5), approximate=True),
        case("nn.batch_norm", f32(2, 3, 5), *[f32(3)] * 4, low=0.1),
        case("nn.batch_norm", bf16(2, 3, 5), *[f32(3)] * 4, low=0.1),
        case("trilu", f32(2, 5, 7), k=1),
        case("trilu", i8(5, 4), upper=False),
        case("trilu", truth(5, 4), i64(1), upper=True),
        case("qnn.quantize", f32(3, 50), f32(), u8(), dtype=DType.UINT8, low=-90, high=90),
        case("qnn.saturate", f32(3, 50), dtype=DType.UINT8, low=-90, high=290),
        case("qnn.saturate", f32(3, 5), f32(), dtype=DType.INT8, low=-190, high=190),
        case("qnn.quantize", f16(3, 5), f16(3), dtype=DType.INT16, axis=0, low=-90, high=90),
        case("qnn.quantize", f64(4, 6), f64(4, 2), i8(4, 2), dtype=DType.INT8, block_size=3),
        case("qnn.dequantize", u8(3, 5), f32(5), u8(5), axis=-1),
        case("qnn.dequantize", i32(3, 5), f16()),
    ]
    return found


def _windows() -> list[Case]:
    return [
        case("nn.conv1d", f32(2, 3, 11), f32(4, 3, 3), padding=(2, 1), strides=(2,)),
        case("nn.conv1d", f64(1, 2, 40), f64(3, 2, 5), dilation=(3,)),
        case("nn.conv2d", f32(1, 4, 7, 9), f32(6, 4, 3, 3), padding=(1, 1, 1, 1)),
        case("nn.conv2d", f32(2, 4, 7, 9), f32(6, 2, 3, 2), groups=2, strides=(2, 1)),
        case("nn.conv2d", f32(2, 4, 7, 9), f32(8, 1, 3, 3), groups=4, padding=(1, 0, 2, 1)),
        case("nn.conv2d", f16(1, 3, 5, 5), f16(2, 3, 3, 3), padding=(1, 1, 1, 1)),
        case("nn.conv2d", i8(1, 3, 5, 5), i8(2, 3, 3, 3), padding=(1, 1, 1, 1), low=-99, high=99),
        case("nn.conv2d", f32(1, 3, 1, 1), f32(5, 3, 1, 1)),
        case("nn.conv3d", f32(1, 2, 4, 5, 6), f32(3, 2, 2, 3, 3), padding=(0, 1, 1, 1, 1, 0)),
        case("nn.conv1d_transpose", f32(2, 3, 5), f32(3, 2, 3), strides=(3,)),
        case(
            "nn.conv2d_transpose",
            *(f32(1, 4, 4, 5), f32(4, 3, 3, 3)),
            strides=(2, 2),
            padding=(1, 1, 1, 1),
            output_padding=(1, 1),
        ),
        case("nn.conv2d_transpose", f64(2, 4, 3, 3), f64(4, 2, 2, 2), groups=2, dilation=(2, 1)),
        case("nn.conv2d_transpose", f32(1, 2, 3, 3), f32(2, 1, 3, 3), padding=(-1, 0, 0, -2)),
        case("nn.conv3d_transpose", i32(1, 2, 2, 3, 2), i32(2, 1, 2, 2, 2), strides=(2, 1, 2)),
        *_pools(),
        case("qnn.conv1d", i8(2, 3, 11), i8(4, 3, 3), padding=(2, 1), low=-99, high=99),
        case("qnn.conv2d", u8(2, 4, 7, 9), i8(6, 2, 3, 2), u8(), groups=2, padding=(1, 1, 0, 1)),
        case("qnn.conv3d", i8(1, 2, 4, 3, 5), i8(3, 2, 2, 2, 3), i8(1), padding=(0, 1, 1, 1, 0, 1)),
        case("mixed.conv1d", f16(2, 3, 11), f16(4, 3, 3), padding=(2, 1)),
        case("mixed.conv2d", f16(2, 4, 7, 9), f16(6, 2, 3, 2), groups=2, padding=(1, 1, 0, 1)),
        case("mixed.conv3d", f16(1, 2, 4, 3, 5), f16(3, 2, 2, 2, 3), padding=(0, 1, 1, 1, 0, 1)),
        case("nn.lrn", f32(2, 5, 3, 4), size=3, alpha=0.5),
        case("nn.lrn", f16(2, 5, 4), size=4, axis=2, bias=2.0),
    ]


def _pools() -> list[Case]:
    found: list[Case] = []
    border = {"pool_size": (3, 2), "strides": (2, 1), "padding": (1, 1, 0, 1)}
    for name in ("max", "avg", "lp"):
        found += [
            case(f"nn.{name}_pool1d", f32(2, 3, 17), pool_size=(4,), strides=(3,)),
            case(f"nn.{name}_pool2d", f32(2, 3, 7, 20), **border),
            case(f"nn.{name}_pool2d", f16(1, 2, 7, 6), **border),
            case(f"nn.{name}_pool2d", f64(1, 2, 8, 7), **{**border, "ceil_mode": True}),
            case(f"nn.{name}_pool2d", f32(1, 2, 8, 7), **{**border, "dilation": (2, 3)}),
            case(f"nn.{name}_pool3d", f32(1, 2, 4, 5, 6), pool_size=(2, 2, 2), ceil_mode=True),
        ]
    return [
        *found,
        case("nn.max_pool2d", i8(1, 2, 7, 6), **border),
        case("nn.avg_pool2d", f32(1, 2, 7, 6), **border, count_include_pad=True),
        case("nn.avg_pool1d", f32(1, 2, 7), pool_size=(2,), strides=(2,), padding=(1, 0)),
        case("nn.lp_pool2d", f32(1, 2, 7, 6), **border, p=3),
        case("nn.lp_pool1d", f32(1, 2, 7), pool_size=(3,), p=1),
        case("nn.max_pool1d_with_indices", i32(2, 2, 9), pool_size=(3,), padding=(2, 1)),
        case("nn.max_pool2d_with_indices", f32(2, 3, 7, 6), **border),
        case("nn.max_pool2d_with_indices", f32(1, 2, 7, 6), **border, column_major=True),
        case("nn.max_pool3d_with_indices", u8(1, 2, 3, 4, 5), pool_size=(2, 2, 2)),
    ]


def _reductions() -> list[Case]:
    found: list[Case] = []
    for name in ("sum", "mean", "max", "min", "prod"):
        dtypes = (*FLOATS, "int8", "uint8", "int64")
        found += [case(name, (d, (3, 5, 4)), axes=(0, 2), keepdims=True) for d in dtypes]
        found += [
            case(name, f32(3, 50)),
            case(name, f32(3, 50), axes=(-1,)),
            case(name, i32(50, 3), axes=(0,)),
            case(name, f64(2, 3, 20), axes=(1,)),
            case(name, f32(2, 3), axes=()),
            case(name, i32(2, 3), axes=(), noop_with_empty_axes=False),
            case(name, f32()),
            case(name, f32(2, 0, 3), axes=(0, 2)),
        ]
    found += [case(name, f32(2, 0, 3), axes=(1,)) for name in ("sum", "prod", "max", "min")]
    found += [case(name, truth(3, 5), axes=(1,)) for name in ("max", "min")]
    for name in ("argmax", "argmin"):
        found += [
            case(name, (dtype, (4, 7)), axis=1, select_last_index=last, low=0, high=3)
            for dtype in ("float16", "float32", "int8", "uint64")
            for last in (False, True)
        ]
        found.append(case(name, f32(5, 3, 20), axis=0, keepdims=True))
        found.append(case(name, f32(2, 40), axis=-1))
    for name in ("nn.softmax", "nn.log_softmax"):
        found += [case(name, (dtype, (3, 37))) for dtype in FLOATS]
        found += [case(name, f32(3, 4, 5), axis=axis) for axis in (0, 1)]
        found += [case(name, f32(2, 4, 50), axis=1), case(name, f32(1)), case(name, f64(2, 0, 3))]
    for name in ("cumsum", "cumprod"):
        found += [case(name, (dtype, (3, 7)), axis=1, low=-2, high=2) for dtype in FLOATS]
        found += [
            case(name, i32(3, 7), axis=0, exclusive=True),
            case(name, u8(5, 3), axis=0, reverse=True),
            case(name, f32(2, 21), axis=-1, exclusive=True, reverse=True, low=-2, high=2),
        ]
    return found + _normalizations()


def _normalizations() -> list[Case]:
    return [
        *[case("nn.layer_norm", (d, (3, 37)), (d, (37,)), (d, (37,))) for d in FLOATS],
        case("nn.layer_norm", f32(2, 3, 4, 5), f32(4, 1), axis=2),
        case("nn.layer_norm", f32(2, 3, 5), None, f32(5)),
        case("nn.rms_norm", f32(3, 21), f32(21)),
        case("nn.rms_norm", f16(2, 3, 4), axis=1),
        case("nn.channel_norm", f32(2, 5, 3, 4), f32(5), f32(5)),
        case("nn.channel_norm", f16(2, 7, 3), None, f16(7)),
        case("nn.channel_norm", f64(1, 6, 4, 2), f64(6), centered=False),
        case("nn.instance_norm", f32(2, 3, 4, 5), f32(3), f32(3)),
        case("nn.instance_norm", f16(2, 4, 5, 3), f16(3), f16(3), axis=3),
        case("nn.group_norm", f32(2, 6, 4, 5), f32(6), f32(6), num_groups=3),
        case("nn.group_norm", f64(1, 4, 3), f64(4), f64(4), num_groups=1),
        case("nn.group_norm", f32(2, 5, 6), f32(6), f32(6), num_groups=2, axis=2),
        case("nn.lp_normalize", f32(3, 21), axis=1),
        case("nn.lp_normalize", f16(3, 4, 5), axis=0, p=1),
    ]


def _products() -> list[Case]:
    found = [case("nn.dense", (d, (5, 19)), (d, (7, 19))) for d in (*FLOATS, *SIGNED)]
    return [
        *found,
        case("nn.dense", f32(19), f32(7, 19)),
        case("nn.dense", f64(2, 1, 4), f64(1, 4)),
        case("nn.dense", f32(3, 0), f32(2, 0)),
        case("ml.squared_distance", f32(5, 19), f32(7, 19)),
        case("ml.squared_distance", f64(3, 0), f64(2, 0)),
        case("qnn.dense", u8(3, 19), i8(7, 19), u8(), high=99),
        case("qnn.dense", i8(2, 3, 0), i8(5, 0)),
        case("mixed.dense", f16(3, 19), f16(7, 19)),
        case("mixed.dense", f32(3, 19), f16(7, 19)),
        case("mixed.block_dense", f32(3, 32), (DType.UINT4, (7, 32)), f32(7, 2), block_size=16),
        case("nn.batch_matmul", f32(2, 1, 5, 7), f32(3, 7, 9)),
        case("qnn.batch_matmul", u8(2, 1, 5, 7), i8(3, 7, 9), high=99),
        case("qnn.batch_matmul", i8(5, 7), u8(2, 9, 7), transpose_b=True, low=0, high=99),
        case(
            *("qnn.attention", i8(1, 2, 5, 6), i8(1, 2, 7, 6), i8(1, 2, 7, 3), f32(5, 7)),
            scale=0.05,
            step=0.01,
            zero_points=(1, 2, 3),
            masked=1,
            roundings=(0.2, 0.05, -128.0, 127.0, 1.1, 0.06, -90.0, 165.0),
        ),
        case(
            *("qnn.attention", u8(2, 4, 5, 6), u8(2, 2, 7, 6), i8(2, 2, 7, 3), f32(5, 7)),
            scale=1e-3,
            step=1 / 255,
            zero_points=(9, 40, 3),
            high=99,
        ),
        case(
            *("qnn.attention", u8(2, 4, 5, 6), u8(2, 2, 7, 6), i8(2, 2, 7, 3), f32(5, 7)),
            scale=1e-3,
            step=1 / 255,
            divided=True,
            high=99,
        ),
        case("nn.batch_matmul", f16(5, 7), f16(7, 33)),
        case("nn.batch_matmul", i32(3, 7, 5), i32(7, 9), transpose_a=True),
        case("nn.batch_matmul", u8(1, 5, 7), u8(3, 9, 7), transpose_b=True, high=200),
        case("nn.batch_matmul", f32(4, 1, 1), f32(1, 5)),
        case("einsum", f32(3, 4), f32(4, 5), equation="ij,jk->ik"),
        case("einsum", f32(2, 3, 4), f32(2, 4, 5), equation="bij,bjk->bik"),
        case("einsum", f64(4, 4), equation="ii->i"),
        case("einsum", f32(3, 4), equation="ij->"),
        case("einsum", f16(3, 4), equation="ij->ji"),
        case("einsum", i32(3), i32(4), i32(3), equation="i,j,i->ij"),
        case("einsum", f32(2, 1, 3, 4), f32(5, 4, 2), equation="...ij,...jk->...ik"),
    ]


def _movements() -> list[Case]:
    return [
        *[case("reshape", (d, (3, 8, 5)), shape=(4, 30)) for d in ("float16", "int8", "bool")],
        case("reshape", i32(2, 6, 1), shape=(2, 1, 6)),
        case("squeeze", f16(1, 3, 1), axes=(0,)),
        case("expand_dims", u8(3, 4), axes=(1, -1)),
        case("transpose", f16(3, 4, 5), axes=(2, 0, 1)),
        case("transpose", i8(3, 40)),
        case("layout_transform", f32(2, 6, 3, 5), src_layout="NCHW", dst_layout="NHWC"),
        case("layout_transform", f16(2, 6, 3, 5), src_layout="NCHW", dst_layout="NCHW3c"),
        case("layout_transform", i8(1, 2, 3, 5, 4), src_layout="NCHW4c", dst_layout="NHWC"),
        case("broadcast_to", bf16(3, 1), shape=(2, 3, 5)),
        case("broadcast_to", i32(), shape=(4,)),
        case("concatenate", f16(2, 3), f16(2, 1), f16(2, 20), axis=1),
        case("concatenate", i8(2, 3), i8(0, 3), i8(1, 3)),
        case("split", f16(2, 40), axis=1, sizes=(3, 30, 7)),
        case("split", i64(5, 3), axis=0, sections=3),
        case("tile", f16(2, 3), reps=(2, 3)),
        case("tile", i8(2, 1, 3), reps=(1, 4, 2)),
        case("strided_slice", f16(5, 40), begin=(3, 1), end=(-9, 38), strides=(-1, 3)),
        case("strided_slice", i8(5, 6, 7), begin=(-2,), end=(100,), axes=(1,)),
        *[
            case("nn.pad", f16(4, 5), pad_width=(1, 2, 0, 3), mode=mode)
            for mode in ("constant", "reflect", "edge", "wrap")
        ],
        case("nn.pad", i8(3, 40), i8(), pad_width=(1, 7, 0, 9)),
        case("nn.pad", i8(2, 3), pad_width=(1, 0, 0, 2), value=1.5),
        case("nn.pad", f32(3, 40), pad_width=(-1, 3, 2, -3), value=1.5),
        case("nn.pad", f32(6, 7), pad_width=(-1, 2), axes=(1,), mode="reflect"),
        case("nn.pad", i32(1, 3), pad_width=(2, 7, 1, 0), mode="reflect"),
        case("depth_to_space", f16(2, 8, 3, 5), block_size=2),
        case("depth_to_space", i8(1, 18, 2, 3), block_size=3, mode="CRD"),
        case("space_to_depth", f16(2, 3, 4, 6), block_size=2),
        case("space_to_depth", f32(1, 2, 4, 6), block_size=2, mode="CRD"),
        case("reverse_sequence", f16(4, 3, 5), i64(3), low=0, high=4),
        case("reverse_sequence", i8(3, 4), i64(3), seq_axis=1, batch_axis=0, low=0, high=4),
        case("take", f16(5, 6, 7), i64(2, 3), axis=1, low=-5, high=4),
        case("take", i8(5, 40), i32(), axis=0),
        case("gather", f16(5, 6), i64(4, 6), axis=0, low=-5, high=4),
        case("gather", i8(5, 6), u8(5, 2), axis=1),
        case("gather_nd", f16(5, 6, 7), i64(4, 2), low=-5, high=4),
        case("gather_nd", i8(3, 5, 6), i64(3, 4, 1), batch_dims=1, low=-5, high=4),
        case("out_of_range", i64(3, 5), extents=(4,), low=-7, high=6),
        case("out_of_range", i32(), extents=(2,), low=0, high=3),
        case("out_of_range", u8(4, 3), extents=(2, 9, 300), low=0, high=9),
        case("out_of_range", i64(7), extents=(6,), count=4, wraps=False, low=-1, high=4),
        case("one_hot", i64(3, 4), f16(2), depth=5),
        case("one_hot", u8(7), i8(2), depth=3, axis=0),
        case("full", f16(1), shape=(3, 5)),
        case("arange", start=2, limit=20, delta=3),
        case("eye", shape=(3, 5), k=1),
        case("eye", shape=(40, 40), k=-2, dtype=DType.INT8),
        *_resizes(),
    ]


def _resizes() -> list[Case]:
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    return [
        case("resize", f16(1, 2, 4, 5), sizes=(1, 2, 7, 9)),
        case("resize", f32(1, 2, 4, 5), scales=(1.0, 1.0, 2.5, 0.6), method="linear"),
        case("resize", f32(1, 2, 6, 7), sizes=(1, 2, 9, 4), method="cubic", exclude_outside=True),
        case("resize", u8(1, 1, 6, 7), sizes=(1, 1, 4, 9), method="linear", high=250),
        case("qnn.resize", u8(1, 2, 4, 5), scales=(1.0, 1.0, 2.5, 0.6), method="linear"),
        case("qnn.resize", i8(6, 7), sizes=(9, 4), method="cubic", low=-99, high=99),
        case("resize", f32(9, 8), sizes=(4, 3), method="linear", antialias=True),
        case("resize", f32(6, 7), sizes=(4, 9), roi=(-0.2, 0.3, 0.9, 1.2), method="linear", **crop),
        case("resize", i32(6, 7), sizes=(4, 9), roi=(-0.2, 0.3, 0.9, 1.2), **crop),
    ]


CASES: tuple[Case, ...] = (
    *_pointwise(),
    *_windows(),
    *_reductions(),
    *_products(),
    *_movements(),
    *SIGNALS,
)
