"""oneDNN regions at run time: a plan of primitives in, a callable out that works in place."""
# Primitives are made once. They choose how data lies in memory, which is kept from one to the next;
# data is reordered where they disagree and at the region's border, constants when loading.

from __future__ import annotations

import ctypes
import os
import sysconfig
import threading
import weakref
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.runtime.cores import available_cores
from graft.runtime.json_graph import JsonGraph, JsonNode, unpack
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of, aligned_empty

# Numbers of oneDNN's C interface: settings, arguments of primitives, what can be asked for.
_F32, _ANY, _CPU, _IN_ORDER, _OWN_SCRATCHPAD = 3, 1, 1, 1, 1
_SOURCE, _TARGET, _SCRATCHPAD, _ARGUMENT_FORM = 1, 17, 80, 255
_BYTE, _ARGUMENT = np.dtype("u1"), np.dtype([("number", "i4"), ("memory", "u8")], align=True)
INSTALL = "it needs oneDNN 3: pip install 'graft-compiler[onednn]'"


@cache
def library() -> Any:
    """oneDNN itself, loaded once, and OpenMP with it."""
    # Threads that wait by spinning would take the cores from the host's.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        loaded: Any = ctypes.CDLL(f"{sysconfig.get_path('data')}/lib/libdnnl.so.3")
    except OSError as error:
        raise UserError(f"oneDNN cannot run here: {INSTALL} ({error})") from None
    loaded.dnnl_version.restype = loaded.dnnl_primitive_desc_query_md.restype = c_void_p
    loaded.dnnl_memory_desc_get_size.restype = c_size_t
    # As many threads as there are cores, unless OpenMP's environment asks for fewer.
    loaded.threads = min(available_cores(), loaded.omp_get_max_threads())
    return loaded


def _call(function: str, *args: Any) -> None:
    if status := getattr(library(), f"dnnl_{function}")(*args):
        raise EvaluationError(f"oneDNN's {function} fails with status {status}")


def _dims(numbers: Sequence[int]) -> Any:
    return (c_int64 * 12)(*numbers)


# The form in which a primitive takes an argument.
def _chosen(made: c_void_p, number: int) -> c_void_p:
    return c_void_p(library().dnnl_primitive_desc_query_md(made, _ARGUMENT_FORM, number))


# Memory of the region's own or a constant's, or else the caller's array number `end`.
class _Buffer:
    def __init__(self, size: int, array: Array | None = None, end: int | None = None) -> None:
        self.size, self.array, self.end = size, array, end


# A tensor: its form says how it lies in the buffer; copies of it have other forms.
class _Value:
    def __init__(self, shape: Sequence[int], form: c_void_p, buffer: _Buffer) -> None:
        self.shape, self.form, self.buffer, self.copies = shape, form, buffer, list[_Value]()


_Step = tuple[c_void_p, dict[int, _Value]]  # the description of a primitive, and its arguments


# Give buffers of the steps' own memory, which serves one after the other.
def _allocate(steps: Sequence[_Step]) -> None:
    used = [{value.buffer for value in arguments.values()} for _, arguments in steps]
    last = {buffer: number for number, buffers in enumerate(used) for buffer in buffers}
    own = {buffer for buffer in last if buffer.array is None and buffer.end is None}
    free: list[Array] = []
    for number, buffers in enumerate(used):
        for buffer in sorted(own & buffers, key=lambda each: -each.size):
            if buffer.array is None:
                fits = [(a.nbytes, i) for i, a in enumerate(free) if a.nbytes >= buffer.size]
                fresh = None if fits else aligned_empty((buffer.size,), _BYTE)
                buffer.array = free.pop(min(fits)[1]) if fits else fresh
        free += [b.array for b in own & buffers if last[b] == number and b.array is not None]


