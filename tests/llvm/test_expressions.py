"""Every kind of expression, dtype and number of lanes against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.llvm.kernels import (
    check,
    compiled,
    elementwise,
    interpreted,
    numbers,
    run,
    runnable_targets,
)

from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.llvm.emit import llvm_text
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    Let,
    Load,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.traverse import map_stmt
from graft.target.target import Target, host_target

FLOATS = [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]
SIGNED = [DType.INT8, DType.INT16, DType.INT32, DType.INT64]
UNSIGNED = [DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64]
LANES = [1, 4, 8, 7]

FLOAT_KINDS = ["ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "MINIMUM", "MAXIMUM"]
INTEGER_KINDS = ["ADD", "SUBTRACT", "MULTIPLY", "MINIMUM", "MAXIMUM", "AND", "OR", "XOR"]
BOOL_KINDS = ["MINIMUM", "MAXIMUM", "AND", "OR", "XOR"]

# This machine, and the plainest that it can be: between them lie all ways to make the code.
EXTREMES = runnable_targets()[:2]
every_target = pytest.mark.parametrize("target", EXTREMES, ids=lambda target: target.name)
every_lanes = pytest.mark.parametrize("lanes", LANES)


def binaries(names: list[str]) -> list:
    kinds = [BinaryKind[name] for name in names]
    return [lambda a, b, kind=kind: Binary(kind, a, b) for kind in kinds]


def comparisons() -> list:
    return [lambda a, b, kind=kind: Compare(kind, a, b) for kind in CompareKind]


def choose(a: Expr, b: Expr) -> Expr:
    return Select(Compare(CompareKind.LESS, a, b), a, b)


@pytest.mark.each_value
@every_lanes
@pytest.mark.parametrize("dtype", [DType.BOOL, *FLOATS, *SIGNED, *UNSIGNED])
def test_binary_compare_and_select(dtype: DType, lanes: int) -> None:
    kinds = FLOAT_KINDS if dtype.is_float else INTEGER_KINDS
    kinds = BOOL_KINDS if dtype is DType.BOOL else kinds
    formulas = [*binaries(kinds), *comparisons(), choose]
    check([numbers(dtype, seed=1), numbers(dtype, seed=2)], formulas, lanes)


@pytest.mark.parametrize("lanes", [4, 7, 16])
def test_comparing_a_ramp_with_a_scalar(lanes: int) -> None:
    """Limits below, inside and beyond the ramp, and as far away as there are numbers."""
    base = np.arange(-3, 26)
    for limit in (-(1 << 63), -1, 0, 5, 11, 26, (1 << 63) - 1):
        formulas = [
            lambda a, kind=kind, c=limit: Compare(kind, ramp_of(a), spread(Const(c), ramp_of(a)))
            for kind in CompareKind
        ]
        kernel = compiled(elementwise([DType.INT64], formulas, [DType.BOOL] * 6, lanes))
        outputs = {f"out{k}": np.zeros(29, bool) for k in range(6)}
        result = run(kernel, {"in0": base, "n": 29} | outputs)
        for k, meaning in enumerate(COMPARISONS):
            np.testing.assert_array_equal(result[f"out{k}"], meaning(np.arange(29), limit))


COMPARISONS = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]


def ramp_of(load: Expr) -> Expr:
    """The ramp of indices at which a load reads, in front of which it stands."""
    assert isinstance(load, Load)
    return load.indices[0]


@every_target
def test_small_floats_on_every_target(target: Target) -> None:
    formulas = [*binaries(FLOAT_KINDS), *comparisons()]
    for dtype in FLOATS:
        check([numbers(dtype, seed=3), numbers(dtype, seed=4)], formulas, 8, target)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_division_rounds_down(dtype: DType, lanes: int) -> None:
    left, right = numbers(dtype, 200, seed=5), numbers(dtype, 200, seed=6)
    right[10:100] %= 11
    right[right == 0] = 3
    if dtype.is_signed_integer:
        right[:3] = -1  # the most negative number over -1 wraps around
    formulas = binaries(["FLOOR_DIVIDE", "FLOOR_MODULO"])
    for divisor in (1, 7, 8, 127):
        formulas += [
            lambda a, b, kind=kind, c=divisor: Binary(kind, a, spread(Const(c, dtype), a))
            for kind in (BinaryKind.FLOOR_DIVIDE, BinaryKind.FLOOR_MODULO)
        ]
    check([left, right], formulas, lanes)


def spread(value: Expr, like: Expr) -> Expr:
    return value if like.lanes == 1 else Broadcast(value, like.lanes)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_division_by_zero_gives_zero(dtype: DType, lanes: int) -> None:
    formulas = binaries(["FLOOR_DIVIDE", "FLOOR_MODULO"])
    kernel = compiled(elementwise([dtype, dtype], formulas, [dtype, dtype], lanes))
    arrays = {name: numbers(dtype) for name in ("in0", "out0", "out1")}
    result = run(kernel, arrays | {"in1": np.zeros(29, dtype.numpy), "n": 29})
    assert not result["out0"].any()
    assert not result["out1"].any()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_shifts(dtype: DType, lanes: int) -> None:
    left = numbers(dtype, 60, seed=7)
    inside = (np.arange(60) % dtype.bits).astype(dtype.numpy)
    check([left, inside], binaries(["SHIFT_LEFT", "SHIFT_RIGHT"]), lanes)
    # By the width or more: all bits go, but for copies of the sign.
    beyond = np.full(60, dtype.bits, dtype.numpy)
    kernel = compiled(
        elementwise([dtype] * 2, binaries(["SHIFT_LEFT", "SHIFT_RIGHT"]), [dtype] * 2, lanes)
    )
    arguments = {"in0": left, "in1": beyond, "out0": left, "out1": left, "n": 60}
    result = run(kernel, arguments)
    assert not result["out0"].any()
    np.testing.assert_array_equal(result["out1"], np.where(left < 0, -1, 0).astype(dtype.numpy))


CASTS = [DType.BOOL, *FLOATS, *SIGNED, *UNSIGNED]


@pytest.mark.each_value
@every_target
@pytest.mark.parametrize("source", CASTS)
def test_casts(source: DType, target: Target) -> None:
    values = numbers(source, 300, seed=8)
    goals = [goal for goal in CASTS if not (source.is_float and goal.is_integer)]
    formulas = [lambda a, goal=goal: Cast(goal, a) for goal in goals]
    lanes = 8 if target is host_target() else 4
    check([values], formulas, lanes, target)
    if source.is_float:  # C says nothing about numbers that the integer cannot hold
        small = np.linspace(0, 127, 301).astype(source.numpy)
        check([small], [lambda a, goal=goal: Cast(goal, a) for goal in [*SIGNED, *UNSIGNED]], lanes)
        negative = [lambda a, goal=goal: Cast(goal, a) for goal in SIGNED]
        check([(-small).astype(source.numpy)], negative, lanes)


@every_target
def test_half_conversions_are_exact(target: Target) -> None:
    """Every float16 and bfloat16, and numbers halfway between two of them."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
        formula = [lambda a: Cast(DType.FLOAT32, a)]
        kernel = compiled(elementwise([dtype], formula, [DType.FLOAT32], 8), target)
        outcome = run(kernel, {"in0": every, "out0": np.zeros(1 << 16, np.float32), "n": 1 << 16})
        np.testing.assert_array_equal(outcome["out0"], every.astype(np.float32))
        with np.errstate(invalid="ignore"):
            exactly = every.astype(np.float64)
        finite = np.sort(exactly[np.isfinite(exactly)])
        between = np.concatenate([(finite[1:] + finite[:-1]) / 2, finite * (1 + 2.0**-40)])
        for wide in (DType.FLOAT32, DType.FLOAT64):
            values = between.astype(wide.numpy)
            back = [lambda a, dtype=dtype: Cast(dtype, a)]
            kernel = compiled(elementwise([wide], back, [dtype], 8), target)
            count = len(values)
            given = {"in0": values, "out0": np.zeros(count, dtype.numpy), "n": count}
            narrow = run(kernel, given)["out0"].astype(np.float64)
            # Rounding to the nearest means that no neighbour is nearer, and that ties are even.
            low = finite[np.clip(np.searchsorted(finite, values, "right") - 1, 0, None)]
            high = finite[np.clip(np.searchsorted(finite, values, "left"), None, len(finite) - 1)]
            exact = values.astype(np.float64)
            nearest = np.where(exact - low < high - exact, low, high)
            tie = (exact - low == high - exact) & (low != high)
            even = (low.astype(dtype.numpy).view(np.uint16) & 1) == 0
            nearest = np.where(tie, np.where(even, low, high), nearest)
            inside = np.abs(exact) <= finite[-1]
            np.testing.assert_array_equal(narrow[inside], nearest[inside])


