"""The interpreter: each statement and the corners of arithmetic do what the IR says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graft.base.errors import EvaluationError
from graft.loop.interpret import interpret
from graft.loop.parse import from_text


def value_of(expr: str, dtype: str = "float32", **scalars: Any) -> Any:
    """An expression's value, stored to an array of one element."""
    names = "".join(f", {name}: {kind}" for name, (kind, _) in scalars.items())
    result = np.zeros(1, dtype)
    function = from_text(f"kernel f(y: {dtype}[1]{names}) {{ y[0] = {expr} }}")
    interpret(function, {"y": result, **{name: value for name, (_, value) in scalars.items()}})
    return result[0]


@pytest.mark.parametrize(
    ("expr", "dtype", "expected"),
    [
        ("-7 // 2", "int64", -4),
        ("-7 % 3", "int64", 2),
        ("9223372036854775807 + 1", "int64", -(2**63)),
        ("100:int8 + 100:int8", "int8", -56),
        ("200:uint8 * 2:uint8", "uint8", 144),
        ("-8:int32 >> 1:int32", "int32", -4),
        ("int32(-2.7)", "int32", -2),
        ("min(nan, 1.0)", "float32", np.nan),
        ("max(1.0, nan)", "float32", np.nan),
        ("select(nan < 1.0, 1.0, 2.0)", "float32", 2.0),
        ("select(nan != nan, 1.0, 2.0)", "float32", 1.0),
        ("round(2.5)", "float32", 2.0),
        ("1.0 / 0.0", "float32", np.inf),
        ("reduce_add(float32(ramp(1, 2, 4)))", "float32", 16.0),
        ("popcount(-1:int32)", "int32", 32),
        ("clz(1:int32)", "int32", 31),
        ("isnan:bool(nan)", "bool", True),
        ("16777216.0 + 1.0", "float32", 16777216.0),
        ("fma(16777216.0, 1.0, 1.0)", "float32", 16777216.0),
        ("6 ^ 3 | 8", "int64", 13),
    ],
)
def test_arithmetic(expr: str, dtype: str, expected: float) -> None:
    np.testing.assert_equal(value_of(expr, dtype), np.array(expected).astype(dtype)[()])


def test_scalar_parameters_keep_their_dtype() -> None:
    assert value_of("float32(a + 0.1:float64)", a=("float64", 0.2)) == np.float32(
        0.30000000000000004
    )
    assert value_of("b + 1:int8", "int8", b=("int8", 127)) == -128


def test_gather_scatter_and_masks() -> None:
    x = np.arange(8, dtype=np.float32)
    index = np.array([3, 0, 7, 5], np.int64)
    y = np.full(8, -1, np.float32)
    text = """kernel f(x: float32[8], i: int64[4], y: float32[8]) {
      y[ramp(0, 2, 4)] = x[i[ramp(0, 1, 4)]] where x[i[ramp(0, 1, 4)]] > 2.5:float32x4
    }"""
    interpret(from_text(text), {"x": x, "i": index, "y": y})
    assert y.tolist() == [3, -1, -1, -1, 7, -1, 5, -1]


LANES = "ramp(0, 1, 4)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"y[{LANES}] = select({LANES} < 3:int64x4, x[{LANES}], 9.0:float32x4)", [1, 2, 3, 9]),
        (f"y[{LANES}] = select({LANES} >= 3:int64x4, 9.0:float32x4, x[{LANES}])", [1, 2, 3, 9]),
        (f"y[{LANES}] = x[{LANES}] where {LANES} < 3:int64x4", [1, 2, 3, -1]),
        (
            f"y[{LANES}] = select({LANES} > 0:int64x4, x[ramp(-1, 1, 4)], x[ramp(2, 1, 4)])"
            f" where {LANES} < 2:int64x4",
            [3, 1, -1, -1],
        ),
        (f"y[{LANES}] = 1.0:float32x4 / x[{LANES}] where {LANES} < 2:int64x4", [1, 0.5, -1, -1]),
        (
            f"y[{LANES}] = float32(broadcast(6, 4) // int64(x[{LANES}])) where {LANES} < 3:int64x4",
            [6, 3, 2, -1],
        ),
        (
            f"y[0] = reduce_add(select({LANES} < 3:int64x4, x[{LANES}], 4.0:float32x4))",
            [10, -1, -1, -1],
        ),
        ("y[0] = x[n + 7] where n < 0", [-1, -1, -1, -1]),
    ],
)
def test_masks_keep_reads_inside(body: str, expected: list[float]) -> None:
    function = from_text(f"kernel f(x: float32[3], y: float32[4], n: int64) {{ {body} }}")
    y = np.full(4, -1, np.float32)
    interpret(function, {"x": np.array([1, 2, 3], np.float32), "y": y, "n": 0})
    assert y.tolist() == expected


