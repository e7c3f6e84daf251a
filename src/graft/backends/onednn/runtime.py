"""oneDNN regions at run time: a plan of primitives in, a callable out that works in place."""
# Primitives are made once for each size of a symbolic shape. They choose how data lies in memory,
# which is kept from one to the next; data is reordered where they disagree and at the region's
# border, constants once for all sizes.

from __future__ import annotations

import ctypes
import os
import sysconfig
import threading
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from graft.base.cores import available_cores
from graft.base.dims import evaluate_dim, parse_dim, symbols_of
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError, UserError
from graft.runtime.json_graph import JsonGraph, JsonNode, unpack
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of, aligned_empty

# Numbers of oneDNN's C interface: dtypes, settings, arguments of primitives, what can be asked for.
_NUMBER_OF = {DType.FLOAT16: 1, DType.BFLOAT16: 2, DType.FLOAT32: 3}
_NUMBER_OF |= {DType.INT32: 4, DType.INT8: 5, DType.UINT8: 6}
_ANY, _CPU, _IN_ORDER, _OWN_SCRATCHPAD, _UNIMPLEMENTED = 1, 1, 1, 1, 3
_SOURCE, _TARGET, _SCRATCHPAD, SCALES, ZERO_POINTS = 1, 17, 80, 4096, 8192
_ARGUMENT_FORM, _STRIDES, _DTYPE, _BLOCKS = 255, 14, 258, 263
_FLOATS = (1, 2, 3)
_BYTE, _ARGUMENT = np.dtype("u1"), np.dtype([("number", "i4"), ("memory", "u8")], align=True)
# Instructions that multiply pairs of a dtype, by which it pays; any of these sets will do.
_INSTRUCTIONS = {DType.BFLOAT16: (0xE7,), DType.FLOAT16: (0x1EF,), DType.INT8: (0xF, 0x67)}
_SIZES = 8  # for so many sizes of its symbols a region keeps primitives and their memory
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


def multiplies(dtype: DType) -> bool:
    """Whether this processor has instructions for products of a dtype, of which oneDNN knows."""
    has = library().dnnl_get_effective_cpu_isa()
    return any(has & needed == needed for needed in _INSTRUCTIONS[dtype])


def _call(function: str, *args: Any) -> None:
    if status := getattr(library(), f"dnnl_{function}")(*args):
        if status == _UNIMPLEMENTED:
            what = function.removesuffix("_primitive_desc_create")
            raise EvaluationError(f"oneDNN has no {what} of these dtypes on this processor")
        raise EvaluationError(f"oneDNN's {function} fails with status {status}")


@cache
def _engine() -> c_void_p:
    _call("engine_create", byref(made := c_void_p()), _CPU, c_size_t(0))
    return made


def _dims(numbers: Sequence[int]) -> Any:
    return (c_int64 * 12)(*numbers)


# What there is to know about a form.
def _asked(form: c_void_p, question: int, answer: Any) -> Any:
    _call("memory_desc_query", form, question, byref(answer))
    return answer


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

    @property
    def dtype(self) -> int:
        return int(_asked(self.form, _DTYPE, c_int()).value)


_Step = tuple[c_void_p, dict[int, _Value]]  # the description of a primitive, and its arguments
_Shapes = tuple[tuple[int, ...], ...]
_Scaling = Mapping[int, tuple[_Value, int]]  # by argument: scales or zero points, and their mask


_UNSCALED: _Scaling = MappingProxyType({})


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


# Objects of oneDNN's that live as long as this one.
class _Owner:
    def make(self, kind: str, function: str, *args: Any) -> c_void_p:
        _call(function, byref(made := c_void_p()), *args)
        weakref.finalize(self, getattr(library(), f"dnnl_{kind}_destroy"), made)
        return made

    # Row by row, or by other strides.
    def form(self, shape: Sequence[int], dtype: int, strides: Any = None) -> c_void_p:
        given = len(shape), _dims(shape), dtype, strides
        return self.make("memory_desc", "memory_desc_create_with_strides", *given)

    def value(self, shape: Sequence[int], form: c_void_p, **where: Any) -> _Value:
        return _Value(shape, form, _Buffer(library().dnnl_memory_desc_get_size(form), **where))


