"""CUDA regions at run time: kernels, launches and packed constants in, a callable out.

A blob is a JSON graph whose nodes are launches: the kernel's name, the buffers it is given, blocks,
threads and shared memory; its constants are weights, and the code of kernels as bytes. A call with
operands at new addresses launches kernel after kernel; when the addresses come again, as they do
(memory of values is used again), the launches become a CUDA graph, which is launched from then on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graft.backends.cuda.driver import Device, Graph, Launch, Memory, device
from graft.base.dtypes import DType
from graft.runtime.json_graph import JsonNode, unpack
from graft.runtime.loaders import versioned
from graft.runtime.memory import aligned_size

VERSION = "1"
CODE = "code:"  # constants whose names begin so are kernels
ARENA = "arena"  # the name of memory between kernels; an offset stands behind it
_GRAPHS = 8  # of different addresses that a region remembers
_LOADERS = 8  # threads that load kernels: the driver compiles PTX


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
        code = {n.removeprefix(CODE): constants.pop(n) for n in [*constants] if n.startswith(CODE)}
        functions = self._functions(code)
        offsets, total = dict[str, int](), 0
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
        self.labels = [str(node.attrs["label"]) for node in described.nodes]
        self._launches: list[tuple[Work, list[int | str]]] = []
        for node in described.nodes:
            places = [self._place(str(n), offsets) for n in node.inputs]
            self._launches.append((self.work(node, functions), places))
        self._graphs: dict[tuple[int, ...], Graph | None] = {}

    def work(self, node: JsonNode, functions: Mapping[tuple[str, int], Any]) -> Work:
        """What a node of the blob does: here, always launch a kernel."""
        attrs, shared = node.attrs, int(node.attrs["shared"])
        grid, function = tuple(attrs["grid"]), functions[node.op, shared]
        return KernelLaunch(self.device, Launch(function, grid, attrs["threads"], shared))

    def _functions(self, code: dict[str, Any]) -> dict[tuple[str, int], Any]:
        """Kernels by name and shared memory; PTX is compiled by the driver, several at a time."""
        wanted = [(name.partition("/")[0], int(name.partition("/")[2])) for name in code]
        with ThreadPoolExecutor(_LOADERS) as pool:
            modules = list(pool.map(self.device.load, (array.tobytes() for array in code.values())))
        for module in modules:
            weakref.finalize(self, self.device.unload, module)
        return {
            (name, shared): self.device.function(module, name, shared)
            for (name, shared), module in zip(wanted, modules, strict=True)
        }

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

    def addresses(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> dict[str, int]:
        """The addresses of operands by name."""
        memory = (one.address for one in (*inputs, *outputs))
        return dict(zip(self._names, memory, strict=True))

    def __call__(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        with self._lock:
            self.graph(inputs, outputs)
            self.device.synchronize()

    def graph(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Start a run: kernel by kernel the first time at these addresses, then as a graph."""
        addresses = self.addresses(inputs, outputs)
        key = tuple(addresses.values())
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

    def _forget(self, key: tuple[int, ...]) -> None:
        graph = self._graphs.pop(key)
        if graph is not None:
            graph.destroy()


@versioned(VERSION)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
