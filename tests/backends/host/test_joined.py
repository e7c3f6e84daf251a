"""Concatenations, splits and slices that need no copy: the numbers are right, and no step is."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.nets import Net

import graft
from graft.backends.host.aliases import located
from graft.backends.host.lowering.assemble import NativeStep, assemble
from graft.backends.host.lowering.buffers import Part, Slot, part_of
from graft.backends.host.lowering.builder import build_assembled
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.backends.host.storage import Storage
from graft.base.dtypes import DType
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.runtime.session import Session
from graft.target.target import host_target


def _labels(graph: Graph) -> list[str]:
    steps = assemble(graph, host_target()).steps
    return [step.label for step in steps if isinstance(step, NativeStep)]


def _check(graph: Graph) -> list[str]:
    """The program's numbers are the evaluator's; gives the labels of its steps."""
    target = host_target()
    random = np.random.default_rng(1)
    shapes = [tuple(v.shape or ()) for v in graph.inputs]
    data = [random.standard_normal(shape, np.float32) for shape in shapes]  # type: ignore[arg-type]
    compiler = SegmentCompiler(target, Accuracy.DEFAULT, {})
    built = build_assembled(graph, assemble(graph, target), compiler)
    for threads in (1, 2):
        session = Session(built.program, threads, built.supplied)
        feeds = {value.name: array for value, array in zip(graph.inputs, data, strict=True)}
        for found, wanted in zip(session.run(None, feeds), evaluate(graph, data), strict=True):
            largest = float(np.abs(wanted).max(initial=1))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * largest)
    return _labels(graph)


@pytest.mark.parametrize(
    ("channels", "width", "copied"),
    [
        ((32, 16, 48), 11, False),
        ((24, 8, 16), 12, False),
        ((24, 8, 16), 11, True),  # three blocks of 8 channels of odd images end amid a cache line
    ],
)
def test_branches_write_into_their_part(
    channels: tuple[int, int, int], width: int, copied: bool
) -> None:
    n = Net()
    x = n.input(1, 16, 9, width)
    first, second, third = channels
    parts = [n("nn.relu", y) for y in (n.conv(x, first), n.conv(x, second, 3), n.conv(x, third))]
    pool = n("nn.max_pool2d", x, pool_size=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    y = n("concatenate", *parts, pool, axis=1)
    # a reader with padding, so the parts have its halo; 9x9 is no size for Winograd's algorithm
    labels = _check(n.graph(n.conv(y, 16, 9)))
    assert ("concatenate" in labels) == copied


def test_parts_of_odd_channels_are_copied() -> None:
    n = Net()
    x = n.input(1, 16, 6, 6)
    y = n("concatenate", n.conv(x, 12), n.conv(x, 20), axis=1)
    assert any("concatenate" in label for label in _check(n.graph(n.conv(y, 16, 3))))


def test_a_batch_is_copied() -> None:
    n = Net()
    x = n.input(3, 16, 6, 6)
    y = n("concatenate", n.conv(x, 16), n.conv(x, 32), axis=1)
    assert "concatenate" in _check(n.graph(n.conv(y, 16, 3)))


def test_a_part_that_others_read_is_copied() -> None:
    n = Net()
    x = n.input(1, 16, 6, 6)
    shared = n("nn.relu", n.conv(x, 16))
    y = n("concatenate", shared, n.conv(x, 32), axis=1)
    assert "concatenate" in _check(n.graph(n.conv(y, 16, 3), n.conv(shared, 16, 3)))


def test_one_tensor_twice_is_copied() -> None:
    n = Net()
    x = n("nn.relu", n.conv(n.input(1, 16, 6, 6), 16))
    assert "concatenate" in _check(n.graph(n.conv(n("concatenate", x, x, axis=1), 16)))


def test_an_input_is_copied() -> None:
    n = Net()
    x = n.input(1, 16, 6, 6)
    y = n("concatenate", n.conv(x, 16), x, axis=1)
    assert any("concatenate" in label for label in _check(n.graph(n.conv(y, 16))))


def test_rows_join_along_the_outermost_axis() -> None:
    n = Net()
    x, z = n.input(1, 4, 16), n.input(1, 2, 32)
    left = n("nn.softmax", x, axis=2)
    right = n("reshape", n("nn.softmax", z, axis=2), shape=(1, 4, 16))
    y = n("concatenate", left, right, axis=1)
    assert "concatenate" not in _check(n.graph(n("nn.softmax", y, axis=2)))


def test_rows_that_begin_at_odd_bytes_are_copied() -> None:
    n = Net()
    left, right = (n("nn.softmax", n.input(3, 7), axis=1) for _ in range(2))
    y = n("concatenate", left, right, axis=0)
    assert any("concatenate" in label for label in _check(n.graph(n("nn.softmax", y, axis=1))))


@pytest.mark.parametrize("axis", [0, 1])
def test_splits_of_rows(axis: int) -> None:
    n = Net()
    x = n("nn.softmax", n.input(6, 32), axis=1)
    parts = n.builder.call("split", x, axis=axis, sections=2)
    outputs = [n("nn.softmax", part, axis=1) for part in parts]
    labels = _check(n.graph(*outputs))
    assert ("split" in labels) == (axis == 1)


def test_splits_of_channels() -> None:
    n = Net()
    x = n("nn.relu", n.conv(n.input(1, 16, 7, 7), 48, 3))
    parts = n.builder.call("split", x, axis=1, sizes=(32, 16))
    labels = _check(n.graph(*(n.conv(part, 16, 3) for part in parts)))
    assert "split" not in labels
    assert labels.count("relayout") == 3  # the image in, two images out


def test_a_part_has_the_halo_of_its_reader() -> None:
    """The image has the halo that its part needs, though nobody pads the whole of it."""
    n = Net()
    x = n("nn.relu", n.conv(n.input(1, 16, 7, 7), 64))
    parts = n.builder.call("split", x, axis=1, sizes=(16, 48))
    y = n("concatenate", n.conv(parts[0], 16, 3), parts[1], axis=1)
    graph = n.graph(n.conv(y, 16))
    _check(graph)
    assert all(isinstance(step, NativeStep) for step in assemble(graph, host_target()).steps)


def test_views_within_a_group_without_a_kernel() -> None:
    """A group that is computed node by node reshapes nothing in memory."""
    n = Net()
    x = n.input(1, 16, 4, 4)
    joined = n("concatenate", n.conv(x, 24), n.conv(x, 24, 3), axis=1)
    heads = n("transpose", n("reshape", joined, shape=(1, 2, 24, 16)), axes=(0, 1, 3, 2))
    parts = n.builder.call("split", heads, axis=3, sections=3)
    labels = _check(n.graph(*(n("nn.softmax", part, axis=3) for part in parts)))
    assert "reshape" not in labels


def test_slices() -> None:
    n = Net()
    x = n("nn.softmax", n.input(8, 16), axis=1)
    y = n("strided_slice", x, begin=(-4,), end=(7,), axes=(0,))
    labels = _check(n.graph(n("nn.softmax", y, axis=1)))
    assert "strided_slice" not in labels


@pytest.mark.parametrize(
    "attrs",
    [
        {"begin": (1,), "end": (7,), "axes": (0,), "strides": (2,)},
        {"begin": (0, 2), "end": (8, 10), "axes": (0, 1)},
        {"begin": (7,), "end": (0,), "axes": (0,), "strides": (-1,)},
    ],
)
def test_slices_with_gaps_are_copied(attrs: dict[str, tuple[int, ...]]) -> None:
    n = Net()
    x = n("nn.softmax", n.input(8, 16), axis=1)
    y = n("strided_slice", x, **attrs)
    assert any("strided_slice" in label for label in _check(n.graph(n("nn.softmax", y, axis=1))))


def test_outputs_that_are_cut_or_joined() -> None:
    """The user's memory is no part of the arena."""
    n = Net()
    x = n("nn.softmax", n.input(4, 16), axis=1)
    parts = n.builder.call("split", x, axis=0, sections=2)
    y = n("concatenate", n("exp", parts[0]), n("nn.softmax", parts[1], axis=1), axis=0)
    _check(n.graph(*parts, y))


