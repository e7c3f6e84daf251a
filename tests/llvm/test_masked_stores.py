"""Stores of some lanes of a vector leave the memory of the others alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.llvm.kernels import compiled, run

from graft.base.dtypes import DType
from graft.loop.ir import (
    Broadcast,
    Buffer,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    Function,
    Load,
    Ramp,
    Store,
)


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT16, DType.BOOL])
def test_masked_stores_of_narrow_numbers_touch_nothing_else(dtype: DType, lanes: int) -> None:
    """Cut off wider numbers, which LLVM stores as a whole where it sees that there is just one."""
    source, target = (
        Buffer("source", DType.INT32, (Const(16),)),
        Buffer("target", dtype, (Const(16),)),
    )
    all_lanes = Ramp(Const(0), 1, 16)
    value: Expr = Load(source, (all_lanes,))
    if dtype is DType.BOOL:
        value = Compare(CompareKind.NOT_EQUAL, value, Const(0, DType.INT32, 16))
    else:
        value = Cast(dtype, value)
    mask = Compare(CompareKind.LESS, all_lanes, Broadcast(Const(lanes), 16))
    function = Function("kernel", (source, target), Store(target, (all_lanes,), value, mask))
    untouched = np.full(16, 1 if dtype is DType.BOOL else 93).astype(dtype.numpy)
    source_numbers = np.zeros(16, np.int32)
    found = run(compiled(function), {"source": source_numbers, "target": untouched})["target"]
    assert not found[:lanes].any()
    np.testing.assert_array_equal(found[lanes:], untouched[lanes:])
