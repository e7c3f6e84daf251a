"""Data on their way between processes: values in, files and a JSON description out, and back.

Each tensor is a .npy file, never pickled; the description says how the files make up a value. NumPy
files know nothing of the exotic dtypes, so those travel as unsigned integers of the same size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.evaluate import Data

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
    np.save(folder / name, _storable(array, dtype), allow_pickle=False)
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


def _storable(array: Array, dtype: DType) -> Array:
    if dtype is DType.STRING:
        return array.astype(str)
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