def test_a_part_of_a_part() -> None:
    slot = Slot(0, 1024)
    assert part_of(part_of(slot, 128, 512), 64, 64) == Part(slot, 192, 64)


@pytest.mark.parametrize(
    ("storage", "axis", "first", "count", "offset"),
    [
        (Storage(DType.FLOAT32, (1, 64, 3, 3), 16), 1, 32, 32, 2 * 9 * 16 * 4),
        (Storage(DType.FLOAT32, (1, 64, 3, 3), 16, (1, 1, 1, 1)), 1, 16, 16, 25 * 16 * 4),
        (Storage(DType.FLOAT32, (1, 64, 3, 3), 16), 1, 8, 16, None),
        (Storage(DType.FLOAT32, (1, 64, 3, 3), 16), 2, 0, 1, None),
        (Storage(DType.FLOAT32, (2, 64, 3, 3), 16), 1, 0, 16, None),
        (Storage(DType.FLOAT32, (2, 64, 3, 3), 16), 0, 1, 1, 64 * 9 * 4),
        (Storage(DType.FLOAT32, (1, 8, 4)), 1, 4, 2, 64),
        (Storage(DType.FLOAT32, (1, 8, 4)), 1, 1, 2, None),
        (Storage(DType.FLOAT32, (0, 8)), 0, 0, 0, None),
    ],
)
def test_where_ranges_are(
    storage: Storage, axis: int, first: int, count: int, offset: int | None
) -> None:
    found = located(storage, axis, first, count)
    assert (None if found is None else found[1]) == offset


def test_what_is_joined_may_be_split_at_once() -> None:
    """The boxes of the first result must not be called like the second result."""
    build = Builder()
    ends = [build.constant(np.array([-1])) for _ in range(2)]
    joined = build("concatenate", *ends, build.input("x", tensor("int64", 3)))
    graph = build.build(*build.call("split", joined, sizes=(4, 1)))
    first, second = graft.compile(graph, strict=True).run(None, {"x": np.array([2, 1, 0])})
    assert (first.tolist(), second.tolist()) == ([-1, -1, 2, 1], [0])
