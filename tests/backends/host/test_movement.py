"""Data movement by index, alone and among pointwise nodes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels.index_map import Index, reshaped
from graft.backends.host.kernels.movement import movement
from graft.loop.ir import Const


@pytest.mark.parametrize("axes", list(permutations(range(3))))
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_transposes(axes: tuple[int, ...], dtype: str) -> None:
    case = Case()
    check(movement, case, case("transpose", case.input(3, 70, 19, dtype=dtype), axes=axes))


def test_heads_from_rows_and_back() -> None:
    case = Case()
    y = case("reshape", case.input(2, 7, 3 * 4 * 16), shape=(2, 7, 3, 4, 16))
    y = case("transpose", y, axes=(2, 0, 3, 1, 4))
    check(movement, case, *case.builder.call("split", y, axis=0, sections=3))
    case = Case()
    y = case("transpose", case.input(2, 4, 7, 16), axes=(0, 2, 1, 3))
    check(movement, case, case("reshape", y, shape=(2, 7, 64)))


@pytest.mark.parametrize("shape", [(6, 35), (2, 3, 5, 7), (210,), (1, 7, 30), (14, 15)])
def test_reshapes_between_transposes(shape: tuple[int, ...]) -> None:
    """Lanes do not always stay neighbours."""
    case = Case()
    y = case("transpose", case.input(5, 6, 7), axes=(1, 0, 2))
    y = case("reshape", y, shape=shape)
    check(movement, case, case("transpose", y, axes=tuple(reversed(range(len(shape))))))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenations(axis: int) -> None:
    case = Case()
    parts = []
    for extent in (1, 17, 4):
        shape = [3, 4, 5]
        shape[axis] = extent
        parts.append(case("exp", case.input(*shape)))
    y = case("concatenate", *parts, axis=axis)
    check(movement, case, case("add", y, case.constant(*(int(d) for d in y.shape or ()))))


@pytest.mark.parametrize("axis", [0, 1])
def test_splits_of_different_sizes(axis: int) -> None:
    case = Case()
    x = case.input(*((20, 6) if axis == 0 else (6, 20)))
    check(movement, case, *case.builder.call("split", x, axis=axis, sizes=(3, 16, 1)))


@pytest.mark.parametrize(
    ("begin", "end", "strides"),
    [((1, 2), (4, 40), (1, 1)), ((-1, -1), (-9, -90), (-2, -3)), ((0, 1), (9, 37), (3, 7))],
)
def test_slices(begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...]) -> None:
    case = Case()
    x = case.input(2, 5, 37)
    check(
        movement,
        case,
        case("strided_slice", x, begin=begin, end=end, axes=(1, 2), strides=strides),
    )


@pytest.mark.parametrize("width", [(0, 0, 1, 2, 0, 3), (2, 0, 0, 0, 1, 0), (0, -1, -2, 1, 0, 20)])
def test_padding(width: tuple[int, ...]) -> None:
    case = Case()
    check(movement, case, case("nn.pad", case.input(2, 3, 19), pad_width=width, value=2.5))


def test_repetition() -> None:
    case = Case()
    check(movement, case, case("tile", case.input(2, 1, 16), reps=(2, 3, 2)))
    case = Case()
    check(movement, case, case("tile", case.input(2, 5), reps=(1, 7)))
    case = Case()
    check(movement, case, case("broadcast_to", case.input(5, 1), shape=(2, 5, 33)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_constant_indices(axis: int) -> None:
    for indices in (np.int64(-1), np.array([[2, 0], [1, 1]])):
        case = Case()
        check(
            movement,
            case,
            case("take", case.input(3, 4, 19), case.builder.constant(indices), axis=axis),
        )


def test_refusals() -> None:
    case = Case()
    y = case("take", case.input(3, 4), case.given(np.array([1])))
    assert "run time" in refusal(movement, case, y)
    case = Case()
    assert "nothing moves" in refusal(movement, case, case("exp", case.input(3)))
    case = Case()
    y = case("nn.pad", case.input(3, 4), pad_width=(1, 1, 1, 1), mode="edge")
    assert "constants" in refusal(movement, case, y)


def test_reshaped_indices_keep_what_is_known() -> None:
    at = (Index(Const(2), 2, 2, axis=0), Index(Const(16), 0, 63, stride=1, axis=1))
    found = reshaped(at, (3, 64), (1, 3, 4, 16), 16)
    assert [index.stride for index in found] == [0, 0, 0, 1]
    assert (found[1].axis, found[3].low, found[3].high) == (0, 0, 15)
