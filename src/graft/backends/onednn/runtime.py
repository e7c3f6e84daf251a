"""oneDNN regions at run time: a plan of primitives in, a callable out that works in place.

Primitives are made once. They choose how data lies in memory, which is kept from one to the next;
data is reordered where they disagree and at the region's border, constants when loading.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.runtime.cores import available_cores
from graft.runtime.json_graph import JsonGraph, JsonNode, unpack
from graft.runtime.memory import address_of, aligned_empty

# Numbers of oneDNN's C interface: settings, arguments of primitives, what can be asked for.
_F32, _ANY, _CPU, _IN_ORDER, _OWN_SCRATCHPAD = 3, 1, 1, 1, 1
_SOURCE, _TARGET, _SCRATCHPAD, _ARGUMENT_FORM = 1, 17, 80, 255
_BYTES = np.dtype(np.uint8)
_ARGUMENT = np.dtype([("number", np.int32), ("memory", np.uintp)], align=True)
INSTALL = "it needs oneDNN 3: pip install 'graft-compiler[onednn]'"


@cache
def library() -> Any:
    """oneDNN itself, loaded once, and OpenMP with it."""
    packaged = Path(sys.prefix, "lib", "libdnnl.so.3")  # where wheels put their data
    try:
        loaded = ctypes.CDLL(str(packaged) if packaged.is_file() else packaged.name)
    except OSError as error:
        raise UserError(f"oneDNN cannot run here: {INSTALL} ({error})") from None
    loaded.dnnl_version.restype = loaded.dnnl_primitive_desc_query_md.restype = c_void_p
    loaded.dnnl_memory_desc_get_size.restype = c_size_t
    loaded.dnnl_memory_set_data_handle.argtypes = (c_void_p, c_void_p)
    loaded.dnnl_primitive_execute.argtypes = (c_void_p, c_void_p, c_int, c_void_p)
    # As many threads as there are cores, unless OpenMP's environment asks for fewer.
    loaded.threads = min(available_cores(), loaded.omp_get_max_threads())
    return loaded


def _call(function: str, *args: Any) -> None:
    status = getattr(library(), f"dnnl_{function}")(*args)
    if status:
        raise EvaluationError(f"oneDNN's {function} fails with status {status}")


@dataclass(eq=False)
class _Buffer:
    """Memory: a constant's, the caller's (array number `end`), or a part of the region's own."""

    size: int
    array: Array | None = None
    end: int | None = None


@dataclass(eq=False)
class _Value:
    """A tensor: where it lies, and its form there, which oneDNN describes."""

    shape: Sequence[int]
    form: c_void_p
    buffer: _Buffer
    whole: bool = True  # neither a piece of another tensor nor one with its axes swapped
    copies: list[_Value] = field(default_factory=list)  # in other forms


_Step = tuple[c_void_p, dict[int, _Value]]  # the description of a primitive, and its arguments


def _dims(numbers: Sequence[int]) -> Any:
    return (c_int64 * 12)(*numbers)


def _chosen(description: c_void_p, argument: int) -> c_void_p:
    """The form in which a primitive takes an argument."""
    ask = library().dnnl_primitive_desc_query_md
    return c_void_p(ask(description, _ARGUMENT_FORM, argument))