def test_a_choice_by_data_is_no_mask() -> None:
    condition = f"y[{LANES}] < 0.0:float32x4"
    text = f"y[{LANES}] = select({condition}, 1.0:float32x4, x[{LANES}])"
    function = from_text(f"kernel f(x: float32[3], y: float32[4]) {{ {text} }}")
    arrays = {"x": np.zeros(3, np.float32), "y": np.full(4, -1, np.float32)}
    with pytest.raises(EvaluationError, match="out of bounds"):
        interpret(function, arrays)


def test_while_let_and_if() -> None:
    y = np.zeros(1, np.int64)
    text = """kernel collatz(y: int64[1], n: int64) {
      allocate state: int64[] in register {
        state[] = n
        while state[] != 1 {
          let old: int64 = state[] {
            if old % 2 == 0 { state[] = old // 2 } else { state[] = old * 3 + 1 }
          }
          y[0] = y[0] + 1
        }
      }
    }"""
    interpret(from_text(text), {"y": y, "n": 27})
    assert y[0] == 111


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_share_parallel_loops_and_meet_at_barriers(threads: int) -> None:
    y, total = np.zeros(7, np.int64), np.zeros(1, np.int64)
    text = """kernel f(y: int64[7], total: int64[1]) {
      parallel for i in 0 +: 7 { y[i] = i * i }
      barrier
      parallel for j in 0 +: 7 { atomic total[0] += y[6 - j] }
    }"""
    interpret(from_text(text), {"y": y, "total": total}, threads=threads)
    assert y.tolist() == [0, 1, 4, 9, 16, 25, 36]
    assert total[0] == 91


def test_each_thread_runs_the_serial_parts() -> None:
    total = np.zeros(1, np.int64)
    interpret(from_text("kernel f(t: int64[1]) { atomic t[0] += 1 }"), {"t": total}, threads=3)
    assert total[0] == 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[4] = 0.0", "'y[4]' is out of bounds: the shape is [4]"),
        ("y[0] = y[-1]", "'y[-1]' is out of bounds"),
        ("y[ramp(1, 1, 4)] = 0.0:float32x4", "is out of bounds"),
        ("y[ramp(2, 1, 4)] = 0.0:float32x4 where ramp(0, 1, 4) < 3:int64x4", "out of bounds"),
        ("y[1 // (n - n)] = 0.0", "an integer is divided by zero"),
        ("y[0] = nonsense(1.0)", "no intrinsic is called 'nonsense'"),
    ],
)
def test_what_has_no_meaning_is_an_error(body: str, message: str, threads: int) -> None:
    function = from_text(f"kernel f(y: float32[4], n: int64) {{ {body} barrier }}")
    with pytest.raises(EvaluationError) as failure:
        interpret(function, {"y": np.zeros(4, np.float32), "n": 1}, threads=threads)
    assert message in failure.value.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": np.zeros(3, np.float32), "n": 4}, "shape (3,) where (4,) is expected"),
        ({"y": np.zeros(4, np.float64), "n": 4}, "has to be an array of float32"),
        ({"y": np.zeros(4, np.float32)}, "missing or unknown arguments: n"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError) as failure:
        interpret(from_text("kernel f(y: float32[n], n: int64) { }"), arguments)
    assert message in failure.value.message


def test_fresh_memory_is_not_zero() -> None:
    y = np.zeros(1, np.float32)
    text = "kernel f(y: float32[1]) { allocate a: float32[1] in heap { y[0] = a[0] } }"
    interpret(from_text(text), {"y": y})
    assert np.isnan(y[0])
