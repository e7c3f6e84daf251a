"""Inputs of a run: files that the user names, and generated data for all other inputs.

A symbolic dim has one value in all inputs: that of `--dim`, that of a file's array, or else 224
along an image and 1 elsewhere. A generated input depends on the seed and its position only.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, bare_symbol, substitute
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import UserError
from graft.cli.arrays import arrays_in
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from graft.ir.evaluate import Data

_WORDS = ("graft", "scion", "stock", "bud", "bark", "root", "leaf", "bough")
_SEQUENCE_LENGTH = 2
_INTEGERS_BELOW = 10
_IMAGE_RANK, _COLOURS, _EDGE = 4, (1, 3, 4), 224


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file with one input's data, or (without a name) an archive of inputs by name."""

    name: str
    path: Path


class Input(Protocol):
    """An input of a graph or of a compiled file."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> Type: ...


class Fillable(Protocol):
    """A graph or a compiled file."""

    @property
    def inputs(self) -> Sequence[Input]: ...

    @property
    def input_symbols(self) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class InputData:
    """The data for one input and where they come from."""

    name: str
    data: Data
    origin: str


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose the inputs of a run."""
    parser.add_argument(
        "--input",
        dest="inputs",
        metavar="NAME=FILE",
        type=_input_file,
        action="append",
        default=[],
        help="an input from a .npy file; or, without NAME=, an .npz archive of inputs by name",
    )
    parser.add_argument(
        "--dim",
        dest="dims",
        metavar="NAME=VALUE",
        type=_dim_value,
        action="append",
        default=[],
        help="the value of a dynamic dim (default: 224 for image sides, 1 elsewhere)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=_count,
        default=0,
        help="seed of generated inputs: normal floats, pixels from 0 to 1, integers from 0 to 9"
        " (default 0)",
    )


def feed(
    graph: Fillable, options: argparse.Namespace, below: Mapping[str, int] | None = None
) -> list[InputData]:
    """The data for each input, in order. Integers are generated `below` a number, by input."""
    bounds = below or {}
    feeds = dict(_read_inputs(graph, options.inputs))
    bindings = _known_sizes(graph, feeds, options)
    bindings |= _assumed(graph, bindings)
    return [
        feeds.get(value.name)
        or _generated(value, (options.seed, position), bindings, bounds.get(value.name))
        for position, value in enumerate(graph.inputs)
    ]


def feeds_of(
    graph: Fillable, options: argparse.Namespace, below: Mapping[str, int] | None = None
) -> dict[str, Data]:
    """The same by the inputs' names."""
    return {one.name: one.data for one in feed(graph, options, below)}


def data_type(data: Data) -> str:
    """The type of a tensor, or the length of a sequence, as text."""
    if isinstance(data, list):
        return f"sequence of {len(data)}"
    return str(TensorType(dtype_of(data.dtype), data.shape))


@contextmanager
def telling_sizes(graph: Fillable, options: argparse.Namespace) -> Iterator[None]:
    """Add the sizes that were assumed to the hint of an error."""
    try:
        yield
    except UserError as error:
        feeds = dict(_read_inputs(graph, options.inputs))
        assumed = _assumed(graph, _known_sizes(graph, feeds, options))
        if assumed and not error.hint:
            sizes = ", ".join(f"{name}={extent}" for name, extent in assumed.items())
            error.hint = f"sizes that nobody gave were taken to be {sizes}: --dim sets them"
        raise


def _known_sizes(
    graph: Fillable, feeds: Mapping[str, InputData], options: argparse.Namespace
) -> dict[str, int]:
    """The dims that options or given data decide."""
    bindings = _bindings(graph, options.dims)
    for value in graph.inputs:
        if value.name in feeds:
            _bind(value, feeds[value.name].data, bindings)
    return bindings


