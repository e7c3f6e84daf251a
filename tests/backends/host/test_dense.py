"""Dense layers on row-major tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels import dense as dense_module
from graft.backends.host.kernels.dense import dense, pack_units
from graft.backends.host.kernels.product import (
    ProductSchedule,
    blocked_schedule,
    default_schedule,
)
from graft.base.dtypes import DType
from graft.target.machine import MACHINES
from graft.target.target import Target, named_target


@pytest.mark.parametrize(
    ("shape", "units"),
    [
        ((1, 5), 3),
        ((5,), 19),
        ((2, 40), 64),
        ((3, 2, 33), 31),
        ((1, 29, 17), 48),
        ((4, 70), 100),
        ((3, 7, 11), 65),
    ],
)
def test_any_shape(shape: tuple[int, ...], units: int) -> None:
    case = Case()
    check(dense, case, case("nn.dense", case.input(*shape), case.constant(units, shape[-1])))


@pytest.mark.parametrize("batch", [1, 3])
def test_epilogue(batch: int) -> None:
    case = Case()
    y = case("nn.dense", case.input(batch, 15, 20), case.constant(37, 20))
    y = case("nn.bias_add", y, case.constant(37), axis=2)
    y = case("nn.gelu", y)
    y = case("add", y, case.input(batch, 15, 37))
    y = case("clip", y, a_min=-1.0, a_max=2.0)
    check(dense, case, y)


def test_operands_that_have_some_of_the_leading_axes() -> None:
    case = Case()
    y = case("nn.dense", case.input(3, 5, 8), case.constant(33, 8))
    y = case("multiply", y, case.input(3, 1, 33))
    y = case("subtract", y, case.constant(5, 1))
    check(dense, case, case("nn.relu", y))


def test_the_data_added_to_its_own_product() -> None:
    case = Case()
    x = case.input(7, 24)
    check(dense, case, case("add", case("nn.dense", x, case.constant(24, 24)), x))


def test_float64() -> None:
    case = Case()
    x, w = case.input(6, 30, dtype="float64"), case.constant(11, 30, dtype="float64")
    check(dense, case, case("nn.dense", x, w), tolerance=1e-13)


def test_weights_at_run_time_are_refused() -> None:
    case = Case()
    assert "not constant" in refusal(
        dense, case, case("nn.dense", case.input(2, 3), case.input(4, 3))
    )


def test_integers_are_refused() -> None:
    case = Case()
    x, w = case.input(2, 3, dtype="int32"), case.constant(4, 3, dtype="int32")
    assert "not of float32" in refusal(dense, case, case("nn.dense", x, w))


@pytest.mark.parametrize("name", ["znver3", "znver4", "icelake-server", "neoverse-v1"])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_a_row_has_sums_enough_for_their_latency(name: str, cores: int) -> None:
    """One sum for a row waited for each multiply-add before it; the cores share the panels."""
    machine = replace(MACHINES[name], cores=cores)
    target = replace(named_target("x86-64-v3"), machine=machine)
    lanes = target.lanes(DType.FLOAT32)
    for panels in (4, 20, 64):
        schedule = default_schedule(target, DType.FLOAT32, 1, panels * lanes)
        shares = -(-panels // schedule.vectors) / cores
        assert schedule.vectors > 1 or shares < 2
    assert default_schedule(target, DType.FLOAT32, 4, 4096).vectors > 1


def test_packed_weights() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    packed = pack_units(weight, 2)
    assert packed.tolist() == [[[0, 2], [1, 3]], [[4, 0], [5, 0]]]


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "x86-64-v4", "aarch64"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 197])
def test_tiles_fit_into_the_registers(name: str, rows: int) -> None:
    target = named_target(name)
    schedule = default_schedule(target, DType.FLOAT32, rows, 4096)
    used = (schedule.rows + 1) * schedule.vectors + 1
    assert used <= target.vector_registers


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize(
    ("shape", "units"),
    [((7, 96), 200), ((2, 13, 64), 33), ((1, 32), 16)],  # no whole tiles, blocks and groups
)
def test_parts_of_the_depth(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], units: int, group: int
) -> None:
    def in_parts(
        target: Target, dtype: DType, rows: int, columns: int, depth: int
    ) -> ProductSchedule:
        plain = default_schedule(target, dtype, rows, columns)
        return replace(plain, depth_block=depth // 2, group=group)

    monkeypatch.setattr(dense_module, "blocked_schedule", in_parts)
    case = Case()
    y = case("nn.dense", case.input(*shape), case.constant(units, shape[-1]))
    y = case("nn.bias_add", y, case.constant(units), axis=len(shape) - 1)
    check(dense, case, case("add", y, case.input(*shape[:-1], units)), tolerance=1e-4)


@pytest.mark.parametrize("name", ["cascadelake", "icelake-server"])
def test_long_sums_are_done_in_parts(name: str) -> None:
    """Where a block's weights are too many for the second cache, and only there."""
    target = named_target(name)
    short = blocked_schedule(target, DType.FLOAT32, 197, 768, 256)
    long = blocked_schedule(target, DType.FLOAT32, 197, 768, 8192)
    assert short.depth_block == 0
    part = long.depth_block
    assert part > 0
    assert 8192 % part == 0
    assert part * long.width * 4 < target.machine.caches[1].size
    assert blocked_schedule(target, DType.FLOAT32, 197, 768, 8191).depth_block == 0  # a prime
