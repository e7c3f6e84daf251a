"""What support vector machines need beyond matrix products: distances and coupled probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term
from graft.loop.tensor import Reduce, Tensor, reduce_axis, sum_
from graft.ops import expression as te
from graft.ops.rules import operator, ranked_shape, require, require_same_dim, same_dtype

# Differences are formed for so many elements at once.
_BLOCK = 1 << 20


def _rows_and_columns(type_: TensorType, what: str) -> tuple[Any, Any]:
    require(type_.dtype.is_float, f"{what} are {type_.dtype}, not floating-point")
    rows, columns = ranked_shape(type_, 2, what, "have")
    return rows, columns


def _squared_distance_type(_attrs: Any, data: TensorType, vectors: TensorType) -> TensorType:
    rows, features = _rows_and_columns(data, "the samples")
    count, length = _rows_and_columns(vectors, "the vectors")
    require_same_dim(features, length, "the samples' and the vectors' lengths")
    return TensorType(same_dtype(data, vectors), (rows, count))


def _distance_work(_attrs: Any, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    vectors, pairs = ins[1], outs[0].size
    features = UNKNOWN if vectors.shape is None else vectors.shape[1]
    return Work(pairs * features, pairs * features, traffic(ins, outs))


@operator(
    "ml.squared_distance",
    "data vectors",
    _squared_distance_type,
    kind=Kind.ANCHOR,
    work=_distance_work,
)
def _squared_distance(_attrs: Any, data: Array, vectors: Array) -> Array:
    """Squared Euclidean distances between all rows of two matrices."""
    result = np.empty((len(data), len(vectors)), data.dtype)
    step = max(1, _BLOCK // max(1, vectors.size))
    for start in range(0, len(data), step):
        difference = data[start : start + step, np.newaxis] - vectors
        result[start : start + step] = (difference * difference).sum(axis=-1)
    return result


@dataclass(frozen=True, slots=True)
class CouplingAttrs(Attrs):
    classes: int


def _coupling_type(attrs: CouplingAttrs, pairs: TensorType) -> TensorType:
    rows, columns = _rows_and_columns(pairs, "the pairs' probabilities")
    count = attrs.classes * (attrs.classes - 1) // 2
    require(attrs.classes >= 2, f"there are {attrs.classes} classes")
    require_same_dim(columns, count, f"the number of pairs and that of {attrs.classes} classes")
    return TensorType(pairs.dtype, (rows, attrs.classes))


def _relaxed(form: Array, shares: Array, gradient: Array, energy: Array) -> Array:
    """One Gauss-Seidel sweep: each class takes its optimal share with the others fixed."""
    shares, gradient = shares.copy(), gradient.copy()
    for t in range(form.shape[1]):
        row, diagonal = form[:, t], form[:, t, t]
        step = (energy - gradient[:, t]) / diagonal
        total = 1 + step
        energy = (energy + step * (step * diagonal + 2 * gradient[:, t])) / (total * total)
        shares[:, t] += step
        gradient = (gradient + step[:, np.newaxis] * row) / total[:, np.newaxis]
        shares /= total[:, np.newaxis]
    return shares


@operator("ml.pairwise_coupling", "pairs", _coupling_type)
def _coupling(attrs: CouplingAttrs, pairs: Array) -> Array:
    """Probabilities of classes from those of all pairs of classes.

    Class probabilities p that minimise the sum over i, j of (r_ji p_i - r_ij p_j) squared.

    r_ij is the probability of class i among the two; the pairs come as (0, 1), (0, 2), (1, 2) ...
    row by row. Each sample is relaxed until its residual is small, as libsvm does it.
    """
    classes = attrs.classes
    first, second = np.triu_indices(classes, 1)
    wins = np.zeros((len(pairs), classes, classes))
    wins[:, first, second] = pairs
    wins[:, second, first] = 1 - pairs.astype(np.float64)
    losses = wins.transpose(0, 2, 1)
    form = -losses * wins
    form[:, range(classes), range(classes)] = (losses * losses).sum(axis=2)
    result = np.full((len(pairs), classes), 1 / classes)
    active = np.arange(len(pairs))
    for _ in range(max(100, classes)):
        gradient = np.einsum("nij,nj->ni", form[active], result[active])
        energy = (result[active] * gradient).sum(axis=1)
        apart = np.abs(gradient - energy[:, np.newaxis]).max(axis=1) >= 0.005 / classes
        active = active[apart]
        if not active.size:
            break
        result[active] = _relaxed(form[active], result[active], gradient[apart], energy[apart])
    return result.astype(pairs.dtype)


# Tensor expressions.


@te.expresses("ml.squared_distance")
def _express_squared_distance(attrs: Any, out: te.Out, data: Tensor, vectors: Tensor) -> te.Results:
    """Of each sample [rows, features] and each vector [count, features]."""
    dtype = out.dtype

    def element(row: Term, vector: Term) -> Reduce:
        feature = reduce_axis("feature", vectors.shape[1])
        apart = te.widened(data[row, feature]) - te.widened(vectors[vector, feature])
        return sum_(apart * apart, [feature])

    total = te.by_index(te.sum_name(out.name, dtype), out.shape, element)
    return out.rounded(total)
