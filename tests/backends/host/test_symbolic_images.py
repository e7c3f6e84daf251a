"""Images whose batch, height and width are known only at run time, in blocks all the way."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.backend import HostBackend
from graft.backends.host.coordinates import plus
from graft.backends.host.cost import EXTENT, typical
from graft.backends.host.kernels.tile import parts, runs
from graft.base.dims import Dim, broadcast_dim, symbol
from graft.base.dtypes import Array, DType
from graft.byoc.executable import Settings
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.loop.interpret import interpret
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    Expr,
    Function,
    Load,
    Stmt,
    Store,
    Var,
)
from graft.program.instructions import Segment

N, H, W = symbol("n"), symbol("h"), symbol("w")


def counted(most: int, total: int, overlap: bool) -> Array:
    """How often each index is done when an extent that nobody knows is so large."""
    extent = Var("extent")
    counts = Buffer("counts", DType.INT64, (extent,))
    loops: list[Stmt] = []
    for number, run in enumerate((runs if overlap else parts)(extent, most)):

        def tile(start: Expr, size: int = run.size) -> Stmt:
            places = [(plus(start, pixel),) for pixel in range(size)]
            more = (Binary(BinaryKind.ADD, Load(counts, at), Const(1)) for at in places)
            stores = (Store(counts, at, value) for at, value in zip(places, more, strict=True))
            return Block(tuple(stores))

        loops.append(run.loop(Var(f"tile{number}"), tile))
    found = np.zeros(total, np.int64)
    function = Function("count", (counts, extent), Block(tuple(loops)))
    interpret(function, {"counts": found, "extent": total})
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 6, 8, 14, 16, 29])
def test_tiles_cover_any_extent(most: int) -> None:
    for total in range(70):
        found = counted(most, total, overlap=True)
        assert ((found == 1) | (found == 2)).all(), (total, found)
        np.testing.assert_array_equal(counted(most, total, overlap=False), 1)


def test_what_is_done_twice_is_less_than_what_is_left() -> None:
    for total in range(8, 70):
        twice = int((counted(8, total, overlap=True) == 2).sum())
        assert twice <= max(0, total % 8 - 1), total


def network(*shape: Dim) -> Graph:
    """Convolutions of every kind with what stands between them in networks."""
    build = Builder()
    random = np.random.default_rng(0)

    def weight(*extents: int) -> Value:
        return build.constant(random.standard_normal(extents).astype(np.float32) / 8)

    data = build.input("x", TensorType(DType.FLOAT32, shape))
    stem = build("nn.conv2d", data, weight(32, 3, 3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    stem = build("nn.relu", build("nn.bias_add", stem, weight(32)))
    deep = build("nn.conv2d", stem, weight(32, 1, 3, 3), padding=(1, 1, 1, 1), groups=32)
    same = build("add", build("nn.conv2d", deep, weight(32, 32, 3, 3), padding=(1, 1, 1, 1)), stem)
    attrs = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    high = build("nn.max_pool2d", same, **attrs)
    mean = build("nn.avg_pool2d", same, **attrs, count_include_pad=False)
    both = build("concatenate", high, mean, axis=1)
    wide = {"padding": (5, 4, 5, 4), "dilation": (5, 4)}
    far = build("nn.conv2d", both, weight(20, 64, 3, 3), **wide)
    last = build("nn.conv2d", build("tanh", far), weight(16, 20, 1, 1))
    return build.build(build("mean", last, axes=(2, 3)), last)


SIZES = [(1, 3, 32, 32), (2, 3, 37, 53), (3, 3, 5, 7), (1, 3, 1, 1), (2, 3, 64, 1), (0, 3, 9, 9)]


@pytest.mark.parametrize(
    "shape",
    [
        (N, 3, 32, 32),
        (N, 3, H, W),
        pytest.param((1, 3, H, W), marks=pytest.mark.full),
        pytest.param((2, 3, 40, W), marks=pytest.mark.full),
    ],
)
def test_a_network_of_any_size(shape: tuple[Dim, ...]) -> None:
    graph = network(*shape)
    pairs = [(size, zip(shape, size, strict=True)) for size in SIZES]
    fitting = [s for s, dims in pairs if all(d == e or not isinstance(d, int) for d, e in dims)]
    fitting = fitting or [(2, 3, 40, width) for width in (1, 8, 33)]
    random = np.random.default_rng(1)
    images = [random.standard_normal(size).astype(np.float32) for size in fitting]
    with np.errstate(all="ignore"):  # the mean of no pixels
        assert check_flow(graph, *([image] for image in images), tolerance=1e-4) == ["Segment"]


@pytest.mark.parametrize("shape", [(N, 3, 32, 32), (N, 3, H, W)])
def test_images_stay_in_blocks(shape: tuple[Dim, ...]) -> None:
    built = HostBackend(Settings(threads=1)).build(network(*shape))
    (step,) = built.program.body.instructions
    assert isinstance(step, Segment)
    labels = [call.label for call in step.calls]
    # the input into blocks, and one result out of them
    assert labels.count("relayout") == 2
    assert any("winograd" in label for label in labels)


def test_padding_that_makes_results_of_nothing_is_not_in_blocks() -> None:
    build = Builder()
    data = build.input("x", TensorType(DType.FLOAT32, (1, 16, H, 8)))
    weight = build.constant(np.ones((16, 16, 3, 3), np.float32))
    graph = build.build(build("nn.conv2d", data, weight, padding=(2, 1, 2, 1)))
    images = [np.ones((1, 16, height, 8), np.float32) for height in (0, 1, 6)]
    check_flow(graph, *([image] for image in images), tolerance=1e-5)


def test_an_operand_that_may_be_repeated_is_read_in_rows() -> None:
    build = Builder()
    data = build.input("x", TensorType(DType.FLOAT32, (N, 16, 8, W)))
    other = build.input("y", TensorType(DType.FLOAT32, (symbol("m"), 16, 8, W)))
    random = np.random.default_rng(0)
    weight = build.constant(random.standard_normal((16, 16, 3, 3)).astype(np.float32))
    first = build("nn.conv2d", data, weight, padding=(1, 1, 1, 1))
    graph = build.build(build("nn.conv2d", build("add", first, other), weight))
    pairs = ((3, 1), (1, 3), (2, 2))
    images = [
        [random.standard_normal((count, 16, 8, 9)).astype(np.float32) for count in pair]
        for pair in pairs
    ]
    check_flow(graph, *images, tolerance=1e-3)


def test_guesses_may_contradict_each_other() -> None:
    """Two sizes that are the same whenever the model runs, of which nobody knows it before."""
    assert typical(broadcast_dim(2 * H, N * W), ()) == EXTENT
    assert typical(broadcast_dim(2 * H, 2 * W), ()) == 2 * EXTENT
