"""Operators on strings."""

from __future__ import annotations

import numpy as np

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("StringConcat", "string.concat")
lowers_to("StringSplit", "string.split", "delimiter maxsplit")
lowers_to(
    "StringNormalizer",
    "string.normalize",
    "stopwords case_sensitive=is_case_sensitive case=case_change_action",
)
lowers_to("RegexFullMatch", "string.regex_full_match", "pattern")


_TFIDF = (
    "mode counts=ngram_counts indexes=ngram_indexes min_length=min_gram_length"
    " max_length=max_gram_length max_skip=max_skip_count weights"
)


@lowers("TfIdfVectorizer")
def _tfidf(call: Call) -> Value:
    pools = [name for name in ("pool_int64s", "pool_strings") if call.ints(name, ())]
    if len(pools) != 1:
        call.fail("TfIdfVectorizer wants either pool_int64s or pool_strings")
    pool = np.array(call.ints(pools[0]), object if pools == ["pool_strings"] else np.int64)
    return call.op("nlp.tfidf", call.input(0), pool=pool, **call.attributes("nlp.tfidf", _TFIDF))
