"""Reads a model: from a file, from bytes or from memory.

In goes a path, the bytes of a file or a `ModelProto`; out comes a `Source`: the model without its
large weights, and the weights, still in the mapped file. `onnx` does the parsing; what it says of a
bad file, and what it does not notice, becomes a `ModelError` that names the file and the way out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx.serialization import registry

from graft.base.dtypes import Array
from graft.base.errors import Location, ModelError
from graft.frontends.onnx.leniency import Leniency
from graft.frontends.onnx.skeleton import (
    SeededWeight,
    fill_skeleton,
    seeded_weights,
    write_skeleton_filled,
)
from graft.frontends.onnx.weights import Buffer, Weights, map_file
from graft.frontends.onnx.wire import cut_out_payloads, nested_messages

# Protobuf reads files of 100; models made in memory may be deeper, but not without end.
MOST_NESTED = 256

# Files that people take for ONNX models: what they have at which offset, and what to do about it.
_FOREIGN = (
    (
        0,
        b"version https://git-lfs",
        "this is a Git LFS pointer: fetch the model with `git lfs pull`",
    ),
    (
        0,
        b"PK\x03\x04",
        "this is a ZIP archive: unpack it; a PyTorch model has to be exported first",
    ),
    (0, b"\x1f\x8b", "this file is compressed with gzip: unpack it first"),
    (0, b"\x89HDF", "this is an HDF5 file, as Keras writes: convert it to ONNX first"),
    (0, b"<", "this is a web page or XML: has the download gone wrong?"),
    (4, b"ORTM", "this is ONNX Runtime's own format: give the .onnx file it was made from"),
    (4, b"TFL3", "this is a TensorFlow Lite model: convert it to ONNX first"),
)
_OPENING_HINTS = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "give the .onnx file inside it",
    PermissionError: "check the file's permissions",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A model as it was read: `weights` has what the tensors of `model` only refer to."""

    model: onnx.ModelProto
    name: str
    weights: Weights
    seeded: Mapping[str, SeededWeight]
    leniency: Leniency = field(default_factory=Leniency)

    def initializers(self) -> Iterator[tuple[str, Array]]:
        """Yield the main graph's initialisers, decoded lazily; the last of a name counts."""
        names: set[str] = set()
        for tensor in self.model.graph.initializer:
            yield self._new(tensor.name, names), self.weights.array(tensor)
        for sparse in self.model.graph.sparse_initializer:
            yield self._new(sparse.values.name, names), self.weights.dense(sparse)
        for name, weight in self.seeded.items():
            yield self._new(name, names), weight.draw()

    def _new(self, name: str, names: set[str]) -> str:
        if not name:
            raise ModelError("an initialiser lacks a name", Location(source=self.name))
        if name in names:
            error = ModelError(f"initialiser '{name}' is given twice", Location(source=self.name))
            self.leniency.allow(error, "the latest counts")
        names.add(name)
        return name


def read_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    folder: str | os.PathLike[str] | None = None,
    strict: bool = False,
) -> Source:
    """Read a model; `folder` is where its external data is, if not beside the file.

    `strict` refuses what breaks ONNX's rules and could be put up with when it is imported.
    """
    read = _read(source, folder)
    read.leniency.strict = strict
    return read


def _read(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    folder: str | os.PathLike[str] | None,
) -> Source:
    folders: tuple[Path, ...] = () if folder is None else (Path(folder).resolve(),)
    if isinstance(source, onnx.ModelProto):
        return _source(source, Weights("<ModelProto>", folders=folders))
    if isinstance(source, bytes):
        return _from_buffer(Weights("<bytes>", source, folders), "protobuf")
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ModelError(f"a model is a path, bytes or an onnx.ModelProto, not {kind}")
    path = Path(source)
    data = _mapped(path)
    # In a store of files by content, model and data are links to files that lie side by side:
    # then the folder the model really lies in counts as well.
    folders = folders or (path.parent.resolve(), path.resolve().parent)
    name = path.name.encode("utf-8", "replace").decode("utf-8")
    written_as = registry.get_format_from_file_extension(path.suffix.lower()) or "protobuf"
    return _from_buffer(Weights(name, data, folders), written_as)


