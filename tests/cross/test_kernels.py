"""The tests of machine code once more: expressions, functions, statements and schedules."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cross.again import repeated
from tests.llvm import test_compile, test_expressions, test_math, test_schedules, test_statements
from tests.llvm.test_expressions import CASTS

from graft.base.dtypes import DType
from graft.llvm.math import KERNELS
from graft.target.target import Target

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("machine")]

SCHEDULES = "test_schedules_every_legal_schedule_computes_the_same"
AGAIN = repeated(test_expressions, test_math, test_statements, test_schedules)
every_schedule = AGAIN.pop(SCHEDULES)
globals().update(AGAIN)

DTYPES = [DType.FLOAT32, DType.FLOAT64]


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.data(),
    test_schedules.sizes,
    test_schedules.sizes,
    st.booleans(),
    st.sampled_from([1, 2, 3]),
)
def test_legal_schedules(
    data: st.DataObject, rows: int, columns: int, symbolic: bool, threads: int
) -> None:
    every_schedule.hypothesis.inner_test(data, rows, columns, symbolic, threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"pow"}))
def test_functions_of_one_argument(name: str, dtype: DType, machine: Target) -> None:
    test_math.test_functions_of_one_argument(name, dtype, machine)


@pytest.mark.parametrize("dtype", DTYPES)
def test_power(dtype: DType, machine: Target) -> None:
    test_math.test_power(dtype, machine)


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: DType, machine: Target) -> None:
    test_expressions.test_casts(source, machine)


@pytest.mark.parametrize("lanes", [1, 8])
def test_exact_calls(lanes: int, machine: Target) -> None:
    test_expressions.test_exact_calls(lanes, machine)


def test_small_floats(machine: Target) -> None:
    test_expressions.test_small_floats_on_every_target(machine)
    test_expressions.test_half_conversions_are_exact(machine)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.BOOL, DType.BFLOAT16])
def test_masked_tails(dtype: DType, machine: Target) -> None:
    test_statements.test_masked_tails_touch_nothing_else(dtype, machine)


def test_micro_kernel(machine: Target) -> None:
    test_compile.test_micro_kernel_multiplies(machine)