@every_target
@pytest.mark.parametrize("lanes", [1, 8])
def test_a_half_with_the_sign_of_a_double(lanes: int, target: Target) -> None:
    """LLVM takes the sign by narrowing the double, if it is let, by a function of some library."""
    formula = [
        lambda a, b: Cast(
            DType.FLOAT16, Cast(DType.FLOAT32, Call("copysign", (a, b), DType.FLOAT64))
        )
    ]
    kernel = compiled(
        elementwise([DType.FLOAT64, DType.FLOAT64], formula, [DType.FLOAT16], lanes), target
    )
    sizes, signs = np.linspace(0, 5, 21), np.tile([1e-30, -1e300, -0.0], 7)
    given = {"in0": sizes, "in1": signs, "out0": np.zeros(21, np.float16), "n": 21}
    wanted = np.copysign(sizes, signs).astype(np.float16)
    np.testing.assert_array_equal(run(kernel, given)["out0"], wanted)


UNARY = ["sqrt", "floor", "ceil", "round", "trunc", "abs", "isnan", "isinf"]


def calls(names: list[str]) -> list:
    def make(name: str):
        return lambda a: Call(name, (a,), DType.BOOL if name.startswith("is") else a.dtype)

    return [make(name) for name in names]


@every_target
@pytest.mark.parametrize("lanes", [1, 8])
def test_exact_calls(lanes: int, target: Target) -> None:
    for dtype in FLOATS:
        values = numbers(dtype, 100, seed=9)
        halves = (np.arange(-20, 20) / 4).astype(dtype.numpy)
        large = np.array([2.0**23 + 1, -(2.0**23) - 1, 2.0**53 + 2, 8388607.5])
        with np.errstate(over="ignore"):
            large = large.astype(dtype.numpy)
        check([np.concatenate([values, halves, large])], calls(UNARY), lanes, target)


