"""The CUDA driver by ctypes: memory, modules, launches, graphs and events of one GPU.

Nothing is loaded before `device()` is called; `missing()` says what a machine lacks, and never
raises. All work goes through one stream, so that copies and kernels are ordered as they are issued.
Errors name the call and say what the driver says.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from graft.backends.cuda.page_locked import PageLocked
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.runtime.memory import address_of

HOPPER = (9, 0)
_LIBRARY = "libcuda.so.1"
_DYNAMIC_SHARED = 8  # the attribute of a function that allows it more than 48 KB
# Attributes of a launch: all blocks run at once; blocks of a cluster; it overlaps the one before.
_COOPERATIVE, _CLUSTER, _PROGRAMMATIC = 2, 4, 6
_MAJOR, _MINOR, _PROCESSORS, _L2 = 75, 76, 16, 38  # attributes of a device
_THREAD_LOCAL = 1  # capturing one thread's launches does not forbid others theirs
_LOG, _LOG_SIZE = 5, 6  # options of loading a module: where errors go
_LOG_BYTES = 4096
_PTX = 1  # what a linker is given
_PORTABLE = 1  # page-locked memory is that for all contexts


class CudaError(EvaluationError):
    """A call of the driver has failed."""


class _Attribute(ctypes.Structure):
    """One attribute of a launch; its value is a union of 64 bytes."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", c_uint),
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and how it is launched: blocks, threads of a block, bytes of shared memory.
    `is_cooperative`: all blocks run at once, or none."""

    function: c_void_p
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0
    is_cooperative: bool = False

    def config(self, stream: c_void_p, attribute: int, *values: int) -> _LaunchConfig:
        """What the driver is told of it, with one attribute."""
        one = _Attribute(attribute, 0, (c_int * 16)(*values))
        grid, block = (c_uint * 3)(*self.grid), (c_uint * 3)(self.threads, 1, 1)
        return _LaunchConfig(grid, block, self.shared_bytes, stream, ctypes.pointer(one), 1)


@dataclass(eq=False)
class Memory:
    """Some bytes of the GPU's: a part of its owner's, or its own, which go back to it."""

    address: int
    size: int
    owner: object = None


class Device:
    """The first GPU of this process: its memory (as `runtime.spaces.Device`), and its stream."""

    def __init__(self, library: Any) -> None:
        self._library, self._lock = library, threading.RLock()
        self.call("cuInit", 0)
        number = c_int()
        self.call("cuDeviceGet", byref(number), 0)
        self._number = number
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), number)
        self._bound = threading.local()
        self.stream, self._capturing = c_void_p(), c_void_p()
        for stream in (self.stream, self._capturing):
            self.driver("cuStreamCreate", byref(stream), 0)
        self.host_array = PageLocked(partial(_page_locked, self)).array

    def call(self, name: str, *arguments: Any) -> None:
        """A call that needs no context."""
        status = getattr(self._library, name)(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorString(status, byref(text))
            words = (text.value or b"unknown error").decode()
            raise CudaError(f"the CUDA driver's {name} fails: {words} ({status})")

    def driver(self, name: str, *arguments: Any) -> None:
        """A call in the GPU's context."""
        self.enter()
        self.call(name, *arguments)

    def enter(self) -> None:
        """Make the GPU's context this thread's; every thread has to do that first."""
        if not getattr(self._bound, "done", False):
            self.call("cuCtxSetCurrent", self._context)
            self._bound.done = True

    def attribute(self, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self._number)
        return value.value

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, 128, self._number)
        return text.value.decode()

    @property
    def capability(self) -> tuple[int, int]:
        return self.attribute(_MAJOR), self.attribute(_MINOR)

    @property
    def processors(self) -> int:
        return self.attribute(_PROCESSORS)

    # Memory.

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Memory:
        return self.reserve(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)

    def reserve(self, size: int) -> Memory:
        """So many bytes, which go back to the GPU with the object."""
        pointer = c_void_p()
        self.driver("cuMemAlloc_v2", byref(pointer), c_size_t(max(size, 1)))
        memory = Memory(int(pointer.value or 0), size)
        weakref.finalize(memory, self.release, memory.address)
        return memory

    def release(self, address: int) -> None:
        """Give memory back; nothing can be done about it where that fails."""
        self._library.cuCtxSetCurrent(self._context)
        self._library.cuMemFree_v2(c_void_p(address))

    def upload(self, array: Array, memory: Memory) -> None:
        if array.nbytes:
            source = np.ascontiguousarray(array)
            target, size = c_void_p(memory.address), c_size_t(source.nbytes)
            address = c_void_p(address_of(source))
            self.driver("cuMemcpyHtoDAsync_v2", target, address, size, self.stream)

    def download(self, memory: Memory, array: Array) -> None:
        if array.nbytes:
            source, size = c_void_p(memory.address), c_size_t(array.nbytes)
            target = c_void_p(address_of(array))
            self.driver("cuMemcpyDtoHAsync_v2", target, source, size, self.stream)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for all that has been issued; its errors are raised here."""
        self.driver("cuStreamSynchronize", self.stream)

    # Code.

    def load(self, code: bytes) -> c_void_p:
        """A module of PTX or machine code."""
        module, log = c_void_p(), ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_LOG, _LOG_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            self.driver("cuModuleLoadDataEx", byref(module), code + b"\0", 2, options, values)
        except CudaError as error:
            raise CudaError(f"{error.message}: {log.value.decode(errors='replace')}") from None
        return module

    def unload(self, module: c_void_p) -> None:
        """Forget a module."""
        self._library.cuCtxSetCurrent(self._context)
        self._library.cuModuleUnload(module)

    def function(self, module: c_void_p, name: str, shared_bytes: int) -> c_void_p:
        """A kernel of a module that may use so much shared memory."""
        function = c_void_p()
        self.driver("cuModuleGetFunction", byref(function), module, name.encode())
        if shared_bytes:
            self.driver("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared_bytes)
        return function

    def launch(
        self, launch: Launch, addresses: Sequence[int], stream: c_void_p | None = None
    ) -> None:
        """Start a kernel on memory at these addresses, as soon as the one before lets it."""
        values = (c_void_p * len(addresses))(*addresses)
        first, size = ctypes.addressof(values), ctypes.sizeof(c_void_p)
        arguments = (c_void_p * len(addresses))(*(first + size * i for i in range(len(addresses))))
        attribute = _COOPERATIVE if launch.is_cooperative else _PROGRAMMATIC
        config = launch.config(stream or self.stream, attribute, 1)
        self.driver("cuLaunchKernelEx", byref(config), launch.function, arguments, None)

    def capture(self, issue: Callable[[c_void_p], None]) -> Graph:
        """What `issue` launches into a stream, as a graph to be launched as a whole.

        That stream is for capturing alone: other threads go on using the device's own."""
        with self._lock:
            self.driver("cuStreamBeginCapture_v2", self._capturing, _THREAD_LOCAL)
            graph = c_void_p()
            try:
                issue(self._capturing)
            finally:
                self.driver("cuStreamEndCapture", self._capturing, byref(graph))
        return Graph(self, graph)

    def seconds(self, issue: Callable[[], None], count: int) -> float:
        """The time per call of what is issued so many times in a row, by the GPU's clock."""
        events = [c_void_p(), c_void_p()]
        for event in events:
            self.driver("cuEventCreate", byref(event), 0)
        self.driver("cuEventRecord", events[0], self.stream)
        for _ in range(count):
            issue()
        self.driver("cuEventRecord", events[1], self.stream)
        self.synchronize()
        elapsed = c_float()
        self.driver("cuEventElapsedTime", byref(elapsed), *events)
        for event in events:
            self.driver("cuEventDestroy_v2", event)
        return elapsed.value / 1e3 / count


