"""Cutting strings into tokens, as ONNX Runtime's `Tokenizer` does: by characters, at separators, or
by an expression that tokens match."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Strings
from graft.ir.types import TensorType
from graft.ops.rules import operator, require
from graft.ops.strings_automaton import Automaton
from graft.ops.strings_re2 import compile_re2

# What stands before and behind the tokens of a string if they are marked.
_START, _END = "\x02", "\x03"


@dataclass(frozen=True, slots=True)
class TokenizeAttrs(Attrs):
    """Tokens are what `pattern` matches, or what is left between the `separators`, which cut one
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