def _assumed(graph: Fillable, bindings: Mapping[str, int]) -> dict[str, int]:
    """Values for the other dims."""
    result: dict[str, int] = {}
    for value in graph.inputs:
        type_ = _present_type(value)
        shape = type_.shape if isinstance(type_, TensorType) and type_.shape is not None else ()
        is_image = len(shape) == _IMAGE_RANK and shape[1] in _COLOURS
        for axis, dim in enumerate(shape):
            name = None if dim is UNKNOWN else bare_symbol(dim)
            if name is not None and name not in bindings:
                result.setdefault(name, _EDGE if is_image and axis > 1 else 1)
    return result


def _input_file(text: str) -> InputFile:
    name, equals, path = text.partition("=")
    if not equals and text.endswith(".npz"):
        return InputFile("", Path(text))
    if not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE.npy or FILE.npz")
    return InputFile(name, Path(path))


def _dim_value(text: str) -> tuple[str, int]:
    name, _, extent = text.partition("=")
    if not name or not extent:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE, as in batch=4")
    if not extent.isdecimal():
        raise argparse.ArgumentTypeError(f"the value of '{text}' is not a whole number from 0")
    return name, int(extent)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def _read_inputs(graph: Fillable, files: Sequence[InputFile]) -> Iterator[tuple[str, InputData]]:
    values = {value.name: value for value in graph.inputs}
    names: set[str] = set()
    for file in files:
        for name, arrays in _by_input(file):
            if name not in values:
                known = ", ".join(f"'{known}'" for known in values) or "none"
                raise UserError(f"there is no input '{name}'", hint=f"inputs: {known}")
            if name in names:
                raise UserError(f"the input '{name}' is given twice")
            names.add(name)
            value = values[name]
            yield name, InputData(name, _fitting(value, arrays, file.path), str(file.path))


def _by_input(file: InputFile) -> Iterator[tuple[str, Sequence[Array]]]:
    arrays = arrays_in(file.path)
    if file.name:
        yield file.name, list(arrays.values())
    else:
        yield from ((name, [array]) for name, array in arrays.items())


def _fitting(value: Input, arrays: Sequence[Array], path: Path) -> Data:
    """A file's arrays as the data for an input; an error if its type does not allow them."""
    type_ = _present_type(value)
    if isinstance(type_, SequenceType) and isinstance(type_.element, TensorType):
        return [_converted(value, type_.element, array, path) for array in arrays]
    if not isinstance(type_, TensorType):
        raise UserError(f"the input '{value.name}' is a {type_}, which no array file can hold")
    if len(arrays) != 1:
        hint = "leave out the name to take each array as the input of its own name"
        message = f"'{path}' holds {len(arrays)} arrays, but '{value.name}' is one tensor"
        raise UserError(message, hint=hint)
    return _converted(value, type_, arrays[0], path)


def _converted(value: Input, type_: TensorType, array: Array, path: Path) -> Array:
    """The array with the same elements in Graft's form of the dtype."""
    expected = type_.dtype.numpy
    if (
        array.dtype.kind == "V"
        and array.dtype.itemsize == expected.itemsize
        and expected.kind == "V"
    ):
        array = array.view(expected)  # NumPy's files do not say which of the exotic dtypes it is
    elif array.dtype.kind in "US":
        array = array.astype(str).astype(object)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    actual = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    message = f"the input '{value.name}' wants {value.type}, but '{path}' holds {actual}"
    if array.dtype.kind == "V" and array.dtype != expected:
        raise UserError(message)
    if dtype_of(array.dtype) != type_.dtype:
        raise UserError(message, hint=f"convert it with .astype('{type_.dtype}')")
    if type_.shape is not None and not _may_have_shape(type_.shape, array.shape):
        raise UserError(message)
    return array


def _may_have_shape(expected: Sequence[AnyDim], actual: Sequence[int]) -> bool:
    return len(expected) == len(actual) and all(
        dim == extent or not isinstance(dim, int)
        for dim, extent in zip(expected, actual, strict=True)
    )