def filled_model(source: Source) -> onnx.ModelProto:
    """The whole model as one message, with all its weights inside."""
    return fill_skeleton(source.model, source.weights, source.seeded)


def write_filled(path_in: str | os.PathLike[str], path_out: str | os.PathLike[str]) -> None:
    """Write a model, skeleton or not, as an ordinary file with all its weights inside.

    Weights that do not fit into one file (2 GB) go into a second one, `path_out` + ".data".
    """
    source = read_model(path_in)
    write_skeleton_filled(source.model, source.weights, source.seeded, Path(path_out))


def _mapped(path: Path) -> Buffer:
    try:
        return map_file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = next((h for kind, h in _OPENING_HINTS.items() if isinstance(error, kind)), "")
        raise ModelError(f"cannot read '{path}': {reason}", hint=hint) from error


def _from_buffer(weights: Weights, written_as: str) -> Source:
    if not len(weights.data):
        raise ModelError(
            "the model is empty", Location(source=weights.name), "has it been written?"
        )
    try:
        model = _parsed(weights, written_as)
    except MemoryError:
        raise
    except Exception as error:
        # Each format has its own errors; all of them say that the file is not what it should be.
        detail = " ".join(str(error).split())[:300]
        message = f"not a readable ONNX model: {detail}: truncated or damaged?"
        raise ModelError(
            message, Location(source=weights.name), _hint(weights, written_as)
        ) from error
    return _source(model, weights)


def _parsed(weights: Weights, written_as: str) -> onnx.ModelProto:
    if written_as == "protobuf":
        slim = cut_out_payloads(memoryview(weights.data), weights.name)
        model: onnx.ModelProto = onnx.ModelProto.FromString(slim)
        return model
    with warnings.catch_warnings():
        # ONNX calls its own text format experimental at each reading.
        warnings.simplefilter("ignore")
        return onnx.load_model_from_string(bytes(weights.data), format=written_as)


def _source(model: onnx.ModelProto, weights: Weights) -> Source:
    location = Location(source=weights.name)
    if not model.ir_version or not model.HasField("graph"):
        lacking = "graph" if model.ir_version else "IR version"
        message = f"not a readable ONNX model: it has no {lacking}: truncated or damaged?"
        raise ModelError(message, location, _hint(weights, "protobuf"))
    for message, depth in nested_messages(model):
        if depth > MOST_NESTED:
            raise ModelError(f"the model is nested more than {MOST_NESTED} messages deep", location)
        if not _is_text(message):
            raise ModelError("a name in the model is not UTF-8: is the file damaged?", location)
    return Source(model, weights.name, weights, seeded_weights(model, weights.name))


def _hint(weights: Weights, written_as: str) -> str:
    """What a file that is no ONNX model might be."""
    if weights.name.endswith(".graft"):
        return (
            "this is a compiled model: run it with `graft run` or graft.load, or give its ONNX file"
        )
    for offset, mark, hint in _FOREIGN:
        if weights.data[offset : offset + len(mark)] == mark:
            return hint
    if written_as == "protobuf" and _is_printable(bytes(weights.data[:256])):
        return "this is a text file: check the path"
    return "compare the file's size with that of the original"


def _is_printable(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in data)


def _is_text(message: onnx.ModelProto) -> bool:
    """Whether the message's strings are UTF-8: protobuf hands out bytes for those that are not."""
    if isinstance(message, onnx.TensorProto):
        # Asking a tensor for all its fields would copy its data.
        return isinstance(message.name, str)
    return not any(
        isinstance(text, bytes)
        for field, value in message.ListFields()
        if field.type == field.TYPE_STRING
        for text in ([value] if field.has_presence else value)
    )
