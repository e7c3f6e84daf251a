"""Sample data: the user's data in, inputs of a graph by name out, one sample at a time.

Data are a folder of `.npy`, `.npz` or image files, one such file, or an iterable of arrays, of
sequences of arrays in the order of the inputs, or of mappings by their names. Data that do not fit
the graph are refused with the name of their file.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graft.base.capacity import check_bytes
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftWarning, UnsupportedError, UserError
from graft.ir.graph import Value
from graft.ir.types import TensorType

ARRAYS = (".npy", ".npz")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
_MAGIC = (b"\x93NUMPY", b"PK")  # of .npy and .npz
_HINT = "give a folder of .npy, .npz or image files, or an iterable of arrays"

Data = str | os.PathLike[str] | Iterable[Any]
Sample = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Pixels:
    """The normalisation of images: (pixel / 255 - mean) / std, per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def normalized(self, image: Array) -> Array:
        """Normalise an image [height, width, channels] of bytes."""
        channels = image.shape[-1]
        for name, given in (("mean", self.mean), ("std", self.std)):
            if len(given) not in (1, channels):
                one = "one number" if channels == 1 else f"one number, or {channels}"
                raise UserError(
                    f"the {name} of pixels has {len(given)} numbers", hint=f"give {one}"
                )
        if not all(self.std):
            raise UserError("pixels cannot be divided by a std of 0")
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return np.asarray((image.astype(np.float32) / 255 - mean) / std)


def read_samples(
    data: Data, inputs: Sequence[Value], pixels: Pixels | None = None
) -> Iterator[Sample]:
    """Read the samples lazily."""
    for value in inputs:
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(f"the input '{value.name}' is a {value.type}, not a tensor")
    if isinstance(data, str | os.PathLike):
        files = files_in(Path(data))
        for path in files:
            item = _image(path, inputs, pixels or Pixels()) if _is_image(path) else _arrays(path)
            sample = _by_name(item, inputs, str(path))
            yield from _split(sample, inputs, str(path), is_all=len(files) == 1)
        return
    if isinstance(data, np.ndarray) or not isinstance(data, Iterable):
        raise UserError(f"data= is {type(data).__name__}, not samples", hint=_HINT)
    for number, item in enumerate(data):
        origin = f"sample {number}"
        yield from _split(_by_name(item, inputs, origin), inputs, origin)


class DataWarning(GraftWarning):
    """Sample data that are of little use."""


class ConstantChannels:
    """Finds channels of inputs (their second axis) that are constant over all samples."""

    def __init__(self) -> None:
        self._limits: dict[str, tuple[Array, Array]] = {}

    def add(self, sample: Sample) -> None:
        """Update the extremes with one more sample."""
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.ndim > 1 and array.size:
                axes = tuple(axis for axis in range(array.ndim) if axis != 1)
                low, high = array.min(axis=axes), array.max(axis=axes)
                before = self._limits.get(name, (low, high))
                if before[0].shape == low.shape:
                    self._limits[name] = np.minimum(before[0], low), np.maximum(before[1], high)

    def warnings(self) -> tuple[str, ...]:
        """Warnings about constant channels."""
        found = []
        for name, (low, high) in self._limits.items():
            constant = np.flatnonzero(low == high)
            if not len(constant):
                continue
            first = ", ".join(map(str, constant[:4])) + (", ..." if len(constant) > 4 else "")
            which = f"channel {first}" if len(constant) == 1 else f"channels {first}"
            whole = len(constant) == len(low)
            found.append(
                f"the input '{name}' is constant in {'all channels' if whole else which} over all"
                " samples: what is calibrated on them holds for nothing else"
            )
        return tuple(found)


