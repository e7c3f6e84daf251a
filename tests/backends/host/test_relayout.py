"""Copies between storages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graft.backends.host.extents import Extents
from graft.backends.host.kernels.relayout import copied, relayout
from graft.backends.host.storage import Storage
from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.llvm import load
from graft.llvm.compile import object_code
from graft.loop.interpret import interpret
from graft.target.target import host_target, named_target

PLAIN = (0, 0, 0, 0)
CASES = [
    ((1, 3, 24, 20), 0, 3),
    ((2, 3, 5, 7), 3, 0),
    ((3, 32, 7, 9), 0, 16),
    ((1, 32, 7, 9), 16, 0),
    ((2, 32, 7, 9), 16, 8),
    ((2, 48, 7, 9), 8, 16),
    ((1, 48, 7, 9), 16, 24),
    ((1, 16, 7, 9), 16, 16),
    ((2, 32, 1, 1), 0, 16),
    ((2, 32, 1, 1), 16, 0),
    ((2, 32, 3, 8), 0, 8),
    ((1, 48, 3, 37), 16, 0),
    ((2, 16, 2, 70), 0, 16),
    ((1, 48, 2, 33), 24, 0),
    ((2, 12, 3, 5), 1, 4),
    ((2, 12, 3, 5), 3, 4),
    ((2, 12, 3, 5), 6, 1),
]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("shape", "one", "other"), CASES)
def test_copies(shape: tuple[int, ...], one: int, other: int, threads: int, dtype: DType) -> None:
    source = Storage(dtype, shape, one, (1, 0, 2, 1) if one else PLAIN)
    target = Storage(dtype, shape, other, (0, 3, 1, 2) if other else PLAIN)
    data = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
    function = relayout(source, target, Extents(), host_target())
    wanted, found = target.pack(data), target.pack(data)
    found[...] = np.nan
    code = load.load(function, object_code(function, host_target()))
    code({"source": source.pack(data), "target": found}, threads)
    np.testing.assert_array_equal(found, wanted)
    found[...] = np.nan
    interpret(function, {"source": source.pack(data), "target": found}, threads)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("machine", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("shape", [(2, 20, 3, 37), (1, 3, 2, 16), (1, 33, 1, 9)])
def test_last_block_is_not_full(shape: tuple[int, ...], machine: str) -> None:
    """Squares of channels and pixels, some of whose channels are not there."""
    rows, blocks = Storage(DType.FLOAT32, shape), Storage(DType.FLOAT32, shape, 16, (1, 0, 2, 1))
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    target = named_target(machine)
    for source, result in ((rows, blocks), (blocks, rows)):
        function = relayout(source, result, Extents(), target)
        wanted, found = result.pack(data), result.pack(np.zeros_like(data))
        code = load.load(function, object_code(function, target))
        code({"source": source.pack(data), "target": found}, 2)
        for channel in range(shape[1]):
            at = (slice(None), channel // 16, ..., channel % 16) if result.block else (0, channel)
            np.testing.assert_array_equal(found[at], wanted[at])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("halo", [PLAIN, (2, 3, 1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 37), (1, 4, 3, 16), (2, 6, 4, 7), (1, 8, 1, 19)])
def test_bytes_become_words(
    shape: tuple[int, ...], halo: tuple[int, int, int, int], dtype: DType, threads: int
) -> None:
    """Blocks of four, with a halo of the zero point; lanes that are no channel may be anything."""
    source, target = Storage(dtype, shape), Storage(dtype, shape, 4, halo, fill=97)
    limits = np.iinfo(dtype.numpy)
    draw = np.random.default_rng(0)
    data = draw.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)
    function = relayout(source, target, Extents(), host_target())
    wanted, found = target.pack(data), target.pack(data)
    top, left = halo[:2]
    code = load.load(function, object_code(function, host_target()))
    for run in (code, lambda feeds, count: interpret(function, feeds, count)):
        found[...] = 1
        run({"source": source.pack(data), "target": found.view(np.int32)}, threads)
        inner = slice(top, top + shape[2]), slice(left, left + shape[3])
        for channel in range(shape[1]):
            at = (slice(None), channel // 4, *inner, channel % 4)
            np.testing.assert_array_equal(found[at], wanted[at])
        found[:, :, *inner] = 97
        np.testing.assert_array_equal(found, 97)


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (5, 3, 17), (1, 1, 1, 5000), (3, 0, 2), (2, 1029)])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT64, DType.BOOL, DType.FLOAT16])
def test_copies_of_bytes(shape: tuple[int, ...], threads: int, dtype: DType) -> None:
    storage = Storage(dtype, shape)
    data = storage.pack(np.random.default_rng(0).integers(0, 2, shape).astype(dtype.numpy))
    found = storage.pack(1 - data.astype(np.int8))
    function = copied(storage.static_bytes, Extents())
    code = load.load(function, object_code(function, host_target()))
    buffers = {"source": data, "target": found}
    code({name: one.reshape(-1).view(np.uint8) for name, one in buffers.items()}, threads)
    np.testing.assert_array_equal(found, data)


def test_storages_of_two_tensors_are_a_mistake() -> None:
    one = Storage(DType.FLOAT32, (1, 8, 4, 4), 8)
    with pytest.raises(InternalError, match="not of one tensor"):
        relayout(one, Storage(DType.FLOAT32, (1, 8, 4, 5), 8), Extents(), host_target())
    empty = Storage(DType.INT32, (1, 8, 0, 4))
    with pytest.raises(InternalError, match="no image"):
        relayout(empty, replace(empty, block=8), Extents(), host_target())