def _bindings(graph: Fillable, dims: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The dims that the user has set."""
    names = sorted(graph.input_symbols)
    bindings: dict[str, int] = {}
    for name, extent in dims:
        if name not in names:
            listed = ", ".join(names) or "none"
            raise UserError(f"no input has a dynamic dim '{name}'", hint=f"dynamic dims: {listed}")
        if bindings.setdefault(name, extent) != extent:
            raise UserError(f"--dim sets '{name}' to both {bindings[name]} and {extent}")
    return bindings


def _bind(value: Input, data: Data, bindings: dict[str, int]) -> None:
    """Bind dims to the extents of given data."""
    type_ = _present_type(value)
    if not isinstance(type_, TensorType) or type_.shape is None:
        return
    for dim, extent in zip(type_.shape, data.shape, strict=True):
        name = bare_symbol(dim)
        if name is not None and bindings.setdefault(name, extent) != extent:
            raise UserError(
                f"the dim '{name}' is {bindings[name]}, but {extent} in the input '{value.name}'",
                hint=f"'{value.name}' wants {value.type}",
            )


def _generated(
    value: Input, seed: tuple[int, int], bindings: Mapping[str, int], bound: int | None
) -> InputData:
    below = _INTEGERS_BELOW if bound is None else max(1, min(bound, _INTEGERS_BELOW))
    try:
        data = _drawn(value.type, np.random.default_rng(seed), bindings, below)
    except UserError as error:
        error.message = f"the input '{value.name}' {error.message}"
        error.hint = f"give it with --input {shlex.quote(f'{value.name}=FILE.npy')}"
        raise
    except (MemoryError, ValueError, OverflowError):
        message = f"the input '{value.name}' of {value.type} does not fit into memory"
        raise UserError(message, hint="try smaller dims") from None
    return InputData(value.name, data, f"generated, seed {seed[0]}")


def _present_type(value: Input) -> Type:
    """The type of an input that is given, if it is optional."""
    return value.type.element if isinstance(value.type, OptionalType) else value.type


def _drawn(
    type_: Type, generator: np.random.Generator, bindings: Mapping[str, int], below: int
) -> Data:
    if isinstance(type_, OptionalType):
        return _drawn(type_.element, generator, bindings, below)
    if isinstance(type_, SequenceType):
        items = range(_SEQUENCE_LENGTH)
        return [_drawn(type_.element, generator, bindings, below) for _ in items]
    if isinstance(type_, MapType):
        raise UserError("is a map, which Graft cannot make up")
    if type_.shape is None:
        raise UserError("has no known rank, so Graft cannot make it up")
    shape = [_extent(dim, bindings) for dim in type_.shape]
    return _drawn_array(type_.dtype, shape, generator, below)


def _extent(dim: AnyDim, bindings: Mapping[str, int]) -> int:
    """A dim's value; 1 by default."""
    if isinstance(dim, int):
        return dim
    name = None if dim is UNKNOWN else bare_symbol(dim)
    if name is None:
        return 1
    value = substitute(dim, {name: bindings.get(name, 1)})
    assert isinstance(value, int)
    return value


def _drawn_array(
    dtype: DType, shape: list[int], generator: np.random.Generator, below: int
) -> Array:
    if dtype is DType.BOOL:
        return np.asarray(generator.integers(0, 2, shape).astype(bool))
    if dtype is DType.STRING:
        words: Any = np.array(_WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(_WORDS), shape)], dtype=object)
    if dtype.is_integer:
        largest = 2 ** (dtype.bits - dtype.is_signed_integer) - 1
        integers = generator.integers(0, min(below, largest + 1), shape)
        return np.asarray(integers).astype(dtype.numpy)
    if _is_image(shape):
        return np.asarray(generator.random(shape, dtype=np.float32)).astype(dtype.numpy)
    real = np.asarray(generator.standard_normal(shape, dtype=np.float32))
    if dtype.is_complex:
        real = real + 1j * generator.standard_normal(shape, dtype=np.float32)
    return real.astype(dtype.numpy)


def _is_image(shape: Sequence[int]) -> bool:
    """Whether the shape is that of a batch of images, which get pixels from 0 to 1."""
    return len(shape) == _IMAGE_RANK and shape[1] in _COLOURS and min(shape[2:]) >= 8
