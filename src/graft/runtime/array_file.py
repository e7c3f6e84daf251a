"""A backend's code as named arrays: arrays in, the bytes of an `.npz` file out, and back."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import ArrayLike

from graft.base.dtypes import Array


def pack_arrays(**arrays: ArrayLike | bytes) -> bytes:
    """Arrays, numbers and bytes by name, as one blob."""
    file = io.BytesIO()
    as_arrays = {
        name: np.frombuffer(one, np.uint8) if isinstance(one, bytes) else np.asarray(one)
        for name, one in arrays.items()
    }
    np.savez(file, **as_arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpack_arrays(blob: bytes) -> dict[str, Array]:
    """The arrays of a blob; bytes are arrays of uint8, numbers have no axes."""
    with np.load(io.BytesIO(blob)) as parts:
        return dict(parts)
