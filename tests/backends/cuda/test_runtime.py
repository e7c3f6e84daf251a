"""Regions at run time, behind a driver of Python: launches, machine code and tensors of others."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.fake_driver import CUBIN, FakeDriver, Launched, install
from tests.backends.cuda.test_persistent import chain, planned

from graft.backends.cuda import dlpack, runtime
from graft.backends.cuda.backend import Cuda, blob_of
from graft.backends.cuda.dlpack import DeviceTensor, borrow
from graft.backends.cuda.driver import CudaError
from graft.backends.cuda.persistent import GATES, LINE
from graft.backends.cuda.plan import Options, plan_region
from graft.backends.cuda.selftest import phase_floors, profile_phases, run_on_gpu
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.byoc.region import for_backend
from graft.ir.builder import Builder
from graft.ir.types import TensorType
from graft.runtime.json_graph import unpack

COOPERATIVE, PROGRAMMATIC = 2, 6
REGION = for_backend(chain(3, 4096))
SHAPE = (8, 4096)


def persistent_blob() -> bytes:
    return blob_of(REGION, planned(REGION, Options()), DType.FLOAT16)


def separate_blob() -> bytes:
    return blob_of(REGION, plan_region(REGION, Options()), DType.FLOAT16)


def run(blob: bytes) -> runtime.Region:
    region = runtime.Region(blob)
    run_on_gpu(region, [np.zeros(SHAPE, np.float32)], [np.zeros((8, 64), np.float32)])
    return region


def test_separate_kernels_become_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    install(fake, monkeypatch)
    region = run(separate_blob())
    assert {one.attribute for one in fake.launches} == {PROGRAMMATIC}
    assert len(fake.launches) == 2 * len(region.labels)  # the first run, and what was captured
    assert fake.names.count("cuGraphInstantiateWithFlags") == 1
    assert fake.names.count("cuGraphLaunch") > 1


def test_a_persistent_kernel_is_one_launch_of_blocks_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver()
    install(fake, monkeypatch)
    plan = planned(REGION, Options())
    (kernel,), (launch,) = plan.code.values(), plan.launches
    region = run(blob_of(REGION, plan, DType.FLOAT16))
    assert kernel.cluster > 1
    assert {(one.grid, one.attribute) for one in fake.launches} == {
        ((16 * kernel.cluster, 1, 1), COOPERATIVE)
    }
    assert "cuStreamBeginCapture_v2" not in fake.names
    assert len(fake.launches[0].addresses) == len(launch.buffers) == len(kernel.buffers)
    assert not region.constant(GATES, LINE).any()
    fake.clusters = 0
    with pytest.raises(CudaError, match="no block of"):
        runtime.Region(persistent_blob())


@pytest.mark.parametrize("faster", [COOPERATIVE, PROGRAMMATIC])
def test_the_faster_way_is_kept(faster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(launches: Sequence[Launched]) -> float:
        # Replays of a graph launch nothing that the fake sees.
        is_persistent = bool(launches) and launches[0].attribute == COOPERATIVE
        return 1.0 if is_persistent == (faster == COOPERATIVE) else 2.0

    install(FakeDriver(seconds), monkeypatch)
    described = unpack(Cuda().compile(REGION))
    assert (len(described.nodes) == 1) == (faster == COOPERATIVE)


def test_other_work_on_the_gpu_does_not_decide_between_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disturbed = iter([5.0] * 5)  # the first rounds of the graph

    def seconds(launches: Sequence[Launched]) -> float:
        is_persistent = bool(launches) and launches[0].attribute == COOPERATIVE
        return 3.0 if is_persistent else next(disturbed, 2.0)

    install(FakeDriver(seconds), monkeypatch)
    assert len(unpack(Cuda().compile(REGION)).nodes) > 1


def test_one_kernel_is_made_only_where_it_is_promising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tiles by warp groups are twice as fast as those that a persistent kernel can have."""
    fake, builder = FakeDriver(), Builder("region")
    install(fake, monkeypatch)
    weight = builder.constant(np.ones((1024, 1024), np.float32))
    value = builder.input("x", TensorType(DType.FLOAT32, (4096, 1024)))
    for _ in range(3):
        value = builder("nn.relu", builder("nn.dense", value, weight))
    region = for_backend(builder.build(value))
    assert len(unpack(Cuda().compile(region)).nodes) > 1
    assert COOPERATIVE not in {one.attribute for one in fake.launches}
    assert len(unpack(Cuda(way="persistent").compile(region)).nodes) == 1


def test_a_persistent_kernel_that_does_not_fit_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver(lambda _: 1.0)
    install(fake, monkeypatch)
    fake.clusters = 0
    assert len(unpack(Cuda().compile(REGION)).nodes) > 1


