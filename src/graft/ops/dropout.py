"""Dropout as training does it: a random part of the elements becomes 0, the rest grows.

Inference never needs this operator; it serves models that were exported in training mode, or that
decide at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.types import TensorType
from graft.ops.rules import operator, require


@dataclass(frozen=True, slots=True)
class DropoutAttrs(Attrs):
    """`ratio` is the share of elements dropped; without a seed every run draws anew."""

    ratio: float | None = None
    training_mode: bool | None = None
    seed: int | None = None


def _dropout_type(
    attrs: DropoutAttrs,
    data: TensorType,
    ratio: TensorType | None,
    training_mode: TensorType | None,
) -> tuple[TensorType, TensorType]:
    require(data.dtype.is_float, f"wants floating-point data, not {data.dtype}")
    require(ratio is None or ratio.dtype.is_float, "the ratio is not a floating-point number")
    is_bool = training_mode is None or training_mode.dtype is DType.BOOL
    require(is_bool, "training_mode is not bool")
    sensible = attrs.ratio is None or 0 <= attrs.ratio < 1
    require(sensible, f"the ratio is {attrs.ratio}, not between 0 and 1")
    return data, TensorType(DType.BOOL, data.shape)


@operator("nn.dropout", "data ratio? training_mode?", _dropout_type, outputs=2, pure=False)
def _dropout(
    attrs: DropoutAttrs, data: Array, ratio: Array | None, training_mode: Array | None
) -> tuple[Array, Array]:
    """Elements zeroed at random and the others scaled, in training only."""
    static = 0.5 if attrs.ratio is None else attrs.ratio
    share = static if ratio is None else float(ratio.reshape(-1)[0])
    training = attrs.training_mode if training_mode is None else bool(training_mode.reshape(-1)[0])
    if not training or share == 0:
        return data, np.ones(data.shape, dtype=bool)
    kept = np.random.RandomState(attrs.seed).uniform(0, 1, data.shape) >= share
    scaled = data.astype(np.float64) * kept / (1 - share)
    return scaled.astype(data.dtype), np.asarray(kept)
