"""Padding, blocks, triangles and reversed sequences, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import agree, by_graft, one_node

import graft
from graft.base.dims import symbol
from graft.base.errors import EvaluationError, TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.types import TensorType, tensor

N = symbol("n")


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


PADS = [(0, 1, 2, 0), (-1, 2, 0, -1), (2, 0, -1, 1), (0, 0, 0, 0), (1, -2, 1, 2)]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", PADS)
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    x = ramp(4, 5)
    agree("Pad", [x, ints(*pads)], 19, mode=mode)
    if mode == "constant":
        agree("Pad", [x, ints(*pads), np.array(-7.5, np.float32)], 13, mode=mode)
        agree("Pad", [x, ints(*pads), np.array(np.nan, np.float32)], 11)
    if mode != "wrap":
        agree("Pad", [x], 7, pads=pads, mode=mode)


@pytest.mark.parametrize("axes", [(1,), (-1, 0), (-2,)])
def test_pad_along_some_axes(axes: tuple[int, ...]) -> None:
    x, pads = ramp(2, 3, 4), ints(*range(1, 2 * len(axes) + 1))
    agree("Pad", [x, pads, None, ints(*axes)], 18)
    agree("Pad", [x, pads, np.array(2, np.float32), ints(*axes).astype(np.int32)], 18)


@pytest.mark.parametrize("pads", [(7, 9), (5, 0), (-1, 8)])
def test_pads_longer_than_the_axis_go_round_again(pads: tuple[int, int]) -> None:
    x = ramp(3)
    kept = x[max(-pads[0], 0) :]
    wanted = (max(pads[0], 0), pads[1])
    for mode in ("edge", "reflect", "wrap"):
        agree("Pad", [x, ints(*pads)], 19, [np.pad(kept, wanted, mode=mode)], mode=mode)


def test_pads_that_cut_everything() -> None:
    agree("Pad", [ramp(4), ints(-5, 6)], 13, [np.zeros(5, np.float32)])
    agree("Pad", [ramp(4), ints(6, -5)], 13, [np.zeros(5, np.float32)])
    agree("Pad", [ramp(4), ints(-2, -2)], 13, [ramp(0)])
    agree("Pad", [ramp(1), ints(1, 2)], 13, [np.zeros(4, np.float32)], mode="reflect")
    agree("Pad", [ramp(2, 0), ints(0, 1, 0, 1)], 13, [np.zeros((2, 2), np.float32)])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint64, np.complex64, object, ml_dtypes.int4])
def test_pad_of_every_dtype(dtype: Any) -> None:
    if dtype is object:
        x, fill = np.array(["a", "b"], object), np.array("z", object)
    else:
        x, fill = np.array([0, 1]).astype(dtype), np.array(1).astype(dtype)
    empty = "" if dtype is object else np.zeros((), dtype)
    for value, wanted in ((fill, fill[()]), (None, empty)):
        expected = np.array([wanted, x[0], x[1]], dtype)
        agree("Pad", [x, ints(1, 0), value], 25, [expected], shapes=["static"])


@pytest.mark.parametrize("shapes", ["static", "symbolic"])
@pytest.mark.parametrize("constants", [False, True])
def test_a_border_of_negative_zeros_keeps_its_sign(shapes: str, constants: bool) -> None:
    arrays = [ramp(3, 20), ints(1, 2, 0, 1), np.array(-0.0, np.float32)]
    model = one_node("Pad", arrays, 13, shapes, constants)
    names = [info.name for info in model.graph.input]
    feeds = {name: arrays[int(name[1:])] for name in names}
    expected = np.full((4, 23), True)
    expected[1:, 2:22] = False
    for target in ("host", "reference"):
        (result,) = graft.compile(model, target=target).run(None, feeds)
        np.testing.assert_array_equal(np.signbit(result), expected)


def test_pad_adds_to_symbols() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", N, 4))
    assert builder("nn.pad", x, pad_width=(1, -2, 0, N)).type == tensor("float32", N + 1, N + 2)
    unranked = builder.input("u", TensorType(x.dtype, None))
    assert builder("nn.pad", unranked, pad_width=(1, 1)).shape is None


def test_center_crop_pad() -> None:
    x = ramp(5, 8, 3)
    cropped = np.pad(x[1:3], ((0, 0), (0, 1), (1, 1)))
    agree("CenterCropPad", [x, ints(2, 9, 5)], 18, [cropped])
    agree("CenterCropPad", [x, ints(9, 2)], 18, [np.pad(x[..., :2], ((2, 2), (0, 0), (0, 0)))],
          axes=[0, -1])  # fmt: skip


BLOCKS = [(2, (1, 8, 2, 3)), (3, (2, 9, 1, 2)), (1, (1, 2, 3, 4)), (2, (0, 4, 2, 2))]


@pytest.mark.parametrize(("block", "shape"), BLOCKS)
def test_blocks_move_between_space_and_depth(block: int, shape: tuple[int, ...]) -> None:
    x = ramp(*shape)
    wide = np.zeros((shape[0], shape[1] // block**2, shape[2] * block, shape[3] * block), x.dtype)
    other = wide.copy()
    depth = wide.shape[1]
    for row in range(block):
        for column in range(block):
            place = row * block + column
            wide[:, :, row::block, column::block] = x[:, place * depth : (place + 1) * depth]
            other[:, :, row::block, column::block] = x[:, place :: block * block]
    agree("DepthToSpace", [x], 13, [wide], blocksize=block)
    agree("DepthToSpace", [x], 11, [other], blocksize=block, mode="CRD")
    agree("DepthToSpace", [x], 7, [wide], blocksize=block)
    agree("SpaceToDepth", [wide], 7, [x], blocksize=block)
    agree("SpaceToDepth", [other], 28, [x], blocksize=block, mode="CRD")


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 9, -9])
def test_trilu(upper: int, k: int | None) -> None:
    keep = np.triu if upper else np.tril
    for x in (ramp(3, 4) + 1, ramp(2, 0, 3), ramp(2, 4, 3) - np.inf):
        operands = [x] if k is None else [x, np.array(k)]
        agree("Trilu", operands, 14, [keep(x, k or 0)], upper=upper)


def test_trilu_of_strings_leaves_empty_ones() -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    agree("Trilu", [words], 14, [np.array([["a", "b"], ["", "d"]], object)])


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(time: int, batch: int) -> None:
    x, lengths = ramp(4, 4, 3), ints(0, 1, 3, 4)
    agree("ReverseSequence", [x, lengths], 10, time_axis=time, batch_axis=batch)
    with pytest.raises(EvaluationError, match="a length is not between 0 and the number of steps"):
        by_graft(one_node("ReverseSequence", [x, ints(0, 0, 5, 1)], 10), [x, ints(0, 0, 5, 1)])


REFUSED: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("nn.pad", (2, 3), {"pad_width": (1, 1)}, "2 pads for 2 axes"),
    ("nn.pad", (2,), {"pad_width": (-2, -1)}, "pads -2 and -1 cut more than the 2 of axis 0"),
    ("nn.pad", (0,), {"pad_width": (1, 0), "mode": "edge"}, "axis 0 has nothing to fill pads with"),
    ("nn.pad", (2,), {"pad_width": (1, 0), "mode": "mirror"}, "mode is 'mirror'"),
    ("nn.pad", (2,), {}, "pads are given neither as operand nor as attribute"),
    ("depth_to_space", (1, 6, 2, 2), {"block_size": 2}, "depth 6 is not a multiple of 4"),
    ("depth_to_space", (1, 4, 2), {"block_size": 2}, "wants rank 4 (NCHW), not 3"),
    ("depth_to_space", (1, 4, 2, 2), {"block_size": 0}, "block_size is 0"),
    ("space_to_depth", (1, 4, 3, 2), {"block_size": 2}, "height 3 is not a multiple of 2"),
    ("space_to_depth", (1, 4, 2, 2), {"block_size": 2, "mode": "X"}, "neither DCR nor CRD"),
    ("trilu", (3,), {}, "wants matrices, not rank 1"),
]


@pytest.mark.parametrize(("name", "shape", "attributes", "message"), REFUSED)
def test_contradictions_are_refused(
    name: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", *shape))
    with pytest.raises(TypeRuleError) as caught:
        builder.call(name, data, **attributes)
    assert message in caught.value.message


def test_a_pad_that_turns_out_to_have_nothing_to_repeat_is_refused() -> None:
    arrays = [ramp(4), ints(-4, 5)]
    with pytest.raises(UserError, match="axis 0 has nothing to fill pads with"):
        by_graft(one_node("Pad", arrays, 13, mode="edge"), arrays)
