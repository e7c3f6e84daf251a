"""Counting n-grams of numbers: every n-gram of the pool asks all positions whether it stands there.

The pool is part of the code, as tables; what enters are rows of numbers, and vectors of weighted
counts leave.
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array, DType
from graft.loop.build import Term, cast, equal, minimum, term
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses, table
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    number,
    present,
    read,
    reduce_axes,
    sizes,
)
from graft.ops.strings_tfidf import TfIdfAttrs, grams_of


@expresses("nlp.tfidf")
def tfidf(attrs: TfIdfAttrs, inputs: Inputs, types: Types, name: str) -> Results:
    """How often each n-gram stands in a row, then what that adds to the columns."""
    data, shape = present(inputs[0]), extents_of(types[0])
    if data.dtype is DType.STRING:
        return Unexpressed("machine code has no strings")
    if 0 in (*sizes(data), *shape):
        return (by_index(name, shape, lambda *_: number(0, DType.FLOAT32)),)
    counts = _counts(attrs, data, f"{name}_counts")
    of_column, weights = _columns(attrs)
    gram_of, weight_of = table(f"{name}_grams", of_column), table(f"{name}_weights", weights)

    def element(*at: Term) -> Reduce:
        *row, column = at
        (entry,) = reduce_axes([of_column.shape[1]])
        count = read(counts, [*row, gram_of[column, entry]])
        if attrs.mode == "IDF":
            count = minimum(count, 1)
        return sum_(cast(DType.FLOAT32, count) * weight_of[column, entry], [entry])

    return (by_index(name, shape, element),)


def _counts(attrs: TfIdfAttrs, data: Tensor, name: str) -> Tensor:
    """How often each n-gram stands in a row, its words next to each other or some apart."""
    grams = grams_of(attrs)
    longest, words = max(map(len, grams)), sizes(data)[-1]
    padded = [[*gram, *[0] * (longest - len(gram))] for gram in grams]
    pool = table(f"{name}_pool", np.array(padded, np.int64))
    lengths = table(f"{name}_lengths", np.array([len(gram) for gram in grams], np.int64))

    def element(*at: Term) -> Reduce:
        *row, gram = at
        apart, first = reduce_axes([attrs.max_skip + 1, words])
        distance, length = apart + 1, lengths[gram]
        found = (first + (length - 1) * distance < words) & (equal(apart, 0) | (length > 1))
        found = found & (length >= attrs.min_length) & (length <= attrs.max_length)
        for position in range(longest):
            place = minimum(first + distance * position, term(words) - 1)
            word = cast(DType.INT64, read(data, [*row, place]))
            found = found & ((length <= position) | equal(word, pool[gram, position]))
        return sum_(cast(DType.INT64, found), [apart, first])

    return by_index(name, [*data.shape[:-1], len(grams)], element)


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
