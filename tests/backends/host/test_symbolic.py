"""Kernels with symbolic extents: every family of operators, compiled once and run at many sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from tests.backends.host.symbolic import Binding, Build, Sizes, check, graph_of, kernel_of

from graft.base.dims import broadcast_dim, dim_min, symbol
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.print import to_text
from graft.rewrite.rule import Refusal
from graft.target.target import host_target

# Nothing, one, less than a vector, not a multiple of one, and more than a piece of many.
ONE = [{"n": n} for n in (0, 1, 3, 8, 37, 300)]
PAIRS = ((0, 3), (1, 1), (3, 1), (5, 5), (7, 40), (19, 8), (1, 33), (64, 65))
TWO = [{"n": n, "m": m} for n, m in PAIRS]
SOME = TWO[1:]
# Extents that may or may not turn out to be 1.
EITHER = [{"n": n, "m": m} for n, m in product((1, 5, 40), repeat=2) if n == m or 1 in (n, m)]
EITHER += [{"n": n, "m": m} for n, m in ((0, 1), (1, 0), (0, 0))]
IMAGES = [
    {"n": n, "h": h, "w": w}
    for n, h, w in ((1, 7, 7), (2, 5, 20), (3, 16, 16), (0, 5, 5), (1, 3, 40), (2, 4, 3))
]

Case = tuple[str, Build, Sequence[Binding], dict[str, Any]]
CASES: list[Case] = []


def add(
    name: str, build: Build, bindings: Sequence[Binding] = TWO, low: float = -4, high: float = 4
) -> None:
    CASES.append((name, build, bindings, {"low": low, "high": high}))


add("exp of a list", lambda s: s("exp", s.input(s.n)), ONE)
add("exp of rows", lambda s: s("exp", s.input(7, s.n)), ONE)
add("a sum of two", lambda s: s("add", s.input(s.n, s.m), s.input(s.n, s.m)))
add("a sum with a list", lambda s: s("add", s.input(s.n, s.m), s.input(s.m)))
add("lists that may be one", lambda s: s("add", s.input(s.n), s.input(s.m)), EITHER)
add("rows that may be one", lambda s: s("add", s.input(s.n, 20), s.input(s.m, 20)), EITHER)
add(
    "several that may be one",
    lambda s: s("multiply", s("add", s.input(s.n, 1), s.input(1, s.m)), s.input(1, s.n)),
    EITHER,
)
add("bounds", lambda s: s("clip", s.input(s.n, 5), s.input(), s.input()), ONE)
add("a bias and gelu", lambda s: s("nn.gelu", s("add", s.input(s.n, s.m, 64), s.input(64))))
add("one side of a diagonal", lambda s: s("trilu", s.input(2, s.n, s.m), k=1))
add(
    "batch norm",
    lambda s: s("nn.batch_norm", s.input(s.n, 3, s.m), *[s.input(3) for _ in range(4)]),
    low=0.1,
)


def _choice(dtype: str) -> Build:
    def build(s: Sizes) -> Value:
        yes, no = s.input(s.n, s.m, dtype=dtype), s.input(s.m, dtype=dtype)
        return s("where", s.input(s.n, 1, dtype="bool"), yes, no)

    return build


for _dtype in ("float16", "float64", "int8", "int64", "bool"):
    add(f"a choice of {_dtype}", _choice(_dtype))

add("an axis cut in two", lambda s: s("reshape", s.input(s.n, s.m, 12), shape=(s.n, s.m, 3, 4)))
add("two axes made one", lambda s: s("reshape", s.input(s.n, s.m, 12), shape=(s.n * s.m, 4, 3)))
add("other rows", lambda s: s("reshape", s.input(s.n, s.m), shape=(s.m, s.n)), SOME)
add("an axis of 1 moved", lambda s: s("reshape", s.input(s.n, 1, s.m), shape=(s.n, s.m, 1)))
add("transposed", lambda s: s("transpose", s.input(s.n, 3, s.m), axes=(2, 0, 1)))
add(
    "heads",
    lambda s: s(
        "transpose",
        s("reshape", s.input(s.n, s.m, 12), shape=(s.n, s.m, 3, 4)),
        axes=(0, 2, 1, 3),
    ),
)
add("broadcast", lambda s: s("broadcast_to", s.input(s.n, 1), shape=(4, s.n, s.m)))
add(
    "joined rows",
    lambda s: s("concatenate", s.input(s.n, 3), s.input(s.m, 3), s.input(2, 3), axis=0),
)
add(
    "joined columns",
    lambda s: s("concatenate", s.input(3, s.n), s.input(3, s.m), s.input(3, 5), axis=1),
)
add(
    "split at sizes",
    lambda s: s.builder.call("split", s.input(s.n + s.m, 6), axis=0, sizes=(s.n, s.m)),
)
add("split evenly", lambda s: s.builder.call("split", s.input(s.n * 3, 6), sections=3), ONE)
add("repeated", lambda s: s("tile", s.input(s.n, 3), reps=(2, 3)), ONE)
add("repeated so often", lambda s: s("tile", s.input(s.n, 3), reps=(s.m, 1)))
add(
    "a slice",
    lambda s: s(
        "strided_slice", s.input(s.n, s.m), begin=(1, -3), end=(100, 2**31 - 1), strides=(2, 1)
    ),
)
add(
    "a slice backwards",
    lambda s: s(
        "strided_slice", s.input(s.n, s.m), begin=(-1, 7), end=(-100, -(2**31)), strides=(-1, -2)
    ),
)
add(
    "a slice at symbols",
    lambda s: s("strided_slice", s.input(s.n + s.m, 4), begin=(s.n,), end=(s.n + s.m,), axes=(0,)),
)
add("a border", lambda s: s("nn.pad", s.input(s.n, s.m), pad_width=(1, 2, 0, 3)))
add("a border of symbols", lambda s: s("nn.pad", s.input(s.n, 5), pad_width=(0, 0, s.m, 0)))


def _border(mode: str) -> Build:
    return lambda s: s("nn.pad", s.input(s.n, s.m), pad_width=(1, 2, 0, 3), mode=mode)


for _mode in ("edge", "reflect", "wrap"):
    add(f"a border by {_mode}", _border(_mode), SOME)

add("depth to space", lambda s: s("depth_to_space", s.input(s.n, 8, s.m, 3), block_size=2))
add("space to depth", lambda s: s("space_to_depth", s.input(s.n, 3, 2 * s.m, 4), block_size=2))
add(
    "turned steps",
    lambda s: s("reverse_sequence", s.input(s.n, s.m), s.input(s.m, dtype="int64")),
    [one for one in TWO if one["n"] > 4],
    low=0,
)
add("one number", lambda s: s("full", s.input(1), shape=(s.n, 3)), ONE)
add("counting", lambda s: s("arange", start=0, limit=s.n, delta=2), ONE)
add("counting from a symbol", lambda s: s("arange", start=s.n, limit=s.n + s.m, delta=1))
add("a diagonal", lambda s: s("eye", shape=(s.n, s.m), k=1))
add(
    "one hot",
    lambda s: s("one_hot", s.input(s.n, dtype="int64"), s.input(2), depth=5),
    ONE,
)


def _total(op: str, axes: tuple[int, ...] | None, dtype: str = "float32") -> Build:
    return lambda s: s(op, s.input(s.n, s.m, dtype=dtype), axes=axes)


for _op in ("sum", "mean", "max", "prod"):
    for _axes in ((0,), (1,), None):
        add(f"{_op} over {_axes}", _total(_op, _axes), SOME if _op in ("max", "mean") else TWO)
add("a mean of integers", _total("mean", (1,), "int32"))
add("a mean of columns", lambda s: s("mean", s.input(3, s.n, 40), axes=(1,)), ONE[1:])
add(
    "the largest's place in a column",
    lambda s: s("argmax", s.input(s.n, s.m), axis=1, keepdims=True),
)
add("the largest's place", lambda s: s("argmax", s.input(s.n, s.m), axis=1))
add("the smallest's place", lambda s: s("argmin", s.input(s.n, s.m), axis=0), SOME)
add("running sums", lambda s: s("cumsum", s.input(s.n, s.m), axis=1))
add("running sums of rows", lambda s: s("cumsum", s.input(s.n, s.m), axis=0))

add("softmax", lambda s: s("nn.softmax", s.input(s.n, s.m)))
add("softmax of known rows", lambda s: s("nn.softmax", s.input(s.n, 37)), ONE)
add("softmax along columns", lambda s: s("nn.softmax", s.input(3, s.n, s.m), axis=1))
add("softmax of halves", lambda s: s("nn.softmax", s.input(s.n, s.m, dtype="float16")))
add(
    "softmax of rows whose extent is a condition",
    lambda s: s("nn.softmax", s.input(3, broadcast_dim(dim_min(s.n - s.m, 2 * s.m), s.n - 5))),
    [{"n": n, "m": 5} for n in (5, 7, 12, 15)],
)
add("log softmax", lambda s: s("nn.log_softmax", s.input(s.n, s.m)))
add(
    "layer norm",
    lambda s: s("nn.layer_norm", s.input(s.n, s.m), s.input(s.m), s.input(s.m)),
)
add(
    "layer norm of known rows",
    lambda s: s("nn.layer_norm", s.input(s.n, 37), s.input(37), s.input(37)),
    ONE,
)
add("rms norm", lambda s: s("nn.rms_norm", s.input(s.n, s.m), s.input(s.m)))
add(
    "instance norm",
    lambda s: s("nn.instance_norm", s.input(2, 3, s.n, s.m), s.input(3), s.input(3)),
    SOME,
)
add(
    "group norm",
    lambda s: s("nn.group_norm", s.input(2, 6, s.n, s.m), s.input(6), s.input(6), num_groups=3),
    SOME,
)
add("neighbours", lambda s: s("nn.lrn", s.input(s.n, 5, s.m), size=3))
add("a norm", lambda s: s("nn.lp_normalize", s.input(s.n, s.m), axis=1))

add("dense", lambda s: s("nn.dense", s.input(s.n, 19), s.input(40, 19)), ONE)
add(
    "dense with an epilogue",
    lambda s: s(
        "nn.relu",
        s("add", s("nn.dense", s.input(s.n, s.m, 19), s.constant(40, 19)), s.constant(40)),
    ),
)
add("dense over a symbol", lambda s: s("nn.dense", s.input(s.n, s.m), s.input(5, s.m)))
add("products", lambda s: s("nn.batch_matmul", s.input(2, s.n, s.m), s.input(2, s.m, 33)))
add("square products", lambda s: s("nn.batch_matmul", s.input(s.n, s.m, 7), s.input(s.n, 7, s.m)))
add(
    "products of rows",
    lambda s: s("nn.batch_matmul", s.input(s.n, s.m, 7), s.input(s.n, s.m, 7), transpose_b=True),
)
add(
    "products of columns",
    lambda s: s("nn.batch_matmul", s.input(3, 7, s.m), s.input(7, s.n), transpose_a=True),
)
add(
    "products that may be one",
    lambda s: s("nn.batch_matmul", s.input(s.n, 4, 7), s.input(s.m, 7, 9)),
    EITHER,
)
add(
    "an Einstein sum",
    lambda s: s("einsum", s.input(s.n, 3, s.m), s.input(s.n, s.m, 5), equation="bij,bjk->bik"),
)
add(
    "an Einstein sum that may be one",
    lambda s: s("einsum", s.input(s.n, 3), s.input(s.m, 3), equation="ij,ij->j"),
    EITHER,
)


add(
    "a dense layer that alone knows how long rows are",
    lambda s: s("nn.dense", s.input(s.n, s.m, s.k), s.constant(9, 1)),
    [{"n": n, "m": m, "k": 1} for n, m in PAIRS],
)


def _conv(weight: tuple[int, ...], **attrs: Any) -> Build:
    return lambda s: s("nn.conv2d", s.input(s.n, 4, s.h, s.w), s.constant(*weight), **attrs)


add("a convolution", _conv((6, 4, 3, 3), padding=(1, 1, 1, 1)), IMAGES)
add("with strides", _conv((6, 4, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2)), IMAGES)
add("without a border", _conv((6, 4, 3, 3), strides=(2, 2)), IMAGES)
add("depthwise", _conv((8, 1, 3, 3), padding=(1, 1, 1, 1), groups=4), IMAGES)
add(
    "pointwise with an epilogue",
    lambda s: s(
        "nn.relu",
        s(
            "nn.bias_add",
            s("nn.conv2d", s.input(s.n, 4, s.h, s.w), s.constant(6, 4, 1, 1)),
            s.constant(6),
        ),
    ),
    IMAGES,
)
add(
    "of many images",
    lambda s: s("nn.conv2d", s.input(s.n, 4, 9, 11), s.constant(8, 4, 3, 3), padding=(1,) * 4),
    ONE,
)
add(
    "over one axis",
    lambda s: s("nn.conv1d", s.input(s.n, 4, s.m), s.constant(5, 4, 3), padding=(2, 1)),
)
add(
    "transposed convolution",
    lambda s: s(
        "nn.conv2d_transpose",
        *(s.input(s.n, 4, s.h, s.w), s.constant(4, 3, 3, 3)),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
    ),
    IMAGES,
)
WINDOW: dict[str, Any] = {"pool_size": (3, 2), "strides": (2, 1), "padding": (1, 1, 0, 1)}


def _pool(op: str, **attrs: Any) -> Build:
    return lambda s: s.builder.call(op, s.input(s.n, 3, s.h, s.w), **{**WINDOW, **attrs})


for _op in ("max", "avg", "lp"):
    add(f"{_op} pooling", _pool(f"nn.{_op}_pool2d"), IMAGES)
add("pooling rounded up", _pool("nn.avg_pool2d", strides=(2, 2), ceil_mode=True), IMAGES)
add("pooling with the border", _pool("nn.avg_pool2d", count_include_pad=True), IMAGES)
add("pooling with places", _pool("nn.max_pool2d_with_indices"), IMAGES)
add(
    "pooling to an extent of several scalars",
    lambda s: s(
        "nn.lp_pool2d", s.input(s.n, 1, 2, 2 * s.m + s.k), pool_size=(2, 3), strides=(2, 2), p=3
    ),
    [{"n": n, "m": m, "k": k} for n, m, k in ((2, 1, 1), (7, 2, 3), (1, 40, 9), (3, 16, 0))],
)

add(
    "taken rows",
    lambda s: s("take", s.input(s.n, 6), s.input(s.m, dtype="int64"), axis=0),
    [{"n": 4, "m": 3}, {"n": 7, "m": 40}, {"n": 9, "m": 0}],
    high=3,
)
add("taken of rows", lambda s: s("take", s.input(9, s.n), s.input(s.m, dtype="int64"), axis=0))
add(
    "gathered",
    lambda s: s("gather", s.input(s.n, 6), s.input(s.m, 6, dtype="int64"), axis=0),
    [{"n": 4, "m": 3}, {"n": 7, "m": 40}],
    high=3,
)
add(
    "gathered at several axes",
    lambda s: s("gather_nd", s.input(s.n, 6, 4), s.input(s.m, 2, dtype="int64")),
    [{"n": 4, "m": 3}, {"n": 7, "m": 40}],
    high=3,
)
add(
    "quantised",
    lambda s: s(
        "qnn.quantize", s.input(s.n, s.m), s.input(), s.input(dtype="uint8"), dtype=DType.UINT8
    ),
)
add(
    "dequantised",
    lambda s: s("qnn.dequantize", s.input(s.n, s.m, dtype="int8"), s.input(s.m), axis=1),
)
add(
    "resized images of any number",
    lambda s: s("resize", s.input(s.n, 3, 4, 5), scales=(1.0, 1.0, 2.0, 2.0), method="linear"),
    ONE,
)
SINGLE = [*(one for one in IMAGES if one["n"]), {"n": 1, "h": 1, "w": 1}, {"n": 2, "h": 1, "w": 9}]


def _scaled(dtype: str = "float32", **attrs: Any) -> Build:
    scales = (1.0, 1.0, 1.75, 0.625)
    return lambda s: s("resize", s.input(s.n, 2, s.h, s.w, dtype=dtype), scales=scales, **attrs)


def _sized(**attrs: Any) -> Build:
    return lambda s: s("resize", s.input(s.n, 2, s.h, s.w), sizes=(s.n, 2, s.h * 2 + 1, 7), **attrs)


METHODS = ("nearest_neighbor", "linear", "cubic")
TRANSFORMATIONS = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_half_pixel_for_nn"),
)
for _number, _transformation in enumerate(TRANSFORMATIONS):
    _attrs: dict[str, Any] = {"coordinate_transformation_mode": _transformation}
    _scaling, _sizing = METHODS[_number % 3], METHODS[(_number + 1) % 3]
    add(f"scaled {_transformation}", _scaled(**_attrs, method=_scaling), SINGLE)
    add(f"sized {_transformation}", _sized(**_attrs, method=_sizing), SINGLE)
for _rounding in ("round_prefer_ceil", "floor", "ceil", "simple"):
    add(f"rounded by {_rounding}", _scaled(rounding_method=_rounding), SINGLE)
add("resized without a border", _scaled(method="cubic", exclude_outside=True), SINGLE)
add("resized doubles", _scaled("float64", method="linear"), SINGLE)
add(
    "cropped",
    lambda s: s(
        "resize",
        s.input(s.h, s.w),
        sizes=(4, s.w + 2),
        roi=(-0.2, 0.3, 0.9, 1.2),
        method="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    ),
    SINGLE,
)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one[0])
def test_one_kernel_agrees_with_the_evaluator_at_every_size(one: Case) -> None:
    _, build, bindings, options = one
    check(build, *bindings, **options)


def test_names_of_symbols_do_not_matter() -> None:
    def text(name: str) -> str:
        def build(s: Sizes) -> Value:
            return s("nn.softmax", s.input(symbol(name), 40))

        kernel = kernel_of(graph_of(build, {}), host_target())
        assert not isinstance(kernel, Refusal)
        assert kernel.scalars == (symbol(name),)
        return to_text(kernel.function)

    assert text("batch") == text("b")


def test_calls_are_scalars_that_are_passed() -> None:
    def build(s: Sizes) -> Value:
        return s("add", s.input(s.n, 3), s.input(s.m, 3))

    kernel = check(build, *EITHER)
    assert sorted(map(str, kernel.scalars)) == ["broadcast(m, n)", "m", "n"]


def test_weights_of_unknown_extents_are_refused() -> None:
    def build(s: Sizes) -> Value:
        return s("nn.conv1d", s.input(1, 2, 9), s.input(3, 2, s.n))

    said = kernel_of(graph_of(build, {}), host_target())
    assert isinstance(said, Refusal)
    assert said.reason == ("expression: nn.conv1d: the kernel's extents are known only at run time")


def test_antialiasing_needs_numbers() -> None:
    said = kernel_of(graph_of(_scaled(method="linear", antialias=True), {}), host_target())
    assert isinstance(said, Refusal)
    assert said.reason == (
        "expression: resize: the extents that antialiasing goes by are known only at run time"
    )