def files_in(path: Path) -> list[Path]:
    """The files that hold samples: a file itself, or those of a folder by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"there is no '{path}' to calibrate on", hint=_HINT)
    found = sorted(p for p in path.iterdir() if p.suffix.lower() in (*ARRAYS, *IMAGES))
    if not found:
        raise UserError(f"'{path}' holds no .npy, .npz or image file", hint=_HINT)
    for one in found:
        if not one.is_file():  # a pipe would be waited for, and a device may never end
            raise UserError(f"'{one}' is no file, or leads to none")
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES


def _arrays(path: Path) -> Any:
    """The array of an .npy file, or those of an .npz archive by name."""
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    size = sum(one.file_size for one in archive.infolist())
                    check_bytes(size, f"'{path}' unpacks to arrays")
            file.seek(0)
            start = file.read(len(_MAGIC[0]))
            if not start.startswith(_MAGIC):
                raise UserError(f"'{path}' is no NumPy file", hint=_HINT)
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {name: loaded[name] for name in loaded.files}
    except MemoryError:
        raise UserError(f"'{path}' holds more than fits into memory") from None
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  (of NumPy, zipfile and its decompressors)
        raise UserError(f"'{path}' is not a readable NumPy file: {error}") from None


def _image(path: Path, inputs: Sequence[Value], pixels: Pixels) -> Array:
    """An image, cropped to the aspect ratio of the input and scaled to its size."""
    try:
        import PIL.Image
    except ImportError:
        raise UserError("images are read with Pillow", hint="pip install pillow") from None
    shape = inputs[0].tensor.shape if len(inputs) == 1 else None
    if shape is None or len(shape) != 4 or not {shape[1], shape[3]} & {1, 3}:
        raise UserError(f"'{path}' is an image, and the model does not take one image")
    is_last = shape[1] not in (1, 3)
    channels, height, width = (shape[3], *shape[1:3]) if is_last else shape[1:]
    try:
        with PIL.Image.open(path) as image:
            plain = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # noqa: BLE001  (of any of Pillow's decoders)
        raise UserError(f"'{path}' is not a readable image: {error}") from None
    if isinstance(height, int) and isinstance(width, int):
        # The middle is cut out before it is scaled: of a line of pixels the whole would be large.
        scale = max(height / plain.height, width / plain.width)
        wide, high = min(width / scale, plain.width), min(height / scale, plain.height)
        left, top = (plain.width - wide) / 2, (plain.height - high) / 2
        plain = plain.resize((width, height), box=(left, top, left + wide, top + high))
    array = pixels.normalized(np.atleast_3d(np.asarray(plain)))
    moved = array if is_last else array.transpose(2, 0, 1)
    return np.ascontiguousarray(moved)[None]


def _by_name(item: Any, inputs: Sequence[Value], origin: str) -> Sample:
    """The arrays of one item, by input."""
    names = [value.name for value in inputs]
    if isinstance(item, Mapping):
        if len(names) == 1 and len(item) == 1:
            return {names[0]: np.asarray(next(iter(item.values())))}
        missing = [name for name in names if name not in item]
        if missing:
            known = ", ".join(f"'{name}'" for name in item) or "none"
            raise UserError(f"{origin} has no array '{missing[0]}'", hint=f"it has {known}")
        return {name: np.asarray(item[name]) for name in names}
    arrays = [np.asarray(one) for one in item] if isinstance(item, tuple | list) else [item]
    if len(arrays) != len(names):
        raise UserError(
            f"{origin} is {len(arrays)} arrays, and the model has {len(names)} inputs",
            hint="give the arrays by the names of the inputs",
        )
    return dict(zip(names, map(np.asarray, arrays), strict=True))


def _split(
    sample: Sample, inputs: Sequence[Value], origin: str, is_all: bool = False
) -> Iterator[Sample]:
    """Samples of the extents that the model requires: arrays of many are split, ones without a
    batch axis get one. If there is only one array, it is also split where the batch may have any
    size."""
    fitted = {value.name: _fitted(value, sample[value.name], origin, is_all) for value in inputs}
    counts = {len(parts) for parts in fitted.values()}
    if len(counts) > 1:
        raise UserError(f"{origin} holds different numbers of samples for the inputs")
    for number in range(counts.pop() if counts else 0):
        yield {name: parts[number] for name, parts in fitted.items()}


def _fitted(value: Value, array: Array, origin: str, is_all: bool) -> list[Array]:
    dtype, shape = value.dtype, value.tensor.shape
    if array.dtype.kind == "f" and dtype.is_float:
        array = array.astype(dtype.numpy, copy=False)
    actual = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    if array.dtype != dtype.numpy:
        hint = f"convert it with .astype('{dtype}'), and scale it as the model expects"
        message = f"{origin} holds {actual}, and the input '{value.name}' wants {value.type}"
        raise UserError(message, hint=hint)
    if dtype is not DType.STRING and dtype.is_float and not np.isfinite(array).all():
        raise UserError(f"{origin} holds NaN or infinity for the input '{value.name}'")
    if shape is None or _fits(array.shape, shape):
        is_batch = is_all and shape is not None and len(shape) and not isinstance(shape[0], int)
        return [array[i : i + 1] for i in range(len(array))] if is_batch else [array]
    if _fits((1, *array.shape), shape):
        return [array[None]]
    batch = shape[0] if shape else 0
    if isinstance(batch, int) and batch and _fits((batch, *array.shape[1:]), shape):
        return [array[i : i + batch] for i in range(0, len(array) - batch + 1, batch)]
    raise UserError(f"{origin} holds {actual}, and the input '{value.name}' wants {value.type}")


def _fits(actual: Sequence[int], shape: Sequence[Any]) -> bool:
    return len(actual) == len(shape) and all(
        extent == dim or not isinstance(dim, int) for extent, dim in zip(actual, shape, strict=True)
    )