def test_blobs_have_machine_code_of_the_gpu_and_ptx_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver()
    install(fake, monkeypatch)
    blob = Cuda().compile(REGION)
    names = [name for name in unpack(blob).constants if name.startswith(runtime.CODE)]
    fake.code.clear()
    runtime.Region(blob)
    assert fake.code == [CUBIN] * len(names)
    fake.code.clear()
    fake.refuses_binaries = True
    runtime.Region(blob)
    assert all(code.startswith(b"//") for code in fake.code)
    assert len(fake.code) == len(names)


def test_kernels_are_assembled_once_by_each_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path))
    fake, backend = FakeDriver(), Cuda(way="graph")
    install(fake, monkeypatch)
    blob = backend.compile(REGION)
    kernels = sum(name.startswith(runtime.CODE) for name in unpack(blob).constants)
    assert fake.names.count("cuLinkComplete") == kernels > 1
    assert backend.compile(REGION) == blob
    assert fake.names.count("cuLinkComplete") == kernels
    fake.version += 10
    backend.compile(REGION)
    assert fake.names.count("cuLinkComplete") == 2 * kernels


def test_phases_are_shown_beside_their_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    device, plan = install(FakeDriver(), monkeypatch), planned(REGION, Options())
    floors, region = (
        phase_floors(plan, Cuda().limits),
        runtime.Region(blob_of(REGION, plan, DType.FLOAT16)),
    )
    times = np.zeros((len(floors), LINE // 8), np.uint64)
    times[:-1, 1] = 3000 + 1000 * np.arange(len(floors) - 1)
    times[-1, 1:3] = 1000, 9000
    monkeypatch.setattr(region, "constant", lambda *_: times.view(np.uint8).reshape(-1))
    arrays = [np.zeros(SHAPE, np.float32)], [np.zeros((8, 64), np.float32)]
    lines = profile_phases(region, floors, *arrays)
    assert [line.split()[0] for line in lines] == ["2.00", *["1.00"] * (len(floors) - 2), "4.00"]
    assert device.processors == 132
    product = plan.code[plan.launches[0].kernel].problem[1][0].launch.product
    assert floors[1][1] >= product.columns * product.depth * 4 / 3e12


class Foreign:
    """Another library's tensor, on the GPU."""

    def __init__(self, tensor: DeviceTensor, device: tuple[int, int] = (2, 0)) -> None:
        self.tensor, self.device, self.stream = tensor, device, None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any) -> Any:
        self.stream = stream
        return self.tensor.__dlpack__()


def on_device(shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceTensor:
    array = np.zeros(shape, dtype)
    return DeviceTensor(array.ctypes.data, shape, array.dtype, array)


def test_page_locked_memory_is_used_again_once_nothing_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = install(FakeDriver(), monkeypatch)
    first = device.host_array((100, 70), np.dtype(np.float32))
    kept, address = first[3], first.ctypes.data
    first[...] = 7
    del first
    second = device.host_array((7000,), np.dtype(np.float32))
    assert second.ctypes.data != address
    assert (kept == 7).all()
    del kept
    assert device.host_array((6000,), np.dtype(np.int32)).ctypes.data == address


def test_without_page_locked_memory_arrays_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.most_page_locked = 1 << 16
    device = install(fake, monkeypatch)
    for shape in ((), (0, 5), (1 << 10,), (1 << 20,)):
        array = device.host_array(shape, np.dtype(np.float32))
        array[...] = 1
        assert array.shape == shape
    assert fake.names.count("cuMemHostAlloc") == 1


def test_tensors_of_others_are_used_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    device = install(fake, monkeypatch)
    device.stream = ctypes.c_void_p(77)
    region, tensor = runtime.Region(persistent_blob()), on_device(SHAPE)
    foreign = Foreign(tensor)
    (result,) = region.on_tensors([foreign])
    assert foreign.stream == 77
    assert tensor.address in fake.launches[-1].addresses
    assert result.address in fake.launches[-1].addresses
    assert (result.shape, result.dtype) == ((8, 64), np.float32)
    assert not [name for name in fake.names[-4:] if "Memcpy" in name]
    with pytest.raises(UserError, match="the region takes"):
        region.on_tensors([Foreign(on_device((8, 64)))])


def test_capsules_keep_memory_until_they_are_done_with() -> None:
    lent = len(dlpack._lent)
    for dtype in (np.float32, np.float16, np.int64, np.uint8, np.bool_):
        tensor = on_device((2, 3), dtype)
        found = borrow(Foreign(tensor), 0)
        assert (found.address, found.shape, found.dtype) == (tensor.address, (2, 3), dtype)
        assert len(dlpack._lent) == lent + 1
        del found
        gc.collect()
        assert len(dlpack._lent) == lent


def test_tensors_elsewhere_are_refused() -> None:
    with pytest.raises(UserError, match="not in the memory of the first GPU"):
        borrow(Foreign(on_device((2, 3)), (1, 0)), 0)