@pytest.mark.parametrize("lanes", [1, 7])
def test_rounding_keeps_the_sign_of_zero(lanes: int) -> None:
    values = np.array([-0.0, 0.0, -0.25, 0.25, -0.5, 0.5], np.float32)
    formulas = calls(["floor", "ceil", "round", "trunc"])
    for target in EXTREMES:
        kernel = compiled(
            elementwise([DType.FLOAT32], formulas, [DType.FLOAT32] * 4, lanes), target
        )
        outputs = {f"out{k}": np.zeros(6, np.float32) for k in range(4)}
        result = run(kernel, {"in0": values, "n": 6} | outputs)
        for k, meaning in enumerate((np.floor, np.ceil, np.rint, np.trunc)):
            np.testing.assert_array_equal(
                np.signbit(result[f"out{k}"]), np.signbit(meaning(values)), err_msg=f"{k}"
            )


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integer_calls(dtype: DType, lanes: int) -> None:
    check([numbers(dtype, 60, seed=10)], calls(["abs", "clz", "popcount"]), lanes)


@pytest.mark.each_value
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integer_powers_wrap_around(dtype: DType, lanes: int) -> None:
    exponents = (np.arange(60) % 40).astype(dtype.numpy)
    raised = [lambda a, b: Call("pow", (a, b), a.dtype)]
    check([numbers(dtype, 60, seed=13), exponents], raised, lanes)


