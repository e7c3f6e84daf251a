"""Array files, never pickled: for users, and between processes.

For users a tensor is an .npy file and a sequence an .npz file. Between processes each tensor is an
.npy file, and a description in JSON combines the files to a value; dtypes that NumPy's files lack
are stored as unsigned integers of the same size.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import UserError
from graft.base.names import file_stem

if TYPE_CHECKING:
    from graft.ir.evaluate import Data


def arrays_in(path: Path) -> dict[str, Array]:
    """The arrays of an .npz archive by name, or the one of an .npy file."""
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        detail, hint = _explained(error)
        raise UserError(f"'{path}' is not a readable NumPy file: {detail}", hint=hint) from error


def _explained(error: Exception) -> tuple[str, str]:
    text = str(error)
    if "Object arrays" in text:
        hint = "strings can be written with numpy.save(path, array.astype(str))"
        return "it holds Python objects", hint
    if "pickle" in text or isinstance(error, EOFError):
        return "it has another format, or is empty", "write it with numpy.save or numpy.savez"
    return text, ""


def save_outputs(folder: Path, outputs: Sequence[tuple[str, Data]]) -> dict[str, Path]:
    """Write each output, a tensor as .npy, a sequence as .npz; gives the files by output."""
    names = file_names([name for name, _ in outputs])
    files: dict[str, Path] = {}
    for name, data in outputs:
        if not is_storable(data):
            kind = "empty" if data is None else f"a {type(data).__name__}"
            raise UserError(f"the output '{name}' is {kind}, which no array file can hold")
        files[name] = save_data(folder / names[name], data)
    return files


def is_storable(data: Data) -> bool:
    """Whether an array file can store the data: a tensor, or a sequence of them."""
    items = data if isinstance(data, list) else [data]
    return all(isinstance(item, np.ndarray) for item in items)


def save_data(stem: Path, data: Data) -> Path:
    """Write a tensor as .npy, a sequence as .npz; gives the file."""
    if isinstance(data, list):
        file = stem.with_name(f"{stem.name}.npz")
        np.savez(file, *map(_storable, data), allow_pickle=False)
    else:
        file = stem.with_name(f"{stem.name}.npy")
        np.save(file, _storable(data), allow_pickle=False)
    return file


def _storable(array: Array) -> Array:
    return array.astype(str) if array.dtype == object else array


def file_names(names: Sequence[str]) -> Mapping[str, str]:
    """Distinct file names for tensors."""
    result: dict[str, str] = {}
    used_names: set[str] = set()
    for name in names:
        plain = file_stem(name, "output")
        candidates = (f"{plain}{suffix}" for suffix in _suffixes())
        result[name] = next(one for one in candidates if one.lower() not in used_names)
        used_names.add(result[name].lower())  # some file systems hold "a" and "A" to be the same
    return result


def _suffixes() -> Iterator[str]:
    yield ""
    number = 1
    while True:
        number += 1
        yield f"_{number}"


# None, or an object that `read_data` understands.
Description = dict[str, Any] | None


def write_data(folder: Path, stem: str, data: Data) -> Description:
    """Write a value's tensors to files in the folder, all named after the stem."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return {"items": [write_data(folder, f"{stem}-{n}", one) for n, one in enumerate(data)]}
    if isinstance(data, dict):
        values = [write_data(folder, f"{stem}-{n}", one) for n, one in enumerate(data.values())]
        return {"keys": list(data), "values": values}
    array = np.asarray(data)
    dtype = dtype_of(array.dtype)
    name = f"{stem}.npy"
    np.save(folder / name, _portable(array, dtype), allow_pickle=False)
    return {"file": name, "dtype": str(dtype)}


def read_data(folder: Path, description: Description) -> Data:
    """The value that was written."""
    if description is None:
        return None
    if "items" in description:
        return [read_data(folder, one) for one in description["items"]]
    if "keys" in description:
        values = (read_data(folder, one) for one in description["values"])
        return dict(zip(description["keys"], values, strict=True))
    array = np.load(folder / description["file"], allow_pickle=False)
    dtype = DType(description["dtype"])
    if dtype is DType.STRING:
        return array.astype(object)
    return array.view(dtype.numpy) if array.dtype != dtype.numpy else array


def _portable(array: Array, dtype: DType) -> Array:
    if dtype is DType.STRING:
        return array.astype(str)
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
