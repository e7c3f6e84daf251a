"""CUDA regions at run time: kernels, launches and packed constants in, a callable out.

A blob is a JSON graph whose nodes are launches: the kernel's name, the buffers it is given, blocks,
threads and shared memory; its constants are weights, and the code of kernels as bytes: PTX and,
where the region was compiled on a GPU, machine code of that one. A call with operands at new
addresses launches kernel after kernel; when the addresses come again, as they do (memory of values
is used again), the launches become a CUDA graph, which is launched from then on. A region that is
one persistent kernel (`persistent.py`) needs none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import c_void_p
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from graft.backends.cuda.dlpack import DeviceTensor, borrow
from graft.backends.cuda.driver import (
    CudaError,
    Device,
    Graph,
    Launch,
    Memory,
    device,
    resident_blocks,
)
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.runtime.json_graph import JsonNode, unpack
from graft.runtime.loaders import versioned
from graft.runtime.memory import aligned_size

VERSION = "2"
# Constants whose names begin so are kernels: PTX, and machine code.
CODE, BINARY = "code:", "binary:"
ARENA = "arena"  # the name of memory between kernels; an offset stands behind it
_GRAPHS = 8  # of different addresses that a region remembers
_LOADERS = 8  # threads that load kernels: the driver compiles PTX
_REPETITIONS, _ROUNDS = 50, 5  # of runs that are timed
_NOTHING = np.zeros(0, np.uint8)


Operands = Sequence[Memory | DeviceTensor]


class Work(Protocol):
    """Something that is put into a stream: a kernel, or a library's call."""

    def start(self, addresses: Sequence[int], stream: c_void_p) -> None:
        """Start it on memory at these addresses."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel of the region's own."""

    device: Device
    launch: Launch

    def start(self, addresses: Sequence[int], stream: c_void_p) -> None:
        self.device.launch(self.launch, addresses, stream)

    def __str__(self) -> str:
        one = self.launch
        return f"{one.grid} x {one.threads}, {one.shared_bytes} bytes shared"


