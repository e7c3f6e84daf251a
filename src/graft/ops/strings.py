"""Operators on strings: joining, splitting, cleaning, matching and tokenizing.

Tensors of strings are NumPy object arrays of `str`. Upper and lower case follow Unicode's default
rules, whatever the locale; white space is what `str.isspace` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, dim_max
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Strings
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.ops.rules import STRINGS, broadcast_type, operator, require
from graft.ops.strings_re2 import Automaton, compile_re2


@operator("string.concat", "lhs rhs", broadcast_type, dtypes=STRINGS, kind=Kind.BROADCAST)
def _concat(_attrs: Any, lhs: Array, rhs: Array) -> Array:
    """Strings joined in pairs."""
    joined = np.add(lhs, rhs)  # of rank 0 it comes as a plain str
    result = np.empty(np.shape(joined), object)
    result[...] = joined
    return result


@dataclass(frozen=True, slots=True)
class SplitAttrs(Attrs):
    """An empty delimiter is any run of white space; `maxsplit` -1 sets no limit."""

    delimiter: str = ""
    maxsplit: int = -1


def _split_type(attrs: SplitAttrs, data: TensorType) -> tuple[TensorType, TensorType]:
    parts = None if data.shape is None else (*data.shape, UNKNOWN)
    return TensorType(DType.STRING, parts), TensorType(DType.INT64, data.shape)


@operator("string.split", "data", _split_type, dtypes=STRINGS, outputs=2)
def _split(attrs: SplitAttrs, data: Array) -> tuple[Array, Array]:
    """Each string's parts, padded with empty ones, and how many there are."""
    limit = max(attrs.maxsplit, -1)
    if attrs.delimiter:
        rows = [text.split(attrs.delimiter, limit) for text in data.flat]
    else:
        rows = [text.strip().split(None, limit) for text in data.flat]
    counts = np.array([len(row) for row in rows], np.int64).reshape(data.shape)
    width = int(counts.max(initial=0))
    parts = np.full((len(rows), width), "", object)
    for padded, row in zip(parts, rows, strict=True):
        padded[: len(row)] = row
    return parts.reshape(*data.shape, width), counts


@dataclass(frozen=True, slots=True)
class NormalizeAttrs(Attrs):
    stopwords: Strings = ()
    case_sensitive: bool = False  # whether stop words are
    case: str = "NONE"  # LOWER or UPPER: what the words become


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def _normalize_type(attrs: NormalizeAttrs, data: TensorType) -> TensorType:
    require(attrs.case in _CASES, f"case is '{attrs.case}', none of {', '.join(_CASES)}")
    if data.shape is None:
        return data
    rows = data.shape[0] if len(data.shape) == 2 else 1
    one_row = len(data.shape) in (1, 2) and (rows == 1 or not isinstance(rows, int))
    require(one_row, "wants a tensor of shape [words] or [1, words]")
    # Where no word is left, one empty word stands for them.
    words: AnyDim = UNKNOWN if attrs.stopwords else dim_max(data.shape[-1], 1)
    return TensorType(DType.STRING, (*data.shape[:-1], words))


@operator("string.normalize", "data", _normalize_type, dtypes=STRINGS)
def _normalize(attrs: NormalizeAttrs, data: Array) -> Array:
    """Strings in another case, without stop words."""
    if data.ndim == 2 and data.shape[0] != 1:
        raise ValueError(f"wants one row of words, has {data.shape[0]}")
    fold = str if attrs.case_sensitive else str.casefold
    dropped = {fold(word) for word in attrs.stopwords}
    change = _CASES[attrs.case]
    words = [change(word) for word in data.flat if fold(word) not in dropped] or [""]
    return np.array(words, object).reshape(*data.shape[:-1], len(words))


@dataclass(frozen=True, slots=True)
class RegexAttrs(Attrs):
    pattern: str


def _full_match_type(attrs: RegexAttrs, data: TensorType) -> TensorType:
    compile_re2(attrs.pattern)
    return TensorType(DType.BOOL, data.shape)


@operator(
    "string.regex_full_match", "data", _full_match_type, dtypes=STRINGS, kind=Kind.ELEMENTWISE
)
def _full_match(attrs: RegexAttrs, data: Array) -> Array:
    """Whether a whole string matches an RE2 pattern."""
    pattern = compile_re2(attrs.pattern)
    matches = [pattern.matches(text) for text in data.flat]
    return np.array(matches, bool).reshape(data.shape)


# What stands before and behind the tokens of a string if they are marked.
_START, _END = "\x02", "\x03"


@dataclass(frozen=True, slots=True)
class TokenizeAttrs(Attrs):
    """As in ONNX Runtime's `Tokenizer`.

    Tokens are what `pattern` matches, or what is left between the `separators`, which cut one
    after the other; with neither, they are characters. Shorter ones than `min_length` are dropped.
    """

    separators: Strings = ()
    pattern: str = ""
    min_length: int = 1
    mark: bool = False
    pad: str = ""


def _tokenize_type(attrs: TokenizeAttrs, data: TensorType) -> TensorType:
    require(data.dtype is DType.STRING, f"wants string elements, not {data.dtype}")
    require(data.rank in (None, 1, 2), "wants a tensor of shape [words] or [rows, words]")
    require(attrs.min_length > 0, f"tokens of length {attrs.min_length} are wanted")
    require(not (attrs.separators and attrs.pattern), "has separators and a pattern for tokens")
    for pattern in (*attrs.separators, attrs.pattern):
        compile_re2(pattern)
    return TensorType(DType.STRING, None if data.shape is None else (*data.shape, UNKNOWN))


def _tokens(attrs: TokenizeAttrs, text: str) -> list[str]:
    if attrs.pattern:
        if len(text) < attrs.min_length:
            return []
        return list(_matching(compile_re2(attrs.pattern), text, attrs.min_length))
    if not attrs.separators:
        return list(text)
    row = [text]
    for separator in attrs.separators:
        pattern = compile_re2(separator)
        parts = (part for token in row for part in _between(pattern, token))
        row = [part for part in parts if len(part) >= attrs.min_length]
    return row


def _matching(pattern: Automaton, text: str, least: int) -> Iterator[str]:
    start = 0
    while (match := pattern.search(text, start)) is not None:
        begin, end = match
        if end - begin >= max(least, 1):
            yield text[begin:end]
            start = end
        else:
            start = begin + 1


def _between(pattern: Automaton, text: str) -> Iterator[str]:
    start = 0
    while (match := pattern.search(text, start)) is not None:
        begin, end = match
        yield text[start:begin]
        start = end if end > begin else begin + 1
    if start <= len(text):
        yield text[start:]


@operator("string.tokenize", "data", _tokenize_type)
def _tokenize(attrs: TokenizeAttrs, data: Array) -> Array:
    """Cuts strings into tokens."""
    rows = [_tokens(attrs, text) for text in data.flat]
    width = max(map(len, rows), default=0)
    if width and attrs.mark:
        rows = [[_START, *row, _END] for row in rows]
        width += 2
    result = np.full((len(rows), width), attrs.pad, object)
    for padded, row in zip(result, rows, strict=True):
        padded[: len(row)] = row
    return result.reshape(*data.shape, width)
