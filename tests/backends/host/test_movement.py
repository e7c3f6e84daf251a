"""Data movement, alone and among pointwise nodes: scheduled, with results cut into boxes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check, made

from graft.backends.host.kernel import Kernel
from graft.backends.host.kernels.expression.template import expression
from graft.loop.ir import For, LoopKind
from graft.loop.print import to_text
from graft.loop.traverse import walk_stmt


@pytest.mark.each_value
@pytest.mark.parametrize("axes", list(permutations(range(3))))
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_transposes(axes: tuple[int, ...], dtype: str) -> None:
    case = Case()
    check(expression, case, case("transpose", case.input(3, 70, 19, dtype=dtype), axes=axes))


def test_heads_from_rows_and_back() -> None:
    case = Case()
    y = case("reshape", case.input(2, 7, 3 * 4 * 16), shape=(2, 7, 3, 4, 16))
    y = case("transpose", y, axes=(2, 0, 3, 1, 4))
    check(expression, case, *case.builder.call("split", y, axis=0, sections=3))
    case = Case()
    y = case(
        "reshape", case("transpose", case.input(2, 4, 7, 16), axes=(0, 2, 1, 3)), shape=(2, 7, 64)
    )
    check(expression, case, case("nn.relu", y))


@pytest.mark.parametrize("shape", [(6, 35), (2, 3, 5, 7), (210,), (1, 7, 30), (14, 15)])
def test_reshapes_between_transposes(shape: tuple[int, ...]) -> None:
    """Lanes do not always stay neighbours."""
    case = Case()
    y = case("transpose", case.input(5, 6, 7), axes=(1, 0, 2))
    y = case("reshape", y, shape=shape)
    check(expression, case, case("transpose", y, axes=tuple(reversed(range(len(shape))))))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenations(axis: int) -> None:
    case = Case()
    parts = []
    for extent in (1, 17, 4):
        shape = [3, 4, 5]
        shape[axis] = extent
        parts.append(case("exp", case.input(*shape)))
    y = case("concatenate", *parts, axis=axis)
    check(expression, case, case("add", y, case.constant(*(int(d) for d in y.shape or ()))))


@pytest.mark.parametrize("axis", [0, 1])
def test_splits_of_different_sizes(axis: int) -> None:
    case = Case()
    x = case.input(*((20, 6) if axis == 0 else (6, 20)))
    check(expression, case, *case.builder.call("split", x, axis=axis, sizes=(3, 16, 1)))


@pytest.mark.parametrize(
    ("begin", "end", "strides"),
    [((1, 2), (4, 40), (1, 1)), ((-1, -1), (-9, -90), (-2, -3)), ((0, 1), (9, 37), (3, 7))],
)
def test_slices(begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...]) -> None:
    case = Case()
    x = case.input(2, 5, 37)
    check(
        expression,
        case,
        case("strided_slice", x, begin=begin, end=end, axes=(1, 2), strides=strides),
    )


@pytest.mark.parametrize("width", [(0, 0, 1, 2, 0, 3), (2, 0, 0, 0, 1, 0), (0, -1, -2, 1, 0, 20)])
def test_padding(width: tuple[int, ...]) -> None:
    case = Case()
    check(expression, case, case("nn.pad", case.input(2, 3, 19), pad_width=width, value=2.5))


def test_repetition() -> None:
    case = Case()
    check(expression, case, case("tile", case.input(2, 1, 16), reps=(2, 3, 2)))
    case = Case()
    check(expression, case, case("tile", case.input(2, 5), reps=(1, 7)))
    case = Case()
    check(expression, case, case("broadcast_to", case.input(5, 1), shape=(2, 5, 33)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_constant_indices(axis: int) -> None:
    for indices in (np.int64(-1), np.array([[2, 0], [1, 1]])):
        case = Case()
        check(
            expression,
            case,
            case("take", case.input(3, 4, 19), case.builder.constant(indices), axis=axis),
        )


def test_joined_results_are_cut_into_boxes() -> None:
    case = Case()
    y = case("concatenate", case.input(6, 5), case.input(6, 33), axis=1)
    case_of_pad = Case()
    z = case_of_pad("nn.pad", case_of_pad.input(5, 7), pad_width=(1, 2, 0, 3), value=1.0)
    for graph, loops in ((case.graph(y), 2), (case_of_pad.graph(z), 4)):
        kernel = made(expression, graph)
        assert isinstance(kernel, Kernel)
        assert "select" not in to_text(kernel.function)
        found = [s for s in walk_stmt(kernel.function.body) if isinstance(s, For)]
        assert sum(one.kind is LoopKind.PARALLEL for one in found) == loops


def test_decisions_along_an_axis_that_is_split_stay() -> None:
    case = Case()
    y = case("concatenate", case.input(3, 4), case.input(2, 4), axis=0)
    check(expression, case, case("transpose", case("reshape", y, shape=(2, 5, 2)), axes=(1, 0, 2)))


def test_many_operands_are_joined() -> None:
    case = Case()
    parts = [case.input(2, 3) for _ in range(70)]
    check(expression, case, case("concatenate", *parts, axis=1))