def test_vectors_of_one_lane_are_scalars() -> None:
    formulas = [lambda a: Broadcast(a, 1)]
    function = elementwise([DType.FLOAT32], formulas, [DType.FLOAT32], 1)
    ramp = map_stmt(function.body, lambda e: Ramp(e, 1, 1) if isinstance(e, Var) else e)
    values = np.arange(5, dtype=np.float32)
    given = {"in0": values, "out0": np.zeros(5, np.float32), "n": 5}
    for body in (function.body, ramp):
        result = run(compiled(replace(function, body=body)), given)
        np.testing.assert_array_equal(result["out0"], values)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_calls_of_several_arguments(dtype: DType, lanes: int) -> None:
    formulas = [
        lambda a, b: Call("copysign", (a, b), a.dtype),
        lambda a, b: Call("rsqrt", (a,), a.dtype),
        lambda a, b: Call("fma", (a, b, a), a.dtype),
    ]
    random = np.random.default_rng(11)
    # With few bits a product and its sum are exact, so it does not matter how often is rounded.
    left, right = (random.integers(-99, 99, 29).astype(dtype.numpy) for _ in range(2))
    check([left, right], formulas, lanes)


@pytest.mark.parametrize("lanes", [1, 8])
def test_rounding_to_what_tensor_cores_multiply(lanes: int) -> None:
    one, step = np.float32(1), np.float32(2.0**-10)
    ties = [one + step / 2, one + step * 3 / 2, one + step / 4, np.nextafter(one, one * 2)]
    all_ones = np.array([0x7FFFFFFF, -1], np.int32).view(np.float32)  # of NaN
    values = np.array([*ties, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, *all_ones], np.float32)
    function = elementwise(
        [DType.FLOAT32], [lambda a: Call("to_tf32", (a,), a.dtype)], [DType.FLOAT32], lanes
    )
    given = {"in0": np.concatenate([values, -values]), "n": 2 * len(values)}
    given["out0"] = np.zeros(2 * len(values), np.float32)
    result = run(compiled(function), given)["out0"]
    rounded = [one + step, one + 2 * step, one, one]
    np.testing.assert_array_equal(result[:4], rounded)
    np.testing.assert_array_equal(result[len(values) :][:4], np.negative(rounded))
    assert np.isnan(result[np.isnan(given["in0"])]).all()
    np.testing.assert_array_equal(result, INTRINSICS["to_tf32"].meaning(given["in0"]))


@pytest.mark.parametrize("lanes", [4, 7, 16])
@pytest.mark.parametrize("dtype", [DType.INT32, DType.FLOAT32, DType.BFLOAT16, DType.UINT8])
def test_reductions(dtype: DType, lanes: int) -> None:
    values = np.random.default_rng(12).integers(0, 9, 29).astype(dtype.numpy)
    values[values == 3] = 0
    formulas = [
        lambda a, name=name: spread(Call(name, (a,), a.dtype), a)
        for name in ("reduce_add", "reduce_max", "reduce_min")
    ]
    kernel = compiled(elementwise([dtype], formulas, [dtype] * 3, lanes))
    outputs = {f"out{k}": np.zeros(29, dtype.numpy) for k in range(3)}
    result = run(kernel, {"in0": values, "n": 29} | outputs)
    for start in range(0, 29, lanes):
        part = values[start : start + lanes].astype(np.float64)
        padded = np.concatenate([part, np.zeros(lanes - len(part))])  # what a masked load gives
        for k, meaning in enumerate((np.sum, np.max, np.min)):
            np.testing.assert_array_equal(
                result[f"out{k}"][start : start + lanes].astype(np.float64), meaning(padded)
            )


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [1, 4, 7, 16])
def test_bits_of_floats_and_comparisons(lanes: int, target: Target) -> None:
    """Floats as integers, a negative zero and NaN too, and which lanes are below another number."""
    values = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-40] * 4, np.float32)

    def below(a):
        test = Compare(CompareKind.LESS, a, spread(Const(1.0, a.dtype), a))
        return spread(Call("reduce_to_bits", (test,), DType.INT64), a)

    formulas = [lambda a: Call("bits", (a,), DType.INT32), below]
    function = elementwise([DType.FLOAT32], formulas, [DType.INT32, DType.INT64], lanes)
    given = {"in0": values, "out0": np.zeros(32, np.int32), "out1": np.zeros(32, np.int64)}
    result = run(compiled(function, target), given | {"n": 32})
    np.testing.assert_array_equal(result["out0"], values.view(np.int32))
    for start in range(0, 32 - lanes + 1, lanes):
        word = sum(int(v < 1.0) << lane for lane, v in enumerate(values[start : start + lanes]))
        np.testing.assert_array_equal(result["out1"][start : start + lanes], word)