def _page_locked(device: Device, size: int) -> int:
    """The address of so many bytes of the host's, which are kept; 0 where there are no more."""
    pointer = c_void_p()
    with suppress(CudaError):
        device.driver("cuMemHostAlloc", byref(pointer), c_size_t(size), _PORTABLE)
    return pointer.value or 0


def version(device: Device) -> int:
    """The driver's version, as CUDA counts: 13000 for 13.0."""
    number = c_int()
    device.call("cuDriverGetVersion", byref(number))
    return number.value


def assembled(device: Device, text: str) -> bytes:
    """PTX as machine code of this GPU."""
    state, code, size = c_void_p(), c_void_p(), c_size_t()
    data = text.encode() + b"\0"
    device.driver("cuLinkCreate_v2", 0, None, None, byref(state))
    try:
        source = _PTX, data, c_size_t(len(data)), b"region", 0, None, None
        device.driver("cuLinkAddData_v2", state, *source)
        device.driver("cuLinkComplete", state, byref(code), byref(size))
        return ctypes.string_at(code, size.value)
    finally:
        device.driver("cuLinkDestroy", state)


def resident_blocks(device: Device, launch: Launch, cluster: int) -> int:
    """How many blocks of a kernel the GPU runs at once."""
    count = c_int()
    if cluster == 1:
        name, size = (
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            c_size_t(launch.shared_bytes),
        )
        device.driver(name, byref(count), launch.function, launch.threads, size)
        return count.value * device.processors
    config = launch.config(device.stream, _CLUSTER, cluster, 1, 1)
    device.driver("cuOccupancyMaxActiveClusters", byref(count), launch.function, byref(config))
    return count.value * cluster


class Graph:
    """Launches that were captured, instantiated."""

    def __init__(self, device: Device, graph: c_void_p) -> None:
        self._device, self._executable = device, c_void_p()
        device.driver("cuGraphInstantiateWithFlags", byref(self._executable), graph, 0)
        device.driver("cuGraphDestroy", graph)

    def launch(self) -> None:
        self._device.driver("cuGraphLaunch", self._executable, self._device.stream)

    def destroy(self) -> None:
        self._device.driver("cuGraphExecDestroy", self._executable)


@cache
def device() -> Device:
    """The GPU, or an error that says what is missing."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise CudaError(f"there is no CUDA driver: {_LIBRARY} cannot be loaded") from None
    found = Device(library)
    if found.capability != HOPPER:
        major, minor = found.capability
        raise CudaError(f"code is made for GPUs of compute capability 9.0, not {major}.{minor}")
    return found


def missing() -> str:
    """What this machine lacks to run kernels; empty where nothing."""
    try:
        device()
    except CudaError as error:
        return f"it needs an NVIDIA GPU (Hopper) and its driver: {error.message}"
    return ""
