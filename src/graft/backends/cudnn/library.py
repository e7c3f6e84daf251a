"""cuDNN's graph interface by ctypes: descriptions of operation graphs in, plans that execute out.

`operations.py` says what a description holds. cuDNN's heuristics rank its engines for a graph; the
first few that can do it are timed on this GPU, and the fastest becomes the plan, once per process
for equal graphs. Numbers of attributes and types are those of the header `cudnn_graph.h`, which do
not change within version 9.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_bool, c_char_p, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from graft.backends.cuda.driver import CudaError, Device, Memory, device
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError

INSTALL = "it needs cuDNN 9: pip install nvidia-cudnn-cu13"
_LIBRARY = "libcudnn.so.9"
_COMPANIONS = ("libnvrtc.so.*", "libcublas*.so.*")  # what engines load, beside cuDNN in a venv
_TRIED, _RUNS = 6, 10  # engines that are timed, and runs of each
_LARGEST_WORKSPACE = 1 << 28

# Kinds of descriptors.
_POINTWISE, _CONVOLUTION, _ENGINE_CONFIG, _HEURISTICS, _PLAN = 0, 1, 3, 4, 5
_CONVOLVE, _APPLY, _GRAPH, _PACK, _TENSOR, _PRODUCT, _MULTIPLY = 10, 13, 15, 16, 17, 18, 19
# Types of attributes, and what holds their values.
_HANDLE, _DATA_TYPE, _BOOLEAN, _INT64, _DOUBLE, _POINTER = 0, 1, 2, 3, 5, 6
_CONVOLUTION_MODE, _HEURISTICS_MODE, _POINTWISE_MODE, _DESCRIPTOR = 7, 8, 14, 15
_HOLDS: dict[int, Any] = {_BOOLEAN: c_bool, _INT64: c_int64, _DOUBLE: c_double}
_HOLDS |= dict.fromkeys((_HANDLE, _POINTER, _DESCRIPTOR), c_void_p)
_DTYPES = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 9}
_FLOAT, _CROSS_CORRELATION, _SPATIAL = 0, 1, 2
_RANKINGS = 3, 2  # by heuristics, and engines that nearly always work
_SETTINGS = {"lower": 3, "upper": 4, "slope": 5}  # attributes of a rectifier


class CudnnError(EvaluationError):
    """A call of cuDNN has failed."""


class Descriptor:
    """An object of cuDNN: attributes are set, then it is finalised. It keeps what it is given."""

    def __init__(self, library: Library, kind: int) -> None:
        self._library, self.handle, self._parts = library, c_void_p(), list[Descriptor]()
        library.call("cudnnBackendCreateDescriptor", kind, byref(self.handle))
        weakref.finalize(self, library.destroy, self.handle)

    def set(self, attribute: int, kind: int, *values: Any) -> Descriptor:
        self._parts += [value for value in values if isinstance(value, Descriptor)]
        plain = [value.handle.value if isinstance(value, Descriptor) else value for value in values]
        array = (_HOLDS.get(kind, c_int) * len(plain))(*plain)
        arguments = self.handle, attribute, kind, c_int64(len(plain)), array
        self._library.call("cudnnBackendSetAttribute", *arguments)
        return self

    def finalize(self) -> Descriptor:
        self._library.call("cudnnBackendFinalize", self.handle)
        return self

    def get(self, attribute: int, kind: int, array: Any = None, count: int = 0) -> int:
        """Fill an array with values of an attribute; gives how many there are."""
        total = c_int64()
        arguments = self.handle, attribute, kind, c_int64(count), byref(total), array
        self._library.call("cudnnBackendGetAttribute", *arguments)
        return total.value


@dataclass(frozen=True)
class Plan:
    """An operation graph by one engine: the number in cuDNN's ranking, bytes that it works in, and
    the tensors that are in memory with their buffers."""

    descriptor: Descriptor
    engine: int
    workspace: int
    tensors: Sequence[tuple[int, int]]


class Library:
    """cuDNN on the GPU of this process."""

    def __init__(self, loaded: Any, gpu: Device) -> None:
        self._loaded, self._gpu, self._lock = loaded, gpu, threading.RLock()
        self._loaded.cudnnGetErrorString.restype = c_char_p
        self._plans: dict[str, Plan] = {}
        self._handle = c_void_p()
        gpu.enter()
        self.call("cudnnCreate", byref(self._handle))

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._loaded, name)(*arguments)
        if status:
            text = (self._loaded.cudnnGetErrorString(status) or b"").decode()
            raise CudnnError(f"cuDNN's {name} fails: {text} ({status})")

    def destroy(self, handle: c_void_p) -> None:
        self._loaded.cudnnBackendDestroyDescriptor(handle)

    def plan(self, description: Mapping[str, Any]) -> Plan:
        """The fastest plan of an operation graph."""
        key = json.dumps(description, sort_keys=True)
        with self._lock:
            self._gpu.enter()
            if key not in self._plans:
                self._plans[key] = self._fastest(description)
            return self._plans[key]

    def execute(
        self, plan: Plan, addresses: Sequence[int], workspace: int, stream: c_void_p
    ) -> None:
        """Put a plan into a stream, tensors being at these addresses."""
        pack = Descriptor(self, _PACK)
        pack.set(1000, _INT64, *(uid for uid, _ in plan.tensors))
        pack.set(1001, _POINTER, *(addresses[buffer] for _, buffer in plan.tensors))
        pack.set(1003, _POINTER, workspace).finalize()
        with self._lock:
            self._gpu.enter()
            self.call("cudnnSetStream", self._handle, stream)
            self.call("cudnnBackendExecute", self._handle, plan.descriptor.handle, pack.handle)

    def _fastest(self, description: Mapping[str, Any]) -> Plan:
        memory = self._scratch(description)
        addresses = [one.address for one in memory]
        best: tuple[float, Plan] | None = None
        for _, plan in zip(range(_TRIED), self._supported(description), strict=False):
            workspace = self._gpu.reserve(plan.workspace)

            def run(plan: Plan = plan, workspace: Memory = workspace) -> None:
                self.execute(plan, addresses, workspace.address, self._gpu.stream)

            try:
                run()
                seconds = min(self._gpu.seconds(run, _RUNS) for _ in range(2))
            except CudnnError:  # some engines find out late that they cannot
                continue
            if best is None or seconds < best[0]:
                best = seconds, plan
        if best is None:
            kinds = "+".join(str(one["kind"]) for one in description["operations"])
            raise CudnnError(f"cuDNN has no engine for {kinds} of {description['tensors']}")
        return best[1]

    def _scratch(self, description: Mapping[str, Any]) -> list[Memory]:
        """Memory for all buffers of a graph, filled with what results of layers look like."""
        random, memory = np.random.default_rng(0), dict[int, Memory]()
        for tensor in description["tensors"]:
            if tensor["buffer"] is not None:
                ends = zip(tensor["extents"], tensor["strides"], strict=True)
                count = 1 + sum((extent - 1) * stride for extent, stride in ends)
                dtype = DType(tensor["dtype"]).numpy
                array = random.standard_normal(count, np.float32).astype(dtype)
                memory[tensor["buffer"]] = self._gpu.reserve(array.nbytes)
                self._gpu.upload(array, memory[tensor["buffer"]])
        self._gpu.synchronize()
        return [memory[number] for number in sorted(memory)]

    def _supported(self, description: Mapping[str, Any]) -> Iterator[Plan]:
        """Plans by all engines that can compute a graph, the most promising first."""
        graph = self._graph(description)
        tensors = [
            (number + 1, one["buffer"])
            for number, one in enumerate(description["tensors"])
            if one["buffer"] is not None
        ]
        rank = 0
        for ranking in _RANKINGS:
            for config in self._configurations(graph, ranking):
                rank += 1
                plan = Descriptor(self, _PLAN)
                try:
                    plan.set(400, _HANDLE, self._handle.value).set(401, _DESCRIPTOR, config)
                    plan.finalize()
                    size = c_int64()
                    plan.get(402, _INT64, byref(size), 1)
                except CudnnError:
                    continue
                if size.value <= _LARGEST_WORKSPACE:
                    yield Plan(plan, rank, size.value, tensors)

    def _configurations(self, graph: Descriptor, ranking: int) -> list[Descriptor]:
        heuristics = Descriptor(self, _HEURISTICS)
        heuristics.set(201, _DESCRIPTOR, graph).set(200, _HEURISTICS_MODE, ranking)
        try:
            heuristics.finalize()
            count = heuristics.get(202, _DESCRIPTOR)
        except CudnnError:
            return []
        configs = [Descriptor(self, _ENGINE_CONFIG) for _ in range(count)]
        array = (c_void_p * count)(*(config.handle.value for config in configs))
        return configs[: heuristics.get(202, _DESCRIPTOR, array, count)]

    def _graph(self, description: Mapping[str, Any]) -> Descriptor:
        tensors = [self._tensor(*one) for one in enumerate(description["tensors"])]
        operations = [
            _OPERATIONS[one["kind"]](
                self, one, [tensors[n] for n in one["operands"]], tensors[one["result"]]
            ).finalize()
            for one in description["operations"]
        ]
        graph = Descriptor(self, _GRAPH).set(801, _DESCRIPTOR, *operations)
        return graph.set(800, _HANDLE, self._handle.value).finalize()

    def _tensor(self, number: int, tensor: Mapping[str, Any]) -> Descriptor:
        made = Descriptor(self, _TENSOR).set(901, _DATA_TYPE, _DTYPES[DType(tensor["dtype"])])
        made.set(902, _INT64, *tensor["extents"]).set(903, _INT64, *tensor["strides"])
        made.set(906, _INT64, number + 1).set(900, _INT64, 16)
        return made.set(907, _BOOLEAN, tensor["buffer"] is None).finalize()


def _convolution(
    library: Library, one: Mapping[str, Any], operands: Sequence[Descriptor], result: Descriptor
) -> Descriptor:
    how = Descriptor(library, _CONVOLUTION).set(100, _DATA_TYPE, _FLOAT)
    how.set(101, _CONVOLUTION_MODE, _CROSS_CORRELATION).set(106, _INT64, _SPATIAL)
    for attribute, name in ((102, "dilation"), (103, "strides"), (104, "after"), (105, "before")):
        how.set(attribute, _INT64, *one[name])
    made = Descriptor(library, _CONVOLVE).set(702, _DESCRIPTOR, how.finalize())
    made.set(704, _DESCRIPTOR, operands[0]).set(703, _DESCRIPTOR, operands[1])
    return made.set(705, _DESCRIPTOR, result).set(700, _DOUBLE, 1.0).set(701, _DOUBLE, 0.0)


def _product(
    library: Library, one: Mapping[str, Any], operands: Sequence[Descriptor], result: Descriptor
) -> Descriptor:
    how = Descriptor(library, _PRODUCT).set(1500, _DATA_TYPE, _FLOAT).finalize()
    made = Descriptor(library, _MULTIPLY).set(1523, _DESCRIPTOR, how)
    for attribute, tensor in zip((1520, 1521, 1522), (*operands, result), strict=True):
        made.set(attribute, _DESCRIPTOR, tensor)
    return made


def _pointwise(
    library: Library, one: Mapping[str, Any], operands: Sequence[Descriptor], result: Descriptor
) -> Descriptor:
    how = Descriptor(library, _POINTWISE).set(0, _POINTWISE_MODE, one["mode"])
    how.set(1, _DATA_TYPE, _FLOAT)
    for name, attribute in _SETTINGS.items():
        if name in one:
            how.set(attribute, _DOUBLE, one[name])
    made = Descriptor(library, _APPLY).set(750, _DESCRIPTOR, how.finalize())
    for attribute, tensor in zip((751, 752), operands, strict=False):
        made.set(attribute, _DESCRIPTOR, tensor)
    return made.set(753, _DESCRIPTOR, result)


_OPERATIONS = {"convolution": _convolution, "product": _product, "pointwise": _pointwise}


@cache
def library() -> Library:
    """cuDNN, or an error that says what is missing."""
    return Library(_loaded(), device())


@cache
def _loaded() -> Any:
    """The shared library: the system's, or that of NVIDIA's package in this environment."""
    for folder in _folders():
        for pattern in _COMPANIONS:
            for path in sorted(folder.glob(pattern)):
                _open(str(path))
    names = (_LIBRARY, *(str(folder / _LIBRARY) for folder in _folders()))
    for name in names:
        loaded = _open(name)
        if loaded is not None:
            return loaded
    raise CudnnError(f"{_LIBRARY} cannot be loaded; {INSTALL}")


def _folders() -> list[Path]:
    """Where NVIDIA's packages keep libraries."""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found is not None else None
    return [path for root in roots or () for path in Path(root).glob("*/lib")]


def _open(name: str) -> Any:
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def missing() -> str:
    """What this machine lacks beside a GPU; empty where nothing."""
    try:
        library()
    except (CudnnError, CudaError) as error:
        return error.message
    return ""