# What the primitives for all sizes share: constants, in all the forms that they are wanted in.
class _Constants(_Owner):
    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.values = dict[str, _Value]()
        for name, array in arrays.items():
            form = self.form(array.shape, _NUMBER_OF[dtype_of(array.dtype)])
            self.values[name] = self.value(array.shape, form, array=array)


# The primitives of a plan for some extents of its inputs.
class _Primitives(_Owner):
    def __init__(self, graph: JsonGraph, constants: _Constants, shapes: _Shapes) -> None:
        self._constants, self._ends, self._lock = constants, list[Any](), threading.Lock()
        self.steps, self._sizes = list[_Step](), dict[str, int]()
        self._stream = self.make("stream", "stream_create", _engine(), _IN_ORDER)
        values, dtypes = dict(constants.values), dict[str, int]()
        for end, (tensor, shape) in enumerate(zip(graph.inputs, shapes, strict=True)):
            self._sizes.update(zip(map(str, tensor.shape), shape, strict=True))
            dtypes[tensor.name] = dtype = _NUMBER_OF[tensor.dtype]
            values[tensor.name] = self.value(shape, self.form(shape, dtype), end=end)
        for node in graph.nodes:
            operands, tensor = [values[str(name)] for name in node.inputs], node.outputs[0]
            try:
                made = self._build(node, operands)
            except EvaluationError:  # not for data in these forms, but row by row
                made = self._build(node, [self._in_rows(value) for value in operands])
            values[tensor.name], dtypes[tensor.name] = made, _NUMBER_OF[tensor.dtype]
        for end, name in enumerate(graph.outputs, len(graph.inputs)):
            self._deliver(values[name], dtypes.get(name, values[name].dtype), end)
        _allocate(self.steps)
        self._calls = [self._prepared(*step) for step in self.steps]

    def run(self, arrays: Sequence[Array]) -> None:
        ends = [c_void_p(address_of(array)) for array in arrays]
        bind, execute = library().dnnl_memory_set_data_handle, library().dnnl_primitive_execute
        with self._lock:
            for end, memory in self._ends:
                bind(memory, ends[end])
            if any(execute(*call) for call in self._calls):
                raise EvaluationError("a primitive of oneDNN's failed")

    # An extent of a plan: a number, or text where it is symbolic.
    def _size(self, dim: int | str) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._sizes:
            parsed = parse_dim(dim)
            known = {name: self._sizes[name] for name in symbols_of(parsed)}
            self._sizes[dim] = evaluate_dim(parsed, known)
        return self._sizes[dim]

    def _in_rows(self, value: _Value, dtype: int | None = None) -> _Value:
        return self._bring(value, self.form(value.shape, dtype or value.dtype))

    # A value in a form. What has been reordered serves all who want it so; constants are now, and
    # for all sizes.
    def _bring(self, value: _Value, form: c_void_p) -> _Value:
        for known in (value, *value.copies):
            if library().dnnl_memory_desc_equal(known.form, form):
                # Equal forms may differ in strides of single elements, which matter for views.
                return _Value(value.shape, form, known.buffer)
        is_constant = value.buffer.array is not None
        owner = self._constants if is_constant else self
        own = owner.make("memory_desc", "memory_desc_clone", form)
        value.copies.append(copy := owner.value(value.shape, own))
        self._reorder(value, copy)
        if is_constant:
            step = self.steps.pop()  # it owns the memory that the primitive works in
            _allocate([step])
            _call("primitive_execute", *self._prepared(*step))
        return copy

    def _reorder(self, source: _Value, target: _Value, scaling: _Scaling = _UNSCALED) -> None:
        attributes = self._attributes((), (), (), scaling)
        given = source.form, _engine(), target.form, _engine(), attributes
        self._add("reorder", given, {_SOURCE: source, _TARGET: target}, scaling)

    # A primitive as the next step, with operands as it wants them, scales and zero points as they
    # are, and memory to work in.
    def _add(
        self, op: str, given: Sequence[Any], operands: Mapping[int, _Value], scaling: _Scaling
    ) -> c_void_p:
        made = self.make("primitive_desc", f"{op}_primitive_desc_create", *given)
        arguments = {n: self._bring(v, _chosen(made, n)) for n, v in operands.items()}
        arguments |= {number: value for number, (value, _) in scaling.items()}
        scratch = self.value((), _chosen(made, _SCRATCHPAD))
        arguments |= {_SCRATCHPAD: scratch} if scratch.buffer.size else {}
        self.steps.append((made, arguments))
        return made

    # Have a result written to the caller's memory at once, or reordered there at last.
    def _deliver(self, value: _Value, dtype: int, end: int) -> None:
        target = self.value(value.shape, self.form(value.shape, dtype), end=end)
        buffer = value.buffer
        own = buffer.array is None and buffer.end is None and buffer.size == target.buffer.size
        if own and library().dnnl_memory_desc_equal(value.form, target.form):
            buffer.end = end
        else:
            self._reorder(value, target)

    def _build(self, node: JsonNode, values: Sequence[_Value]) -> _Value:
        attrs, dtype = node.attrs, _NUMBER_OF[node.outputs[0].dtype]
        shape, numbers = tuple(map(self._size, node.outputs[0].shape)), attrs["numbers"]
        if node.op.startswith("memory_desc"):  # the same memory, seen as another tensor
            given = [self._number(item) for item in attrs["call"]]
            form = self.make("memory_desc", node.op, values[0].form, *given)
            seen = _Value(shape, form, values[0].buffer)
            # Not every primitive minds strides.
            return seen if node.op.endswith("reshape") else self._in_rows(seen)
        masks = dict(attrs["masks"])
        scaling = {n: (v, masks[n]) for n, v in zip(numbers, values, strict=True) if n in masks}
        if node.op == "reorder":
            target = self.value(shape, self._alike(values[0], dtype))
            self._reorder(values[0], target, scaling)
            return target
        values = self._converted(values, attrs)
        own = _NUMBER_OF[attrs["dtype"]]
        given = [self._given(item, values, shape, dtype, own) for item in attrs["call"]]
        given = [_engine(), *given, self._attributes(attrs["post"], values, shape, scaling)]
        operands = {n: v for n, v in zip(numbers, values, strict=True) if n not in masks}
        made = self._add(node.op, given, operands, scaling)
        self.steps[-1][1][_TARGET] = target = self.value(shape, _chosen(made, _TARGET))
        return target

    # A form of another dtype in which data lies as in that of a value, or else row by row.
    def _alike(self, value: _Value, dtype: int) -> c_void_p:
        if _asked(value.form, _BLOCKS, c_int()).value:
            return self.form(value.shape, dtype)
        return self.form(value.shape, dtype, _asked(value.form, _STRIDES, c_void_p()))

    # Operands whose form a primitive has to take as it is, in the dtype that the step computes in.
    def _converted(self, values: Sequence[_Value], attrs: Mapping[str, Any]) -> list[_Value]:
        result, dtype = list(values), _NUMBER_OF[attrs["dtype"]]
        for item in attrs["call"]:
            every = range(len(values)) if isinstance(item, dict) and "all" in item else ()
            for index in [item["own"]] if isinstance(item, dict) and "own" in item else every:
                value = result[index]
                result[index] = value if value.dtype == dtype else self._in_rows(value, dtype)
        return result

    # What an item of a plan stands for where a function of oneDNN's is called.
    def _given(
        self, item: Any, values: Sequence[_Value], shape: Sequence[int], dtype: int, own: int
    ) -> Any:
        if not isinstance(item, dict):
            return self._number(item)
        if "all" in item:
            return (c_void_p * len(values))(*(value.form.value for value in values))
        if "own" in item:
            return values[item["own"]].form
        if item:
            value = values[item["any"]]
            shape, dtype = value.shape, own if value.dtype in _FLOATS else value.dtype
        return self._free(shape, dtype)

    def _number(self, item: Any) -> Any:
        if isinstance(item, dict):
            return (c_int * 12)(*item["axes"])
        if isinstance(item, list):
            return _dims([self._size(dim) for dim in item])
        return c_float(item) if isinstance(item, float) else item

    # As the primitive likes.
    def _free(self, shape: Sequence[int], dtype: int) -> c_void_p:
        given = len(shape), _dims(shape), dtype, _ANY
        return self.make("memory_desc", "memory_desc_create_with_tag", *given)

    # Memory for a primitive to work in is ours; what follows it is part of it.
    def _attributes(
        self, posts: Sequence[Any], values: Any, shape: Sequence[int], scaling: _Scaling
    ) -> c_void_p:
        chain = self.make("post_ops", "post_ops_create")
        for alg, *rest in posts:
            if len(rest) == 2:
                _call("post_ops_append_eltwise", chain, alg, *map(c_float, rest))
            else:
                value = values[rest[0]]  # what is broadcast lies in rows
                make = self._free if tuple(value.shape) == tuple(shape) else self.form
                _call("post_ops_append_binary", chain, alg, make(value.shape, value.dtype))
        made = self.make("primitive_attr", "primitive_attr_create")
        _call("primitive_attr_set_scratchpad_mode", made, _OWN_SCRATCHPAD)
        _call("primitive_attr_set_post_ops", made, chain)
        for number, (_, mask) in scaling.items():
            what = "scales" if number & SCALES else "zero_points"
            argument = number & ~(SCALES | ZERO_POINTS)
            _call(f"primitive_attr_set_{what}_mask", made, argument, mask)
        return made

    # What executes a step.
    def _prepared(self, description: c_void_p, arguments: dict[int, _Value]) -> Sequence[Any]:
        table = np.zeros(len(arguments), _ARGUMENT)
        for index, (number, value) in enumerate(arguments.items()):
            array, end = value.buffer.array, value.buffer.end
            address = None if array is None else c_void_p(address_of(array))
            memory = self.make("memory", "memory_create", value.form, _engine(), address)
            table[index] = number, memory.value
            self._ends += [] if end is None else [(end, memory)]
        primitive = self.make("primitive", "primitive_create", description)
        return primitive, self._stream, len(table), table.ctypes.data_as(c_void_p)