class _Loader:
    """Turns a plan into primitives that follow each other, and values that they read and make."""

    def __init__(self, graph: JsonGraph) -> None:
        self.owned: list[tuple[str, c_void_p]] = []
        self.steps: list[_Step] = []
        self.engine = self.make("engine", "engine_create", _CPU, c_size_t(0))
        self.values = {name: self.value(a.shape, array=a) for name, a in graph.constants.items()}
        for end, tensor in enumerate(graph.inputs):
            self.values[tensor.name] = self.value(tensor.shape, end=end)
        for node in graph.nodes:
            values = [self.values[str(name)] for name in node.inputs]
            try:
                made = self.build(node, values)
            except EvaluationError:  # not for data in these forms, but row by row
                made = self.build(node, [self.bring(v, self.form(v.shape)) for v in values])
            self.values[node.outputs[0].name] = made
        for end, name in enumerate(graph.outputs, len(graph.inputs)):
            self.deliver(self.values[name], end)

    def make(self, kind: str, function: str, *args: Any) -> c_void_p:
        """An object of oneDNN's, which lives as long as the region."""
        _call(function, byref(made := c_void_p()), *args)
        self.owned.append((f"dnnl_{kind}_destroy", made))
        return made

    def form(self, shape: Sequence[int], free: bool = False) -> c_void_p:
        """Row by row, or as the primitive likes."""
        rows = list(accumulate(reversed(shape[1:]), int.__mul__, initial=1))[::-1]
        how, which = ("tag", _ANY) if free else ("strides", _dims(rows))
        given = len(shape), _dims(shape), _F32, which
        return self.make("memory_desc", f"memory_desc_create_with_{how}", *given)

    def value(self, shape: Sequence[int], form: c_void_p | None = None, **where: Any) -> _Value:
        form = form or self.form(shape)
        return _Value(shape, form, _Buffer(library().dnnl_memory_desc_get_size(form), **where))

    def bring(self, value: _Value, form: c_void_p) -> _Value:
        """The value in a form; what is reordered once serves all, and constants right now."""
        for known in (value, *value.copies):
            if library().dnnl_memory_desc_equal(known.form, form):
                return known
        copy = self.value(value.shape, form)
        value.copies.append(copy)
        self.reorder(value, copy)
        if value.buffer.array is not None:
            copy.buffer.array = aligned_empty((copy.buffer.size,), _BYTES)
            Region(self, [self.steps.pop()])((), ())
        return copy

    def reorder(self, source: _Value, target: _Value) -> None:
        given = source.form, self.engine, target.form, self.engine, self.attributes((), ())
        self.add("reorder", given, {_SOURCE: source, _TARGET: target})

    def add(self, op: str, given: Sequence[Any], arguments: dict[int, _Value]) -> c_void_p:
        """A primitive as the next step, with memory to work in."""
        made = self.make("primitive_desc", f"{op}_primitive_desc_create", *given)
        arguments = {n: self.bring(v, _chosen(made, n)) for n, v in arguments.items()}
        scratch = self.value((), _chosen(made, _SCRATCHPAD))
        more = {_SCRATCHPAD: scratch} if scratch.buffer.size else {}
        self.steps.append((made, {**arguments, **more}))
        return made

    def deliver(self, value: _Value, end: int) -> None:
        """Have a result written to the caller's memory at once, or reordered there at last."""
        target, buffer = self.value(value.shape, end=end), value.buffer
        own = buffer.array is None and buffer.end is None and buffer.size == target.buffer.size
        if own and library().dnnl_memory_desc_equal(value.form, target.form):
            buffer.end = end
        else:
            self.reorder(value, target)

    def build(self, node: JsonNode, values: Sequence[_Value]) -> _Value:
        shape, attrs = node.outputs[0].shape, node.attrs
        given = [self.given(item, values, shape) for item in attrs["call"]]
        if node.op.startswith("memory_desc"):  # the same memory, seen as another tensor
            form = self.make("memory_desc", node.op, values[0].form, *given)
            whole = values[0].whole and node.op.endswith("reshape")
            return _Value(shape, form, values[0].buffer, whole)
        given = [self.engine, *given, self.attributes(attrs["post"], values)]
        made = self.add(node.op, given, dict(zip(attrs["numbers"], values, strict=True)))
        self.steps[-1][1][_TARGET] = target = self.value(shape, _chosen(made, _TARGET))
        return target

    def given(self, item: Any, values: Sequence[_Value], shape: Sequence[int]) -> Any:
        """What an item of a plan stands for where a function of oneDNN's is called."""
        if isinstance(item, float | list):
            return c_float(item) if isinstance(item, float) else _dims(item)
        if not isinstance(item, str):
            return item
        what, *numbers = item.split()
        if what == "axes":
            return (c_int * 12)(*map(int, numbers))
        if what in ("target", "any"):
            return self.form(shape if what == "target" else values[int(numbers[0])].shape, True)
        # Views go in row by row: not every primitive minds strides.
        forms = [value.form if value.whole else self.form(value.shape) for value in values]
        return (c_void_p * len(forms))(*forms) if what == "all" else forms[int(numbers[0])]

    def attributes(self, posts: Sequence[Any], values: Sequence[_Value]) -> c_void_p:
        """Memory for a primitive to work in is ours; what follows it is part of it."""
        chain = self.make("post_ops", "post_ops_create")
        for alg, *rest in posts:
            if len(rest) == 2:
                _call("post_ops_append_eltwise", chain, alg, *map(c_float, rest))
            else:
                shape = values[rest[0]].shape
                form = self.form(shape, free=1 not in shape)  # what is broadcast lies in rows
                _call("post_ops_append_binary", chain, alg, form)
        made = self.make("primitive_attr", "primitive_attr_create")
        _call("primitive_attr_set_scratchpad_mode", made, _OWN_SCRATCHPAD)
        _call("primitive_attr_set_post_ops", made, chain)
        return made