class Region:
    """A loaded region; one call at a time works on the caller's memory."""

    def __init__(self, graph: JsonGraph, threads: int | None = None) -> None:
        self._threads = threads or library().threads
        library().omp_set_num_threads(self._threads)
        self._steps, self._ends, self._lock = list[_Step](), list[Any](), threading.Lock()
        self._engine = self._make("engine", "engine_create", _CPU, c_size_t(0))
        self._stream = self._make("stream", "stream_create", self._engine, _IN_ORDER)
        values = {name: self._value(a.shape, array=a) for name, a in graph.constants.items()}
        for end, tensor in enumerate(graph.inputs):
            values[tensor.name] = self._value(tensor.extents, end=end)
        for node in graph.nodes:
            operands = [values[str(name)] for name in node.inputs]
            try:
                made = self._build(node, operands)
            except EvaluationError:  # not for data in these forms, but row by row
                made = self._build(node, [self._bring(v, self._form(v.shape)) for v in operands])
            values[node.outputs[0].name] = made
        for end, name in enumerate(graph.outputs, len(graph.inputs)):
            self._deliver(values[name], end)
        _allocate(self._steps)
        self._calls = [self._prepared(*step) for step in self._steps]

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        ends = [c_void_p(address_of(array)) for array in (*inputs, *outputs)]
        bind, execute = library().dnnl_memory_set_data_handle, library().dnnl_primitive_execute
        with self._lock:
            # Primitives are made for a number of threads, which OpenMP keeps per calling thread.
            library().omp_set_num_threads(self._threads)
            for end, memory in self._ends:
                bind(memory, ends[end])
            if any(execute(*call) for call in self._calls):
                raise EvaluationError("a primitive of oneDNN's failed")

    # An object of oneDNN's, which lives as long as the region.
    def _make(self, kind: str, function: str, *args: Any) -> c_void_p:
        _call(function, byref(made := c_void_p()), *args)
        weakref.finalize(self, getattr(library(), f"dnnl_{kind}_destroy"), made)
        return made

    # Row by row, or as the primitive likes.
    def _form(self, shape: Sequence[int], free: bool = False) -> c_void_p:
        how, which = ("tag", _ANY) if free else ("strides", None)
        given = len(shape), _dims(shape), _F32, which
        return self._make("memory_desc", f"memory_desc_create_with_{how}", *given)

    def _value(self, shape: Sequence[int], form: c_void_p | None = None, **where: Any) -> _Value:
        form = form or self._form(shape)
        return _Value(shape, form, _Buffer(library().dnnl_memory_desc_get_size(form), **where))

    # A value in a form. What has been reordered serves all who want it so; constants are now.
    def _bring(self, value: _Value, form: c_void_p) -> _Value:
        for known in (value, *value.copies):
            if library().dnnl_memory_desc_equal(known.form, form):
                # Equal forms may differ in strides of single elements, which matter for views.
                return _Value(value.shape, form, known.buffer)
        value.copies.append(copy := self._value(value.shape, form))
        self._reorder(value, copy)
        if value.buffer.array is not None:
            _allocate(self._steps[-1:])
            _call("primitive_execute", *self._prepared(*self._steps.pop()))
        return copy

    def _reorder(self, source: _Value, target: _Value) -> None:
        given = source.form, self._engine, target.form, self._engine, self._attributes((), (), ())
        self._add("reorder", given, {_SOURCE: source, _TARGET: target})

    # A primitive as the next step, with operands as it wants them and memory to work in.
    def _add(self, op: str, given: Sequence[Any], arguments: dict[int, _Value]) -> c_void_p:
        made = self._make("primitive_desc", f"{op}_primitive_desc_create", *given)
        arguments = {n: self._bring(v, _chosen(made, n)) for n, v in arguments.items()}
        scratch = self._value((), _chosen(made, _SCRATCHPAD))
        arguments |= {_SCRATCHPAD: scratch} if scratch.buffer.size else {}
        self._steps.append((made, arguments))
        return made

    # Have a result written to the caller's memory at once, or reordered there at last.
    def _deliver(self, value: _Value, end: int) -> None:
        target, buffer = self._value(value.shape, end=end), value.buffer
        own = buffer.array is None and buffer.end is None and buffer.size == target.buffer.size
        if own and library().dnnl_memory_desc_equal(value.form, target.form):
            buffer.end = end
        else:
            self._reorder(value, target)

    def _build(self, node: JsonNode, values: Sequence[_Value]) -> _Value:
        shape, attrs = node.outputs[0].extents, node.attrs
        given = [self._given(item, values, shape) for item in attrs["call"]]
        if node.op.startswith("memory_desc"):  # the same memory, seen as another tensor
            form = self._make("memory_desc", node.op, values[0].form, *given)
            seen = _Value(shape, form, values[0].buffer)
            # Not every primitive minds strides.
            return seen if node.op.endswith("reshape") else self._bring(seen, self._form(shape))
        given = [self._engine, *given, self._attributes(attrs["post"], values, shape)]
        made = self._add(node.op, given, dict(zip(attrs["numbers"], values, strict=True)))
        self._steps[-1][1][_TARGET] = target = self._value(shape, _chosen(made, _TARGET))
        return target

    # What an item of a plan stands for where a function of oneDNN's is called.
    def _given(self, item: Any, values: Sequence[_Value], shape: Sequence[int]) -> Any:
        if not isinstance(item, dict):
            convert: Any = {float: c_float, list: _dims}.get(type(item), lambda plain: plain)
            return convert(item)
        if "axes" in item:
            return (c_int * 12)(*item["axes"])
        if "all" in item:
            return (c_void_p * len(values))(*(value.form.value for value in values))
        if "own" in item:
            return values[item["own"]].form
        return self._form(values[item["any"]].shape if item else shape, free=True)

    # Memory for a primitive to work in is ours; what follows it is part of it.
    def _attributes(self, posts: Sequence[Any], values: Any, shape: Sequence[int]) -> c_void_p:
        chain = self._make("post_ops", "post_ops_create")
        for alg, *rest in posts:
            if len(rest) == 2:
                _call("post_ops_append_eltwise", chain, alg, *map(c_float, rest))
            else:
                extents = values[rest[0]].shape  # what is broadcast lies in rows
                form = self._form(extents, free=extents == shape)
                _call("post_ops_append_binary", chain, alg, form)
        made = self._make("primitive_attr", "primitive_attr_create")
        _call("primitive_attr_set_scratchpad_mode", made, _OWN_SCRATCHPAD)
        _call("primitive_attr_set_post_ops", made, chain)
        return made

    # What executes a step.
    def _prepared(self, description: c_void_p, arguments: dict[int, _Value]) -> Sequence[Any]:
        table = np.zeros(len(arguments), _ARGUMENT)
        for index, (number, value) in enumerate(arguments.items()):
            array, end = value.buffer.array, value.buffer.end
            address = None if array is None else c_void_p(address_of(array))
            memory = self._make("memory", "memory_create", value.form, self._engine, address)
            table[index] = number, memory.value
            self._ends += [] if end is None else [(end, memory)]
        primitive = self._make("primitive", "primitive_create", description)
        return primitive, self._stream, len(table), table.ctypes.data_as(c_void_p)


# Code is a graph whose primitives are made anew, by any oneDNN 3.
@versioned("3", loads=lambda version: version.startswith("3."))
def load(blob: bytes, threads: int | None = None) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(unpack(blob), threads)
