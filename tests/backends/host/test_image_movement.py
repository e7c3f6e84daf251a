"""Movement of blocked images: tables of rows, columns and channels instead of copies to rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.backends.host.images import Case, case, check

import graft
from graft.backends.host.kernels.images.movement import image_movement
from graft.backends.host.lowering.assemble import NativeStep, assemble
from graft.base.dims import Dim, symbol
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor
from graft.passes.group_fusion import group_fusion
from graft.target.target import host_target, named_target

Move = Callable[[Builder, Value], Value]


def pad(*widths: int, **attrs: object) -> Move:
    return lambda build, x: build("nn.pad", x, pad_width=widths, axes=(2, 3), **attrs)


def cut(**attrs: object) -> Move:
    return lambda build, x: build("strided_slice", x, axes=(2, 3), **attrs)


def to_space(**attrs: object) -> Move:
    return lambda build, x: build("depth_to_space", x, **attrs)


def to_depth(build: Builder, x: Value) -> Value:
    return build("space_to_depth", x, block_size=2)


def shuffled(groups: int) -> Move:
    def move(build: Builder, x: Value) -> Value:
        batch, channels, height, width = x.tensor.shape or ()
        assert isinstance(channels, int)
        apart = build("reshape", x, shape=(batch, groups, channels // groups, height, width))
        turned = build("transpose", apart, axes=(0, 2, 1, 3, 4))
        return build("reshape", turned, shape=(batch, channels, height, width))

    return move


def focus(build: Builder, x: Value) -> Value:
    corners = ((0, 0), (1, 0), (0, 1), (1, 1))
    attrs = {"end": (1000, 1000), "axes": (2, 3), "strides": (2, 2)}
    parts = [build("strided_slice", x, begin=begin, **attrs) for begin in corners]
    return build("concatenate", *parts, axis=1)


def rolled(build: Builder, x: Value) -> Value:
    for axis in (2, 3):
        late = build("strided_slice", x, begin=(1,), end=(1000,), axes=(axis,))
        early = build("strided_slice", x, begin=(0,), end=(1,), axes=(axis,))
        x = build("concatenate", late, early, axis=axis)
    return x


MOVES: dict[str, Move] = {
    "constant": pad(1, 2, 3, 0, value=1.5),
    "negative zero": pad(1, 2, 3, 0, value=-0.0),
    "infinite": pad(0, 0, 1, 1, value=float("-inf")),
    "edge": pad(2, 1, 1, 3, mode="edge"),
    "reflect": pad(1, 2, 2, 1, mode="reflect"),
    "crop": cut(begin=(1, 2), end=(5, -1)),
    "strided": cut(begin=(0, 1), end=(100, 100), strides=(2, 3)),
    "flipped": cut(begin=(-1, -1), end=(-100, -100), strides=(-1, -1)),
    "to depth": to_depth,
    "depth first": to_space(block_size=2, mode="DCR"),
    "depth last": to_space(block_size=2, mode="CRD"),
    "shuffled by 2": shuffled(2),
    "shuffled by 4": shuffled(4),
    "focus": focus,
    "rolled": rolled,
}


def moved(name: str, channels: int = 32, block: int = 16, follow: bool = False) -> Case:
    def write(build: Builder) -> Value:
        x = MOVES[name](build, build.input("data", tensor("float32", 2, channels, 6, 8)))
        return build("nn.relu", build("add", x, x)) if follow else x

    return case(write, {"data": (block, (1, 0, 2, 1)), "result": (8, (0, 1, 1, 2))})


@pytest.mark.parametrize("name", list(MOVES))
def test_moves(name: str) -> None:
    for threads in (1, 2):
        check(moved(name), image_movement, threads)
        check(moved(name, block=8, follow=True), image_movement, threads)
    check(moved(name), image_movement, target=named_target("x86-64-v3"))


def test_refusals() -> None:
    def joined(build: Builder) -> Value:
        one, other = (build.input(n, tensor("float32", 1, 16, 4, 4)) for n in ("one", "other"))
        return build("concatenate", one, other, axis=2)

    made = case(joined, {"one": 16, "other": 16, "result": 16})
    assert made.refusal(image_movement) == "what is moved is no single image in memory"

    def transposed(build: Builder) -> Value:
        return build(
            "transpose", build.input("x", tensor("float32", 1, 16, 9, 9)), axes=(0, 1, 3, 2)
        )

    made = case(transposed, {"x": 16, "result": 16})
    assert made.refusal(image_movement) == "rows, columns and channels are not moved by tables"

    def doubles(build: Builder) -> Value:
        return pad(1, 1, 1, 1)(build, build.input("x", tensor("float64", 1, 16, 4, 4)))

    made = case(doubles, {"x": 16, "result": 16})
    assert made.refusal(image_movement) == "images of float64 are not moved in blocks"


def test_a_constant_that_fixes_the_batch_is_no_table_for_others() -> None:
    """Images of unknown number are looked at in two sizes, which the lengths do not have."""
    build = Builder()
    data = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 2, 3, 2)))
    lengths = build.constant(np.array([2, 1, 2, 1], np.int64))
    moved = build("reverse_sequence", data, lengths, batch_axis=0, seq_axis=1)
    image = np.random.default_rng(1).standard_normal((4, 2, 3, 2), np.float32)
    check_flow(build.build(moved), [image])


def network(name: str, channels: int, *shape: Dim) -> Graph:
    """Movement between convolutions."""
    build = Builder()
    random = np.random.default_rng(0)

    def conv(x: Value, outputs: int, kernel: int) -> Value:
        inputs = (x.tensor.shape or ())[1]
        weight = random.standard_normal((outputs, inputs, kernel, kernel)).astype(np.float32) / 8
        return build("nn.conv2d", x, build.constant(weight), padding=(kernel // 2,) * 4)

    x = conv(build.input("x", TensorType(DType.FLOAT32, shape)), channels, 1)
    return build.build(conv(build("nn.relu", MOVES[name](build, x)), 8, 3))


FINITE = [name for name in MOVES if name != "infinite"]


# With a last block that is not full, and with whole blocks of 8 or of 16.
@pytest.mark.parametrize(
    ("name", "channels"),
    [(name, count) for n, name in enumerate(FINITE) for count in (20, (24, 32)[n % 2])],
)
def test_no_copies_around_it(name: str, channels: int) -> None:
    graph = network(name, channels, 2, 8, 6, 8)
    module = graft.compile(graph, strict=True, threads=1)
    image = np.random.default_rng(1).standard_normal((2, 8, 6, 8), np.float32)
    (found,) = module.run(None, {"x": image})
    np.testing.assert_allclose(found, evaluate(graph, [image])[0], rtol=1e-4, atol=1e-4)
    steps = assemble(group_fusion(graph), host_target()).steps
    labels = [step.label for step in steps if isinstance(step, NativeStep)]
    assert labels.count("relayout") == 2  # the input into blocks, and the result out of them


@pytest.mark.parametrize("name", ["edge", "crop", "depth last", "shuffled by 2", "focus", "rolled"])
def test_batches_known_at_run_time(name: str) -> None:
    graph = network(name, 24, symbol("n"), 8, 6, 8)
    random = np.random.default_rng(1)
    images = [random.standard_normal((n, 8, 6, 8)).astype(np.float32) for n in (1, 3)]
    check_flow(graph, *([image] for image in images), tolerance=1e-4)


@pytest.mark.parametrize("channels", [32, 40])
def test_several_results(channels: int) -> None:
    """A shuffle that is split, as in ShuffleNet."""
    build = Builder()
    random = np.random.default_rng(0)

    def conv(x: Value, inputs: int, outputs: int) -> Value:
        weight = random.standard_normal((outputs, inputs, 1, 1)).astype(np.float32) / 8
        return build("nn.conv2d", x, build.constant(weight))

    x = conv(build.input("x", tensor("float32", 2, 8, 5, 6)), 8, channels)
    low, high = build.call("split", shuffled(2)(build, x), sizes=(channels // 2,) * 2, axis=1)
    graph = build.build(conv(low, channels // 2, 8), conv(high, channels // 2, 16))
    image = random.standard_normal((2, 8, 5, 6)).astype(np.float32)
    found = graft.compile(graph, strict=True, threads=2).run(None, {"x": image})
    for one, other in zip(found, evaluate(graph, [image]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
