"""Lowered tensor expressions as machine code: schedules change how, never what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.llvm.kernels import compiled, elementwise, interpreted, run
from tests.loop.blur import SIZES, blur, expected
from tests.loop.kernels import gemm
from tests.loop.schedules import schedules

from graft.base.dtypes import DType
from graft.llvm.compile import assembly
from graft.llvm.target import named_target
from graft.loop.errors import ScheduleError
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import Broadcast, Call
from graft.loop.lower import lower
from graft.loop.schedule import parse_schedule

sizes = st.sampled_from(SIZES)


@given(st.data(), sizes, sizes, st.booleans(), st.sampled_from([1, 2, 3]))
def test_every_legal_schedule_computes_the_same(
    data: st.DataObject, rows: int, columns: int, symbolic: bool, threads: int
) -> None:
    tensors = blur(rows, columns, symbolic)
    try:
        function = lower("blur", tensors, data.draw(schedules(tensors)))
    except ScheduleError:
        assume(False)
        return
    generator = np.random.default_rng(rows * 31 + columns)
    x = generator.integers(-9, 9, (rows, columns)).astype(np.int32)
    w = generator.integers(-9, 9, (3, 2)).astype(np.int32)
    arguments = {"x": x, "w": w, "out": np.full((rows, columns), -99, np.int32)}
    names = {parameter.name for parameter in function.parameters}
    scalars = {"n": rows, "m": columns}
    arguments |= {name: value for name, value in scalars.items() if name in names}
    result = run(compiled(function), arguments, threads)
    np.testing.assert_array_equal(result["out"], expected(x, w))


GEMM = (
    "c: split(i, io, ii, 6, remainder) split(j, jo, ji, 8, guard) reorder(io, jo, p, ii, ji)"
    " vectorize(ji) unroll(ii) parallel(io)"
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("m", "n", "k"), [(12, 32, 7), (7, 19, 5), (1, 1, 1)])
def test_a_blocked_matrix_product(m: int, n: int, k: int, threads: int) -> None:
    function = lower("gemm", gemm(m, n, k).arguments, parse_schedule(GEMM))
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    arguments = {"a": a, "b": b, "c": np.zeros((m, n), np.float32)}
    result = run(compiled(function), arguments, threads)
    np.testing.assert_array_equal(result["c"], a @ b)


def test_every_intrinsic_is_known() -> None:
    """On the dtypes that the table allows, in vectors, for a processor with few features."""
    for name, intrinsic in INTRINSICS.items():
        integers = name in ("clz", "popcount")
        dtype = DType.INT32 if integers else DType.FLOAT32
        result = intrinsic.result(dtype)

        def formula(a, name=name, arity=intrinsic.arity, result=result):
            value = Call(name, (a,) * arity, result)
            return Broadcast(value, a.lanes) if value.lanes != a.lanes else value

        function = elementwise([dtype], [formula], [result], 8)
        assert "kernel:" in assembly(function, named_target("x86-64"))


def test_interpreter_and_machine_agree_on_a_lowered_kernel() -> None:
    function = lower("gemm", gemm(5, 9, 4, DType.INT32).arguments, parse_schedule(GEMM))
    arguments = {
        "a": np.arange(20, dtype=np.int32).reshape(5, 4),
        "b": np.arange(36, dtype=np.int32).reshape(4, 9),
        "c": np.zeros((5, 9), np.int32),
    }
    np.testing.assert_array_equal(
        run(compiled(function), arguments)["c"], interpreted(function, arguments)["c"]
    )
