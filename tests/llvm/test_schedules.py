"""Lowered tensor expressions as machine code: schedules change how, never what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.llvm.kernels import compiled, elementwise, run
from tests.loop.blur import SIZES, blur, expected
from tests.loop.kernels import Kernel
from tests.loop.schedules import schedules
from tests.loop.test_lower import CASES

from graft.base.dtypes import Array, DType
from graft.llvm.compile import assembly
from graft.llvm.load import shape_of
from graft.loop.errors import ScheduleError
from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import Broadcast, Buffer, Call, Function
from graft.loop.lower import lower
from graft.loop.schedule import parse_schedule
from graft.target.target import named_target

sizes = st.sampled_from(SIZES)


@settings(max_examples=examples(500))
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


def arguments_of(function: Function, sizes: dict[str, int]) -> dict[str, Array | int]:
    """Small multiples of a quarter for every buffer, and the sizes."""
    generator = np.random.default_rng(1)
    result: dict[str, Array | int] = dict(sizes)
    for parameter in function.parameters:
        if isinstance(parameter, Buffer):
            shape = shape_of(parameter, function, sizes)
            values = generator.integers(-8, 9, shape) / 4
            result[parameter.name] = values.astype(parameter.dtype.numpy)
    return result


@pytest.mark.parametrize(
    ("kernel", "schedule", "sizes"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_operators_of_networks(kernel: Kernel, schedule: str, sizes: dict[str, int]) -> None:
    *inputs, output = (tensor.name for tensor in kernel.arguments)
    function = lower("kernel", kernel.arguments, parse_schedule(schedule))
    arguments = arguments_of(function, sizes)
    expected = kernel.meaning(*(arguments[name] for name in inputs))
    native = compiled(function)
    for threads in (1, 2):
        result = run(native, arguments, threads)
        np.testing.assert_allclose(result[output], expected, rtol=1e-5, atol=1e-6)


def test_every_intrinsic_is_known() -> None:
    """On the dtypes that the table allows, in vectors, for a processor with few features."""
    for name, intrinsic in INTRINSICS.items():
        # of narrow vectors and of truth values, see test_expressions
        if name in ("interleave4", "join2", "reduce_to_bits"):
            continue
        integers = name in ("clz", "popcount", "dot4", "nibble")
        dtype = DType.INT32 if integers else DType.FLOAT32
        result = intrinsic.result(dtype)

        def formula(a, name=name, arity=intrinsic.arity, result=result):
            value = Call(name, (a,) * arity, result)
            return Broadcast(value, a.lanes) if value.lanes != a.lanes else value

        function = elementwise([dtype], [formula], [result], 8)
        assert "kernel:" in assembly(function, named_target("x86-64"))