class Region:
    """A loaded region. Calls of one size take turns, since primitives are bound to their memory."""

    def __init__(self, graph: JsonGraph, threads: int | None = None) -> None:
        self._graph, self._constants = graph, _Constants(graph.constants)
        self._by_shapes, self._lock = dict[_Shapes, _Primitives](), threading.Lock()
        self.threads = threads or library().threads
        self.rounding = _rounding(graph)
        shapes = [tensor.shape for tensor in graph.inputs]
        if all(isinstance(dim, int) for shape in shapes for dim in shape):
            self.primitives(shapes)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not all(array.size for array in inputs):
            if any(array.size for array in outputs):
                raise EvaluationError("oneDNN makes nothing of tensors without elements")
            return
        self.primitives([array.shape or (1,) for array in inputs]).run((*inputs, *outputs))

    def primitives(self, shapes: Sequence[Sequence[Any]]) -> _Primitives:
        """The primitives for inputs of these shapes, for the calling thread to run."""
        # They are made for a number of threads, which OpenMP keeps per calling thread.
        library().omp_set_num_threads(self.threads)
        key = tuple(map(tuple, shapes))
        with self._lock:
            primitives = self._by_shapes.pop(key, None)
            if primitives is None:
                primitives = _Primitives(self._graph, self._constants, key)
            self._by_shapes[key] = primitives  # the one that was used last is last
            if len(self._by_shapes) > _SIZES:
                del self._by_shapes[next(iter(self._by_shapes))]
        return primitives


# The coarsest dtype that a plan rounds to, by which its results are judged.
def _rounding(graph: JsonGraph) -> DType:
    dtypes = {DType(node.attrs["dtype"]) for node in graph.nodes} | {DType.FLOAT32}
    return min(dtypes, key=lambda dtype: dtype.bits)


# Code is a graph whose primitives are made anew, by any oneDNN 3.
@versioned("3", loads=lambda version: version.startswith("3."))
def load(blob: bytes, threads: int | None = None) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(unpack(blob), threads)
