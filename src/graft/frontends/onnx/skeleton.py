"""Models whose large weights are drawn from seeds instead of being stored.

A skeleton is an ordinary ONNX model in which large initialisers are missing. Its metadata entry
`seeded_weights`, a JSON object, gives each one's shape, standard deviation and seed. In go the
model and its weights; out come the missing arrays, one at a time, or a whole ordinary model, in
memory or on disk. So networks of half a gigabyte travel as files of a few hundred kilobytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeGuard

import numpy as np
import onnx

from graft.base.dtypes import Array
from graft.base.errors import Location, ModelError, UserError
from graft.frontends.onnx.weights import MOST_DIMENSIONS, MOST_ELEMENTS, Weights, is_external
from graft.frontends.onnx.wire import external_reference, nested_messages

METADATA_KEY = "seeded_weights"

# What protobuf can write into one file.
_LARGEST_FILE = 2**31 - 1
_ALIGNMENT = 64
_LARGEST_STD = float(np.finfo(np.float32).max)

_Store = Callable[[onnx.TensorProto, memoryview], None]


@dataclass(frozen=True, slots=True)
class SeededWeight:
    """A float32 weight that is drawn from a normal distribution."""

    shape: tuple[int, ...]
    std: float
    seed: int

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)

    def draw(self) -> Array:
        """The weight as a read-only array, the same each time."""
        generator = np.random.Generator(np.random.PCG64(self.seed))
        array = generator.standard_normal(math.prod(self.shape), dtype=np.float32)
        array *= np.float32(self.std)
        array.flags.writeable = False
        return array.reshape(self.shape)


def seeded_weights(model: onnx.ModelProto, source: str) -> dict[str, SeededWeight]:
    """The weights to be drawn, by name; those that have been filled in already are left out."""
    location = Location(source=source)
    entries = [entry.value for entry in model.metadata_props if entry.key == METADATA_KEY]
    if not entries:
        return {}
    if len(entries) > 1:
        raise ModelError(
            f"the metadata entry {METADATA_KEY} is given {len(entries)} times", location
        )
    try:
        specs = json.loads(entries[0], object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the metadata entry {METADATA_KEY} is bad JSON: {error}", location
        ) from error
    if not isinstance(specs, dict):
        raise ModelError(f"the metadata entry {METADATA_KEY} is not a JSON object", location)
    stored = {tensor.name for tensor in model.graph.initializer}
    stored |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    computed = {output for node in model.graph.node for output in node.output}
    missing = {name: spec for name, spec in specs.items() if name not in stored}
    for name in missing:
        if not name or name in computed:
            what = f"'{name}' is also what a node computes" if name else "it has no name"
            raise ModelError(f"a seeded weight clashes: {what}", location)
    return {name: _checked(name, spec, location) for name, spec in missing.items()}


def fill_skeleton(
    model: onnx.ModelProto, weights: Weights, seeded: Mapping[str, SeededWeight]
) -> onnx.ModelProto:
    """A copy of the model with all its weights inside."""
    return _filled(model, weights, seeded, _embed)


def write_skeleton_filled(
    model: onnx.ModelProto, weights: Weights, seeded: Mapping[str, SeededWeight], path: Path
) -> None:
    """Write the model with all its weights: in one file or, where too large, in a second one."""
    size = model.ByteSize() + sum(weight.nbytes for weight in seeded.values())
    size += sum(len(weights.external_bytes(tensor)) for tensor in _external_tensors(model))
    try:
        if size <= _LARGEST_FILE:
            filled = fill_skeleton(model, weights, seeded)
        else:
            data_path = path.with_name(path.name + ".data")
            with _replacing(data_path) as data_file:
                store = _Appender(data_file, data_path.name).store
                filled = _filled(model, weights, seeded, store)
        with _replacing(path) as model_file:
            model_file.write(filled.SerializeToString())
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name is given twice")
    return result


def _checked(name: str, spec: object, location: Location) -> SeededWeight:
    """One entry of the JSON object as a weight."""
    entry = spec if isinstance(spec, dict) else {}
    shape, std, seed = entry.get("shape"), entry.get("std"), entry.get("seed")
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
        raise ModelError(f"seeded weight '{name}' has no shape that is a list of sizes", location)
    sizes = tuple(shape)
    if len(sizes) > MOST_DIMENSIONS or math.prod(size or 1 for size in sizes) > MOST_ELEMENTS:
        raise ModelError(
            f"seeded weight '{name}' has an absurd shape: {str(shape)[:200]}", location
        )
    if not _is_float32(std):
        raise ModelError(f"seeded weight '{name}' has no std that is a float32 number", location)
    if not _is_count(seed):
        raise ModelError(f"seeded weight '{name}' has no seed that is a whole number", location)
    return SeededWeight(sizes, float(std), seed)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _is_float32(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and type(value) is not bool and abs(value) <= _LARGEST_STD


def _external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for message, _ in nested_messages(model):
        if isinstance(message, onnx.TensorProto) and is_external(message):
            yield message


def _filled(
    model: onnx.ModelProto,
    weights: Weights,
    seeded: Mapping[str, SeededWeight],
    store: _Store,
) -> onnx.ModelProto:
    """A copy of the model with every large weight stored by `store`."""
    filled = onnx.ModelProto()
    filled.CopyFrom(model)
    for tensor in _external_tensors(filled):
        data = weights.external_bytes(tensor)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        store(tensor, data)
    for name, weight in seeded.items():
        tensor = filled.graph.initializer.add(
            name=name, data_type=onnx.TensorProto.FLOAT, dims=weight.shape
        )
        store(tensor, weight.draw().reshape(-1).view(np.uint8).data)
    others = [entry for entry in model.metadata_props if entry.key != METADATA_KEY]
    filled.ClearField("metadata_props")
    filled.metadata_props.extend(others)
    return filled


def _embed(tensor: onnx.TensorProto, data: memoryview) -> None:
    tensor.raw_data = bytes(data)


@dataclass(frozen=True, slots=True)
class _Appender:
    """Stores weights in a file of their own, one after the other."""

    file: IO[bytes]
    location: str

    def store(self, tensor: onnx.TensorProto, data: memoryview) -> None:
        self.file.write(bytes(-self.file.tell() % _ALIGNMENT))
        reference = external_reference(self.location, self.file.tell(), len(data))
        self.file.write(data)
        tensor.MergeFrom(reference)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the path's place when complete: what was there may be being read."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
