"""Counting the n-grams of a pool: sequences of words or numbers -> vectors of weighted counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Floats, Ints
from graft.ir.literal import Literal
from graft.ir.types import TensorType
from graft.loop.build import Term, cast, equal, minimum, term
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.rules import operator, require


@dataclass(frozen=True, slots=True)
class TfIdfAttrs(Attrs):
    """`pool` holds first the 1-grams, then the 2-grams, ...; the n-grams start at `counts[n-1]`.

    The i-th n-gram adds to result column `indexes[i]`, times `weights[i]` unless the mode is TF.
    Up to `max_skip` words may lie between two words of an n-gram.
    """

    mode: str
    pool: Literal
    counts: Ints
    indexes: Ints
    min_length: int
    max_length: int
    max_skip: int = 0
    weights: Floats = ()


def grams_of(attrs: TfIdfAttrs) -> list[tuple[Any, ...]]:
    """The n-grams of the pool in order."""
    words = attrs.pool.array.tolist()
    ends = (*attrs.counts[1:], len(words))
    return [
        tuple(words[at : at + length])
        for length, (start, end) in enumerate(zip(attrs.counts, ends, strict=True), start=1)
        for at in range(start, end, length)
    ]


def _check(attrs: TfIdfAttrs) -> None:
    require(attrs.mode in ("TF", "IDF", "TFIDF"), f"the mode is '{attrs.mode}'")
    require(1 <= attrs.min_length <= attrs.max_length, "the n-grams' lengths are not a range")
    require(attrs.max_skip >= 0, f"max_skip is {attrs.max_skip}")
    size = attrs.pool.array.size
    require(attrs.pool.array.ndim == 1, "the pool is not a list")
    require(bool(attrs.counts) and attrs.counts[0] == 0, "the 1-grams do not start the pool")
    ends = (*attrs.counts[1:], size)
    for length, (start, end) in enumerate(zip(attrs.counts, ends, strict=True), start=1):
        whole = start <= end <= size and (end - start) % length == 0
        require(whole, f"the pool's {length}-grams from {start} to {end} are not whole")
    require(attrs.max_length <= len(attrs.counts), f"the pool has no {attrs.max_length}-grams")
    grams = grams_of(attrs)
    require(len(set(grams)) == len(grams), "the pool has an n-gram twice")
    number = f"for {len(grams)} n-grams"
    require(len(attrs.indexes) == len(grams), f"has {len(attrs.indexes)} indexes {number}")
    require(min(attrs.indexes, default=0) >= 0, "an index is negative")
    weights = len(attrs.weights)
    require(weights in (0, len(grams)), f"has {weights} weights {number}")


def _tfidf_type(attrs: TfIdfAttrs, data: TensorType) -> TensorType:
    _check(attrs)
    strings = attrs.pool.type.dtype is DType.STRING
    allowed = (DType.STRING,) if strings else (DType.INT32, DType.INT64)
    require(data.dtype in allowed, f"a pool of {attrs.pool.type.dtype} takes no {data.dtype}")
    if data.shape is None:
        return TensorType(DType.FLOAT32, None)
    require(len(data.shape) in (1, 2), "wants a tensor of shape [words] or [rows, words]")
    width = max(attrs.indexes, default=-1) + 1
    return TensorType(DType.FLOAT32, (*data.shape[:-1], width))


def _grams_in(attrs: TfIdfAttrs, words: list[Any]) -> Iterator[tuple[Any, ...]]:
    """All n-grams of a text, their words adjacent or up to `max_skip` apart; single words once."""
    for distance in range(1, min(attrs.max_skip, len(words)) + 2):
        for length in range(max(attrs.min_length, min(distance, 2)), attrs.max_length + 1):
            reach = (length - 1) * distance
            for start in range(len(words) - reach):
                yield tuple(words[start : start + reach + 1 : distance])


@operator("nlp.tfidf", "data", _tfidf_type)
def _tfidf(attrs: TfIdfAttrs, data: Array) -> Array:
    """Counts of n-grams from a pool, or their weights."""
    grams = {gram: index for index, gram in enumerate(grams_of(attrs))}
    rows = data if data.ndim == 2 else data[np.newaxis]
    counts = np.zeros((len(rows), len(grams)), np.int64)
    for row, words in enumerate(rows.tolist()):
        for gram in _grams_in(attrs, words):
            if gram in grams:
                counts[row, grams[gram]] += 1
    weighted = counts.astype(np.float32)
    if attrs.mode != "TF":
        weights = np.array(attrs.weights or (1.0,) * len(grams), np.float32)
        weighted = (np.minimum(counts, 1) if attrs.mode == "IDF" else counts) * weights
    result = np.zeros((len(rows), max(attrs.indexes, default=-1) + 1), np.float32)
    np.add.at(result.T, np.array(attrs.indexes, np.int64), weighted.T)
    return result if data.ndim == 2 else result[0]


# Tensor expression: every n-gram of the pool asks all positions whether it stands there. The pool
# is part of the code, as tables; rows of numbers enter, and vectors of weighted counts leave.


@te.expresses("nlp.tfidf")
def _express_tfidf(attrs: TfIdfAttrs, out: te.Out, data: Tensor) -> te.Results:
    """Count each n-gram in a row, then add the counts to the columns."""
    shape = out.shape
    if data.dtype is DType.STRING:
        return te.Unexpressed("machine code has no strings")
    if 0 in (*te.sizes(data), *shape):
        return out.of(lambda *_: te.number(0, DType.FLOAT32))
    counts = _counts(attrs, data, f"{out.name}_counts")
    of_column, weights = _columns(attrs)
    gram_of, weight_of = (
        te.table(f"{out.name}_grams", of_column),
        te.table(f"{out.name}_weights", weights),
    )

    def element(*at: Term) -> Reduce:
        *row, column = at
        (entry,) = te.reduce_axes([of_column.shape[1]])
        count = te.read(counts, [*row, gram_of[column, entry]])
        if attrs.mode == "IDF":
            count = minimum(count, 1)
        return sum_(cast(DType.FLOAT32, count) * weight_of[column, entry], [entry])

    return out.of(element)


def _counts(attrs: TfIdfAttrs, data: Tensor, name: str) -> Tensor:
    """Occurrences of each n-gram in a row, its words adjacent or some apart."""
    grams = grams_of(attrs)
    longest, words = max(map(len, grams)), te.sizes(data)[-1]
    padded = [[*gram, *[0] * (longest - len(gram))] for gram in grams]
    pool = te.table(f"{name}_pool", np.array(padded, np.int64))
    lengths = te.table(f"{name}_lengths", np.array([len(gram) for gram in grams], np.int64))

    def element(*at: Term) -> Reduce:
        *row, gram = at
        apart, first = te.reduce_axes([attrs.max_skip + 1, words])
        distance, length = apart + 1, lengths[gram]
        is_match = (first + (length - 1) * distance < words) & (equal(apart, 0) | (length > 1))
        is_match = is_match & (length >= attrs.min_length) & (length <= attrs.max_length)
        for position in range(longest):
            index = minimum(first + distance * position, term(words) - 1)
            word = cast(DType.INT64, te.read(data, [*row, index]))
            is_match = is_match & ((length <= position) | equal(word, pool[gram, position]))
        return sum_(cast(DType.INT64, is_match), [apart, first])

    return te.by_index(name, [*data.shape[:-1], len(grams)], element)


def _columns(attrs: TfIdfAttrs) -> tuple[Array, Array]:
    """Per column the n-grams that add to it, and what one of each counts; some count nothing."""
    grams: list[list[int]] = [[] for _ in range(max(attrs.indexes) + 1)]
    for gram, column in enumerate(attrs.indexes):
        grams[column].append(gram)
    most = max(map(len, grams))
    plain = attrs.mode == "TF" or not attrs.weights
    of_column = np.zeros((len(grams), most), np.int64)
    weights = np.zeros((len(grams), most), np.float32)
    for column, own in enumerate(grams):
        of_column[column, : len(own)] = own
        weights[column, : len(own)] = [1.0 if plain else attrs.weights[gram] for gram in own]
    return of_column, weights
