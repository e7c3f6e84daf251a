"""Where the elements of tensors come from, and how they become arrays.

In goes a `TensorProto`; out comes a read-only array. Its elements lie in the tensor itself, in the
model's own file (see `wire`) or in a file beside it. Files are memory-mapped, each once, and arrays
are views of them: a weight that is never used is never read.

Two kinds of tensors are copied, once, on first use: those at offsets that are not aligned for their
element type, and those packed more than one to the byte. A mapped file must not be truncated while
its arrays are in use.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import Location, ModelError, UnsupportedError

Buffer = bytes | mmap.mmap

# What is not backed by bytes in a file must not be larger: a few bytes could ask for any amount.
MOST_ELEMENTS = 2**31

MOST_DIMENSIONS = 64
# What NumPy can represent: it counts bytes in 63 bits, and an element takes at most 2**4 of them.
_MOST_ADDRESSABLE = 2**59
_COPIED_AT_ONCE = 2**24
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class _Header:
    """A tensor's validated dtype and shape."""

    label: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return -(-self.count * self.dtype.bits // 8)


@dataclass(frozen=True, slots=True)
class _Span:
    """A range of bytes of a buffer."""

    buffer: Buffer
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The elements of a model's tensors.

    `name` is the model's file name; external data at that location is in `data`, the model's own
    bytes. Other locations have to lie inside one of the `folders`.
    """

    name: str
    data: Buffer = b""
    folders: tuple[Path, ...] = ()
    _files: dict[Path, Buffer] = field(default_factory=dict, repr=False, compare=False)

    def array(self, tensor: TensorProto, role: str = "initialiser") -> Array:
        """The tensor's elements as a read-only array; `role` is what messages call the tensor."""
        header = self._header(tensor, role)
        if header.dtype is DType.STRING:
            array = self._strings(tensor, header)
        elif not header.count:
            array = np.empty(header.shape, header.dtype.numpy)
        elif is_external(tensor):
            array = _decode_elements(self._external(tensor, header), header)
        elif tensor.HasField("raw_data"):
            raw = tensor.raw_data
            self._check_length(len(raw), header)
            array = _decode_elements(_Span(raw, 0, len(raw)), header)
        else:
            array = self._typed(tensor, header)
        array.flags.writeable = False
        return array

    def external_bytes(self, tensor: TensorProto) -> memoryview:
        """The bytes of a tensor whose data is not in the tensor itself."""
        span = self._external(tensor, self._header(tensor, "tensor"))
        return memoryview(span.buffer)[span.offset : span.offset + span.length]

    def dense(self, sparse: SparseTensorProto, role: str = "sparse initialiser") -> Array:
        """A sparse tensor's elements as a read-only array, zeros and all."""
        values = self.array(sparse.values, role)
        indices = self.array(sparse.indices, "indices of " + role)
        label = f"{role} '{sparse.values.name}'"
        shape = self._shape(sparse.dims, label)
        count = math.prod(shape)
        if count > MOST_ELEMENTS:
            raise self._error(f"{label} has {count} elements: too many to be made dense")
        if values.ndim != 1:
            raise self._error(f"{label} has values of shape {list(values.shape)}, not a list")
        linear = self._linear(indices, len(values), shape, label)
        array = np.zeros(shape, values.dtype)
        if values.dtype == object:
            array.fill("")
        array.reshape(-1)[linear] = values
        array.flags.writeable = False
        return array

    def _linear(self, indices: Array, count: int, shape: tuple[int, ...], label: str) -> Array:
        """The positions of a sparse tensor's values in the flattened array."""
        if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
            actual = f"{indices.dtype} {list(indices.shape)}"
            expected = f"int64 [{count}] or [{count}, {len(shape)}]"
            raise self._error(f"{label} has indices of type {actual}, not {expected}")
        limits = np.array(shape if indices.ndim == 2 else math.prod(shape), np.int64)
        if ((indices < 0) | (indices >= limits)).any():
            raise self._error(f"{label} has an index outside its shape {list(shape)}")
        if indices.ndim == 2:
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            indices = indices @ np.array(strides, np.int64)
        if (indices[1:] <= indices[:-1]).any():
            raise self._error(f"{label} has indices that do not ascend")
        return indices

    def _header(self, tensor: TensorProto, role: str) -> _Header:
        label = f"{role} '{tensor.name}'"
        if tensor.HasField("segment"):
            raise self._error(f"{label} is one segment of a tensor, which Graft cannot read")
        try:
            numpy_dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except KeyError:
            message = f"{label} has element type {tensor.data_type}, which ONNX does not define"
            raise self._error(message) from None
        try:
            dtype = dtype_of(numpy_dtype)
        except UnsupportedError:
            message = f"{label} has elements of type {numpy_dtype}, which Graft does not know"
            raise UnsupportedError(message, Location(source=self.name)) from None
        return _Header(label, dtype, self._shape(tensor.dims, label))

    def _shape(self, dims: Iterable[int], label: str) -> tuple[int, ...]:
        shape = tuple(dims)
        if len(shape) > MOST_DIMENSIONS:
            raise self._error(
                f"{label} has {len(shape)} dimensions; at most {MOST_DIMENSIONS} are possible"
            )
        if any(size < 0 for size in shape):
            raise self._error(f"{label} has a negative dimension: {list(shape)}")
        if math.prod(size for size in shape if size) > _MOST_ADDRESSABLE:
            raise self._error(f"{label} has the absurd shape {list(shape)}")
        return shape

    def _check_length(self, length: int, header: _Header) -> None:
        if length != header.nbytes:
            raise self._error(
                f"{header.label} holds {length} bytes, but {header.dtype} "
                f"{list(header.shape)} takes {header.nbytes}"
            )

    def _strings(self, tensor: TensorProto, header: _Header) -> Array:
        if is_external(tensor) or tensor.HasField("raw_data"):
            raise self._error(f"{header.label} holds strings as raw bytes, which ONNX forbids")
        self._check_entries(len(tensor.string_data), header.count, header)
        array = np.empty(header.count, object)
        try:
            array[:] = [entry.decode("utf-8") for entry in tensor.string_data]
        except UnicodeDecodeError as error:
            raise self._error(f"{header.label} holds a string that is not UTF-8") from error
        return array.reshape(header.shape)

    def _typed(self, tensor: TensorProto, header: _Header) -> Array:
        """Elements from the field for their type: float_data and its like."""
        entries = header.count
        if header.dtype.is_complex:
            entries *= 2
        elif header.dtype.bits in (2, 4):  # packed; float6 takes an entry each
            entries = header.nbytes
        present = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        self._check_entries(present, entries, header)
        return _sane(numpy_helper.to_array(tensor), header.dtype)

    def _check_entries(self, present: int, expected: int, header: _Header) -> None:
        if present != expected:
            has = f"{present} entries" if present else "no data"
            raise self._error(
                f"{header.label} has {has}, but {header.dtype} {list(header.shape)} "
                f"takes {expected}"
            )

    def _external(self, tensor: TensorProto, header: _Header) -> _Span:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        buffer = self.data if location == self.name else self._file(location, header.label)
        offset = self._number("offset", entries.get("offset", "0"), header, location)
        length = self._number("length", entries.get("length", str(header.nbytes)), header, location)
        if offset + length > len(buffer):
            raise self._error(
                f"{header.label} should be bytes {offset} to {offset + length} of '{location}', "
                f"which has only {len(buffer)}",
                hint="is the file complete?",
            )
        self._check_length(length, header)
        return _Span(buffer, offset, length)

    def _number(self, what: str, text: str, header: _Header, location: str) -> int:
        if not _NUMBER.fullmatch(text):
            raise self._error(
                f"{header.label} has the {what} '{text[:40]}' in '{location}': not a byte count"
            )
        return int(text)

    def _file(self, location: str, label: str) -> Buffer:
        """The mapped file at a location, which has to be inside one of the folders."""
        if not location:
            raise self._error(f"{label} has external data without a location")
        if not self.folders:
            raise self._error(
                f"{label} is in the file '{location}', but the model has no folder to look in",
                hint="give the model as a path, or the folder of its data as folder=",
            )
        try:
            path = (self.folders[0] / location).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreadable(label, location, error) from error
        folder = next((folder for folder in self.folders if path.is_relative_to(folder)), None)
        if folder is None or Path(location).is_absolute():
            raise self._error(
                f"{label} is in '{location}', which is not inside the model's folder",
                hint="external data has to lie beside the model or below it, symbolic links too",
            )
        if path not in self._files:
            try:
                self._files[path] = _map_below(folder, path.relative_to(folder))
            except OSError as error:
                raise self._unreadable(label, location, error) from error
        return self._files[path]

    def _unreadable(self, label: str, location: str, error: Exception) -> ModelError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{label} is in '{location[:200]}', which cannot be read: {reason}"
        return self._error(message, hint="external data has to travel with the model file")

    def _error(self, message: str, hint: str = "") -> ModelError:
        return ModelError(message, Location(source=self.name), hint)


# Without O_NONBLOCK, opening a named pipe would wait for a writer.
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's data is somewhere else."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def map_file(path: Path) -> Buffer:
    """A regular file's bytes, memory-mapped; other files raise an OSError with the reason."""
    return _mapped(os.open(path, _READING))


def _map_below(folder: Path, path: Path) -> Buffer:
    """The same for a file below a folder, on a path that was checked to have no links.

    One that somebody puts there since then is not followed: it may lead anywhere.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        return _mapped(os.open(path.name or ".", _READING | os.O_NOFOLLOW, dir_fd=descriptor))
    finally:
        os.close(descriptor)


def _mapped(descriptor: int) -> Buffer:
    """An open file's bytes; closes it."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(0, "it is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        if not status.st_size:
            return b""
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _decode_elements(span: _Span, header: _Header) -> Array:
    """Elements as they are in memory, or packed, as an array."""
    if header.dtype.bits < 8:
        packed = np.frombuffer(span.buffer, np.uint8, span.length, span.offset)
        return _unpacked(packed, header).reshape(header.shape)
    flat = np.frombuffer(span.buffer, header.dtype.numpy, header.count, span.offset)
    if not flat.flags.aligned:
        flat = _aligned_copy(span, header.dtype)
    return _sane(flat, header.dtype).reshape(header.shape)


def _unpacked(packed: Array, header: _Header) -> Array:
    """Elements of less than a byte, the first in the lowest bits, one to the byte."""
    bits = header.dtype.bits
    if 8 % bits:  # elements cross the borders of bytes
        stream = np.unpackbits(packed, bitorder="little")[: header.count * bits]
        wide = np.packbits(stream.reshape(-1, bits), axis=1, bitorder="little")
        return wide.reshape(-1).view(header.dtype.numpy)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    elements = packed[:, None] >> shifts
    elements &= np.uint8(2**bits - 1)
    return elements.reshape(-1)[: header.count].view(header.dtype.numpy)


def _aligned_copy(span: _Span, dtype: DType) -> Array:
    """The elements copied in chunks, so that no large part is in memory twice."""
    copy = np.empty(span.length, np.uint8)
    source = np.frombuffer(span.buffer, np.uint8, span.length, span.offset)
    for start in range(0, span.length, _COPIED_AT_ONCE):
        chunk = source[start : start + _COPIED_AT_ONCE]
        copy[start : start + len(chunk)] = chunk
        if isinstance(span.buffer, mmap.mmap):
            # The pages were read from the file and can be again: they need not stay.
            first = (span.offset + start) // mmap.PAGESIZE * mmap.PAGESIZE
            span.buffer.madvise(mmap.MADV_DONTNEED, first, span.offset + start + len(chunk) - first)
    return copy.view(dtype.numpy)


def _sane(array: Array, dtype: DType) -> Array:
    """The array, with truth values other than 0 and 1 made 1: NumPy's arithmetic relies on it."""
    if dtype is DType.BOOL and array.size and array.view(np.uint8).max() > 1:
        array = np.asarray(array.view(np.uint8) != 0)
    return array
