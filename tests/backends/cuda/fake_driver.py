# ruff: noqa: N802, N815 - names are the driver's
"""A CUDA driver of Python: device memory is the host's, launches and calls are recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from graft.backends.cuda import backend, driver, runtime

CUBIN = b"\x7fELF of a GPU"
NO_BINARY = 209  # the driver's number for code of another GPU
OUT_OF_MEMORY = 2


class Launched(NamedTuple):
    """A kernel that was launched: by an attribute, on addresses."""

    function: str
    grid: tuple[int, ...]
    attribute: int
    addresses: tuple[int, ...]


class FakeDriver:
    """Answers calls as `libcuda` does, with 0 where it knows nothing better.

    `seconds` gives what the launches between two events take."""

    def __init__(self, seconds: Callable[[Sequence[Launched]], float] = len) -> None:
        self.names: list[str] = []
        self.launches: list[Launched] = []
        self.code: list[bytes] = []
        self.refuses_binaries = False
        self.clusters = 16
        self.most_page_locked = 1 << 30
        self.version = 13000
        self._seconds = seconds
        self._memory: dict[int, Any] = {}
        self._functions: dict[int, str] = {}
        self._since = 0
        self._cubin = ctypes.create_string_buffer(CUBIN, len(CUBIN))

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.names.append(name)
            answer = getattr(type(self), f"_{name}", None)
            return int(answer(self, *arguments) or 0) if answer else 0

        return call

    def _cuDeviceGetAttribute(self, result: Any, number: int, _device: Any) -> None:
        result._obj.value = {75: 9, 76: 0, 16: 132}.get(number, 0)

    def _cuDriverGetVersion(self, result: Any) -> None:
        result._obj.value = self.version

    def _cuMemAlloc_v2(self, result: Any, size: Any) -> None:
        memory = ctypes.create_string_buffer(size.value)
        result._obj.value = ctypes.addressof(memory)
        self._memory[ctypes.addressof(memory)] = memory

    def _cuMemHostAlloc(self, result: Any, size: Any, _flags: Any) -> int:
        if size.value > self.most_page_locked:
            return OUT_OF_MEMORY
        self._cuMemAlloc_v2(result, size)
        return 0

    def _cuMemFree_v2(self, address: Any) -> None:
        self._memory.pop(address.value, None)

    def _cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, _stream: Any) -> None:
        ctypes.memmove(target, source, size.value)

    _cuMemcpyDtoHAsync_v2 = _cuMemcpyHtoDAsync_v2

    def _cuModuleLoadDataEx(self, _module: Any, code: bytes, *_log: Any) -> int:
        if self.refuses_binaries and code.startswith(CUBIN):
            return NO_BINARY
        self.code.append(code.rstrip(b"\0"))
        return 0

    def _cuModuleGetFunction(self, result: Any, _module: Any, name: bytes) -> None:
        number = len(self._functions) + 1
        result._obj.value, self._functions[number] = number, name.decode()

    def _cuLinkComplete(self, _state: Any, code: Any, size: Any) -> None:
        code._obj.value, size._obj.value = ctypes.addressof(self._cubin), len(CUBIN)

    def _cuOccupancyMaxActiveClusters(self, result: Any, *_launch: Any) -> None:
        result._obj.value = self.clusters

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, result: Any, *_launch: Any) -> None:
        result._obj.value = 1

    def _cuLaunchKernelEx(self, config: Any, function: Any, arguments: Any, _extra: Any) -> None:
        one, pointer = config._obj, ctypes.POINTER(ctypes.c_uint64)
        values = tuple(ctypes.cast(each, pointer)[0] for each in arguments)
        name, attribute = self._functions[function.value], one.attributes[0].id
        self.launches.append(Launched(name, tuple(one.grid), attribute, values))

    def _cuEventRecord(self, *_arguments: Any) -> None:
        self._since = len(self.launches) if self._since < 0 else self._since

    def _cuEventCreate(self, *_arguments: Any) -> None:
        self._since = -1

    def _cuEventElapsedTime(self, result: Any, *_events: Any) -> None:
        result._obj.value = self._seconds(self.launches[self._since :]) * 1e3


def install(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> driver.Device:
    """Let the backend find a GPU behind this driver."""
    device = driver.Device(fake)
    for module in (driver, runtime):
        monkeypatch.setattr(module, "device", lambda: device)
    monkeypatch.setattr(driver, "missing", lambda: "")
    assert backend.driver is driver
    return device
