"""Operators on strings."""

from __future__ import annotations

import numpy as np

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value


@lowers("StringConcat")
def _concat(call: Call) -> Value:
    return call.op("string.concat", *call.inputs)


@lowers("StringSplit")
def _split(call: Call) -> tuple[Value, ...]:
    delimiter, limit = call.string("delimiter", ""), call.int("maxsplit", -1)
    return call.ops("string.split", call.input(0), delimiter=delimiter, maxsplit=limit)


@lowers("StringNormalizer")
def _normalize(call: Call) -> Value:
    return call.op(
        "string.normalize",
        call.input(0),
        stopwords=call.ints("stopwords", ()),
        case_sensitive=call.int("is_case_sensitive", 0) != 0,
        case=call.string("case_change_action", "NONE"),
    )


@lowers("RegexFullMatch")
def _full_match(call: Call) -> Value:
    return call.op("string.regex_full_match", call.input(0), pattern=call.string("pattern"))


@lowers("TfIdfVectorizer")
def _tfidf(call: Call) -> Value:
    pools = [name for name in ("pool_int64s", "pool_strings") if call.ints(name, ())]
    if len(pools) != 1:
        call.fail("TfIdfVectorizer wants either pool_int64s or pool_strings")
    pool = np.array(call.ints(pools[0]), object if pools == ["pool_strings"] else np.int64)
    return call.op(
        "nlp.tfidf",
        call.input(0),
        mode=call.string("mode"),
        pool=pool,
        counts=call.ints("ngram_counts"),
        indexes=call.ints("ngram_indexes"),
        min_length=call.int("min_gram_length"),
        max_length=call.int("max_gram_length"),
        max_skip=call.int("max_skip_count"),
        weights=call.ints("weights", ()),
    )