class Region:
    """A loaded region; one call at a time works on the GPU's memory."""

    def __init__(self, blob: bytes) -> None:
        self.device: Device = device()
        self._lock = threading.Lock()
        described = unpack(blob)
        constants = dict(described.constants)
        kernels = [name for name in constants if name.startswith(CODE)]
        code = {
            name.removeprefix(CODE): (
                constants.pop(name).tobytes(),
                constants.pop(BINARY + name.removeprefix(CODE), _NOTHING).tobytes(),
            )
            for name in kernels
        }
        modules = self._modules(code)
        self._offsets = offsets = dict[str, int]()
        total = 0
        for name, array in constants.items():
            offsets[name], total = total, aligned_size(total + array.nbytes)
        packed = np.zeros(max(total, 1), np.uint8)
        for name, array in constants.items():
            view = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            packed[offsets[name] : offsets[name] + array.nbytes] = view
        self._constants = self.device.reserve(packed.nbytes)
        self.device.upload(packed, self._constants)
        self.device.synchronize()
        facts = described.nodes[0].attrs if described.nodes else {}
        self.rounding = DType(facts.get("rounding", DType.FLOAT32))
        self._arena = self.device.reserve(int(facts.get("arena_bytes", 0)))
        self._names = [tensor.name for tensor in described.inputs] + list(described.outputs)
        self._input_types = [(one.dtype.numpy, one.extents) for one in described.inputs]
        self._output_types = [
            (DType(dtype).numpy, tuple(shape)) for dtype, shape in facts.get("outputs", ())
        ]
        self.labels = [str(node.attrs["label"]) for node in described.nodes]
        self._launches: list[tuple[Work, list[int | str]]] = []
        for node in described.nodes:
            places = [self._place(str(n), offsets) for n in node.inputs]
            self._launches.append((self.work(node, modules), places))
        self._graphs: dict[tuple[int, ...], Graph | None] = {}

    def work(self, node: JsonNode, modules: Mapping[str, c_void_p]) -> Work:
        """What a node of the blob does: here, always launch a kernel."""
        attrs, shared = node.attrs, int(node.attrs["shared"])
        function, grid = self.device.function(modules[node.op], node.op, shared), attrs["grid"]
        launch = Launch(function, tuple(grid), attrs["threads"], shared)
        if not grid[0]:
            cluster = int(attrs["cluster"])
            blocks = resident_blocks(self.device, replace(launch, grid=(cluster, 1, 1)), cluster)
            if not blocks:
                raise CudaError(f"no block of {launch.threads} threads and {shared} bytes fits")
            launch = replace(launch, grid=(blocks, 1, 1), is_cooperative=True)
        return KernelLaunch(self.device, launch)

    def _modules(self, code: Mapping[str, tuple[bytes, bytes]]) -> dict[str, c_void_p]:
        """Modules of kernels by name; PTX is compiled by the driver, several at a time."""
        with ThreadPoolExecutor(_LOADERS) as pool:
            modules = dict(zip(code, pool.map(self._module, code.values()), strict=True))
        for module in modules.values():
            weakref.finalize(self, self.device.unload, module)
        return modules

    def _module(self, code: tuple[bytes, bytes]) -> c_void_p:
        """A module of machine code where it is of this GPU's kind, else of PTX."""
        text, binary = code
        with suppress(CudaError):
            if binary:
                return self.device.load(binary)
        return self.device.load(text)

    def _place(self, name: str, offsets: dict[str, int]) -> int | str:
        """The address of a constant or of a part of the arena; an operand's name stays."""
        if name in offsets:
            return self._constants.address + offsets[name]
        if name.startswith(f"{ARENA}+"):
            return self._arena.address + int(name.partition("+")[2])
        return name

    def issue(self, addresses: dict[str, int], stream: c_void_p | None = None) -> None:
        """Launch all kernels, operands being at these addresses."""
        for number in range(len(self._launches)):
            self.launch(number, addresses, stream)

    def launch(
        self, number: int, addresses: dict[str, int], stream: c_void_p | None = None
    ) -> None:
        """Launch one kernel."""
        work, places = self._launches[number]
        found = [place if isinstance(place, int) else addresses[place] for place in places]
        work.start(found, stream or self.device.stream)

    def described(self, number: int) -> str:
        """A launch in words."""
        return str(self._launches[number][0])

    def constant(self, name: str, size: int) -> Array:
        """The bytes of a constant as they are on the GPU."""
        result, address = np.empty(size, np.uint8), self._constants.address + self._offsets[name]
        self.device.download(Memory(address, size, self._constants), result)
        return result

    def on_tensors(self, tensors: Sequence[Any]) -> list[DeviceTensor]:
        """Run on tensors of other libraries in the GPU's memory, without a copy (DLPack); what it
        gives, they take in the same way."""
        inputs = [borrow(tensor, int(self.device.stream.value or 0)) for tensor in tensors]
        kinds = [(one.dtype, one.shape) for one in inputs]
        if kinds != self._input_types:
            raise UserError(f"the region takes {self._input_types}, not {kinds}")
        outputs = []
        for dtype, shape in self._output_types:
            memory = self.device.allocate(shape, dtype)
            outputs.append(DeviceTensor(memory.address, shape, dtype, memory))
        self(inputs, outputs)
        return outputs

    def addresses(self, inputs: Operands, outputs: Operands) -> dict[str, int]:
        """The addresses of operands by name."""
        memory = (one.address for one in (*inputs, *outputs))
        return dict(zip(self._names, memory, strict=True))

    def __call__(self, inputs: Operands, outputs: Operands) -> None:
        with self._lock:
            self.graph(inputs, outputs)
            self.device.synchronize()

    def graph(self, inputs: Operands, outputs: Operands) -> None:
        """Start a run: kernel by kernel the first time at these addresses, then as a graph."""
        addresses = self.addresses(inputs, outputs)
        key = tuple(addresses.values())
        if len(self._launches) == 1:
            self.issue(addresses)
            return
        if key not in self._graphs:
            self.issue(addresses)
            while len(self._graphs) >= _GRAPHS:
                self._forget(next(iter(self._graphs)))
            self._graphs[key] = None
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self.device.capture(lambda stream: self.issue(addresses, stream))
            self._graphs[key] = graph
        graph.launch()

    def seconds(self, inputs: Operands, outputs: Operands) -> float:
        """What a run takes by the GPU's clock, the operands being there: a median."""
        for _ in range(3):
            self(inputs, outputs)
        times = [
            self.device.seconds(lambda: self.graph(inputs, outputs), _REPETITIONS)
            for _ in range(_ROUNDS)
        ]
        return sorted(times)[_ROUNDS // 2]

    def _forget(self, key: tuple[int, ...]) -> None:
        graph = self._graphs.pop(key)
        if graph is not None:
            graph.destroy()


@versioned(VERSION)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