def test_nan_wins_a_reduction() -> None:
    values = np.array([1, 5, np.nan, 2, 7, 3, 2, 1], np.float32)
    names = ("reduce_max", "reduce_min")
    formulas = [lambda a, name=name: spread(Call(name, (a,), a.dtype), a) for name in names]
    kernel = compiled(elementwise([DType.FLOAT32], formulas, [DType.FLOAT32] * 2, 8))
    outputs = {f"out{k}": np.zeros(8, np.float32) for k in range(2)}
    result = run(kernel, {"in0": values, "n": 8} | outputs)
    assert np.isnan(result["out0"]).all()
    assert np.isnan(result["out1"]).all()


def test_extremum_with_a_constant_keeps_nan() -> None:
    values = numbers(DType.FLOAT32)
    kinds = (BinaryKind.MINIMUM, BinaryKind.MAXIMUM)
    formulas = [lambda a, kind=kind: Binary(kind, a, zero(a)) for kind in kinds]
    formulas += [lambda a, kind=kind: Binary(kind, zero(a), a) for kind in kinds]
    formulas.append(lambda a: Binary(BinaryKind.MAXIMUM, a, spread(Const(np.nan, a.dtype), a)))
    for target in EXTREMES:
        check([values], formulas, 8, target)


def zero(like: Expr) -> Expr:
    return spread(Const(0.0, like.dtype), like)


@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.STRING])
def test_dtypes_that_machine_code_cannot_hold(dtype: DType) -> None:
    function = elementwise([dtype], [lambda a: a], [dtype], 1)
    with pytest.raises(UnsupportedError, match=f"cannot hold elements of {dtype.value}"):
        llvm_text(function, host_target())


def test_float_division_is_not_for_integers() -> None:
    function = elementwise([DType.INT32] * 2, binaries(["DIVIDE"]), [DType.INT32], 1)
    with pytest.raises(UnsupportedError, match="'/' has no meaning for int32"):
        llvm_text(function, host_target())