def _allocate(steps: Sequence[_Step]) -> None:
    """Give the region's own buffers memory, which serves one after the other."""
    used = [dict.fromkeys(value.buffer for value in step[1].values()) for step in steps]
    last = {buffer: number for number, buffers in enumerate(used) for buffer in buffers}
    own, free = set(), list[Array]()
    for number, buffers in enumerate(used):
        for buffer in buffers:
            if buffer.array is None and buffer.end is None:
                free.sort(key=lambda array: array.nbytes)
                fit = next((i for i, a in enumerate(free) if a.nbytes >= buffer.size), None)
                buffer.array = (
                    aligned_empty((buffer.size,), _BYTES) if fit is None else free.pop(fit)
                )
                own.add(buffer)
        free += [b.array for b in own if last[b] == number and b.array is not None]


class Region:
    """A loaded region; one call at a time works on the caller's memory."""

    def __init__(self, loader: _Loader, steps: Sequence[_Step]) -> None:
        self._steps, self._lock = steps, threading.Lock()
        _allocate(steps)
        self._ends: list[tuple[int, c_void_p]] = []
        self._calls = []
        stream = loader.make("stream", "stream_create", loader.engine, _IN_ORDER)
        for description, arguments in steps:
            given = []
            for number, value in arguments.items():
                array, form = value.buffer.array, value.form
                address = None if array is None else c_void_p(address_of(array))
                memory = loader.make("memory", "memory_create", form, loader.engine, address)
                given.append((number, memory.value))
                if value.buffer.end is not None:
                    self._ends.append((value.buffer.end, memory))
            table = np.array(given, _ARGUMENT)
            primitive = loader.make("primitive", "primitive_create", description)
            self._calls.append((primitive, stream, len(given), table.ctypes.data, table))

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        functions, ends = library(), [address_of(array) for array in (*inputs, *outputs)]
        with self._lock:
            # Primitives are made for a number of threads, which OpenMP keeps per calling thread.
            functions.omp_set_num_threads(functions.threads)
            for end, memory in self._ends:
                functions.dnnl_memory_set_data_handle(memory, ends[end])
            for *call, _ in self._calls:
                status = functions.dnnl_primitive_execute(*call)
                if status:
                    raise EvaluationError(f"oneDNN fails with status {status}")


def _destroy(owned: Sequence[tuple[str, c_void_p]]) -> None:
    for function, handle in reversed(owned):
        getattr(library(), function)(handle)


def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    library().omp_set_num_threads(library().threads)
    loader = _Loader(unpack(blob))
    region = Region(loader, loader.steps)
    weakref.finalize(region, _destroy, loader.owned)
    return region