@pytest.mark.each_value
@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [1, 4, 7, 8, 16])
def test_dot_products_of_four_bytes(lanes: int, target: Target) -> None:
    """Exact where pairs of products saturate 16 bits, and where sums wrap around 32."""
    extremes = np.array([-1, 0x7F7F7F7F, -0x7F7F7F80, 0x00FF00FF, 255, 1 << 30], np.int32)
    left = np.concatenate([numbers(DType.INT32, 60, seed=31), np.repeat(extremes, 6)])
    right = np.concatenate([numbers(DType.INT32, 60, seed=32), np.tile(extremes, 6)])
    addend = numbers(DType.INT32, len(left), seed=33)
    formula = [lambda a, b, c: Call("dot4", (a, b, c), DType.INT32)]
    check([left, right, addend], formula, lanes, target)
    kernel = compiled(elementwise([DType.INT32] * 3, formula, [DType.INT32], lanes), target)
    arrays = {"in0": left, "in1": right, "in2": addend, "out0": np.zeros_like(left)}
    products = left.view(np.uint8).astype(np.int64) * right.view(np.int8)
    wanted = (products.reshape(-1, 4).sum(axis=1) + addend).astype(np.int32)
    np.testing.assert_array_equal(run(kernel, arrays | {"n": len(left)})["out0"], wanted)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("lanes", "offset"), [(1, 3.0), (4, 0.0), (7, -7.0), (8, 255.0), (16, 3.0)]
)
def test_nearest_bytes(lanes: int, target: Target, offset: float) -> None:
    """Ties, limits, and what int32 does not hold."""
    limits = [float(n) + d for n in (-129, -128, 127, 128, 0, 255, 256) for d in (-0.5, 0, 0.5, 1)]
    far = [2.0**31, -(2.0**31), 2.0**31 - 128, 3e38, -3e38, np.inf, -np.inf, np.nan, -0.0]
    values = np.array([*limits, *(n - offset for n in limits), *far, 1.5, 2.5], np.float32)
    names = {"to_int8": DType.INT8, "to_uint8": DType.UINT8}

    def formulas():
        for name, dtype in names.items():
            yield lambda a, n=name, d=dtype: Call(n, (a, spread(Const(offset, a.dtype), a)), d)

    function = elementwise([DType.FLOAT32], list(formulas()), list(names.values()), lanes)
    outputs = {f"out{k}": np.zeros(len(values), d.numpy) for k, d in enumerate(names.values())}
    found = run(compiled(function, target), {"in0": values, "n": len(values)} | outputs)
    rounded = np.rint(np.where(np.isnan(values), -np.inf, values.astype(np.float64))) + offset
    for k, dtype in enumerate(names.values()):
        info = np.iinfo(dtype.numpy)
        np.testing.assert_array_equal(found[f"out{k}"], np.clip(rounded, info.min, info.max))


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_products_of_repeated_pairs(lanes: int, target: Target) -> None:
    """A pair as often as it fits into a vector, and sums of neighbouring lanes."""
    source = Buffer("source", DType.FLOAT32, (Const(2),))
    rows = Buffer("rows", DType.FLOAT32, (Const(2), Const(lanes)))
    result = Buffer("result", DType.FLOAT32, (Const(lanes),))
    at, pair = Ramp(Const(0), 1, lanes), Load(source, (Ramp(Const(0), 1, 2),))
    repeated = Broadcast(pair, lanes) if lanes > 2 else pair
    products = tuple(
        Binary(BinaryKind.MULTIPLY, repeated, Load(rows, (Const(row), at))) for row in (0, 1)
    )
    body = Store(result, (at,), Call("add_pairs", products, DType.FLOAT32))
    function = Function("kernel", (source, rows, result), body)
    draw = np.random.default_rng(3)
    values = {
        "source": draw.standard_normal(2, np.float32),
        "rows": draw.standard_normal((2, lanes), np.float32),
    }
    sums = (values["rows"].reshape(2, lanes // 2, 2) * values["source"]).sum(axis=-1)
    expected = sums.T.reshape(-1)
    for found in (
        run(compiled(function, target), values | {"result": np.zeros(lanes, np.float32)}),
        interpreted(function, values | {"result": np.zeros(lanes, np.float32)}),
    ):
        np.testing.assert_array_equal(found["result"], expected)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_rows_of_bytes_as_words(lanes: int, target: Target) -> None:
    source = Buffer("source", DType.UINT8, (Const(4 * lanes),))
    result = Buffer("result", DType.INT32, (Const(lanes),))
    whole = Load(source, (Ramp(Const(0), 1, 4 * lanes),))
    at = Ramp(Const(0), 1, lanes) if lanes > 1 else Const(0)
    body = Store(result, (at,), Call("interleave4", (whole,), DType.INT32))
    kernel = compiled(Function("kernel", (source, result), body), target)
    rows = np.arange(100, 100 + 4 * lanes, dtype=np.uint8)
    found = run(kernel, {"source": rows, "result": np.zeros(lanes, np.int32)})["result"]
    np.testing.assert_array_equal(found[:, None].view(np.uint8), rows.reshape(4, lanes).T)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [1, 4, 7, 8, 16])
def test_dot_products_of_two_int16(lanes: int, target: Target) -> None:
    """Exact at the ends of 16 bits, and wrapping around where sums leave 32."""
    ends = np.array([-0x7FFF8000, 0x7FFF7FFF, -0x80000000 + 0x7FFF, -1, 1, 0], np.int32)
    left = np.concatenate([numbers(DType.INT32, 60, seed=41), np.repeat(ends, 6)])
    right = np.concatenate([numbers(DType.INT32, 60, seed=42), np.tile(ends, 6)])
    addend = numbers(DType.INT32, len(left), seed=43)
    formula = [lambda a, b, c: Call("dot2", (a, b, c), DType.INT32)]
    check([left, right, addend], formula, lanes, target)
    kernel = compiled(elementwise([DType.INT32] * 3, formula, [DType.INT32], lanes), target)
    arrays = {"in0": left, "in1": right, "in2": addend, "out0": np.zeros_like(left)}
    products = left.view(np.int16).astype(np.int64) * right.view(np.int16)
    wanted = (products.reshape(-1, 2).sum(axis=1) + addend).astype(np.int32)
    np.testing.assert_array_equal(run(kernel, arrays | {"n": len(left)})["out0"], wanted)


@pytest.mark.parametrize("lanes", [1, 3, 8, 16])
def test_pairs_of_int16_as_words(lanes: int) -> None:
    source = Buffer("source", DType.INT16, (Const(2 * lanes),))
    result = Buffer("result", DType.INT32, (Const(lanes),))
    whole = Load(source, (Ramp(Const(0), 1, 2 * lanes),))
    at = Ramp(Const(0), 1, lanes) if lanes > 1 else Const(0)
    kernel = compiled(
        Function(
            "kernel", (source, result), Store(result, (at,), Call("join2", (whole,), DType.INT32))
        )
    )
    pairs = np.arange(-3, 2 * lanes - 3, dtype=np.int16)
    found = run(kernel, {"source": pairs, "result": np.zeros(lanes, np.int32)})["result"]
    np.testing.assert_array_equal(found.view(np.int16), pairs)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("lanes", [1, 4, 7, 8, 16])
def test_dot_products_of_two_halves(lanes: int, target: Target) -> None:
    """As two products in float32, whichever instruction it is, subnormal numbers aside."""
    draw = np.random.default_rng(34)
    halves = draw.normal(size=(2, 64, 2)).astype(DType.BFLOAT16.numpy)
    left, right = halves.view(np.float32)[..., 0]
    addend = draw.normal(size=64).astype(np.float32)
    formula = [lambda a, b, c: Call("dot2", (a, b, c), DType.FLOAT32)]
    kernel = compiled(elementwise([DType.FLOAT32] * 3, formula, [DType.FLOAT32], lanes), target)
    arrays = {"in0": left, "in1": right, "in2": addend, "out0": np.zeros_like(left)}
    expected = halves.astype(np.float64).prod(axis=0).sum(axis=-1) + addend
    found = run(kernel, arrays | {"n": len(left)})["out0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [0, -40, (1 << 31) - 8, (1 << 31) - 700])
@pytest.mark.parametrize("kind", [BinaryKind.FLOOR_DIVIDE, BinaryKind.FLOOR_MODULO])
def test_vectors_of_indices_divided(kind: BinaryKind, first: int) -> None:
    """In 32 bits where they are known to fit: the last case and the first."""
    divisors = (7, 14, 27, 8, (1 << 31) - 1)
    rows, lanes = 40, 16
    turn, base = Var("turn"), Var("base")
    places = Ramp(base, 1, lanes)
    out = Buffer("out", DType.INT64, (Const(len(divisors)), Const(rows), Const(lanes)))
    body: Stmt = Block(
        tuple(
            Store(
                out,
                (Const(number), turn, Ramp(Const(0), 1, lanes)),
                Binary(kind, places, Const(divisor, DType.INT64, lanes)),
            )
            for number, divisor in enumerate(divisors)
        )
    )
    start = Binary(BinaryKind.ADD, Binary(BinaryKind.MULTIPLY, turn, Const(lanes)), Const(first))
    loop = For(turn, Const(0), Const(rows), Let(base, start, body))
    function = Function("kernel", (out,), loop)
    indices = np.arange(first, first + rows * lanes).reshape(rows, lanes)
    operation = np.floor_divide if kind is BinaryKind.FLOOR_DIVIDE else np.mod
    expected = np.stack([operation(indices, divisor) for divisor in divisors])
    sink = np.zeros(expected.shape, np.int64)
    np.testing.assert_array_equal(run(compiled(function), {"out": sink})["out"], expected)
    is_short = first >= 0 and first + rows * lanes <= 1 << 31
    assert ("div <16 x i64>" not in llvm_text(function, host_target())) == is_short
