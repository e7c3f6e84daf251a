"""Operators on strings.

ONNX Runtime splits at spaces alone, counts no piece in an empty string and needs the machine's
locales for StringNormalizer; there Python says what is right.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.ml_node import agree, assert_same, by_graft, texts

from graft.base.dims import symbol
from graft.base.errors import ModelError, TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops.strings_re2 import compile_re2

PLAIN: dict[str, Any] = {"domain": "", "opset": 20}
TFIDF: dict[str, Any] = {"domain": "", "opset": 9}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (texts("a", "", "ü"), texts("x", "y", "日本")),
        (texts("a", "b").reshape(2, 1), texts("x", "y", "z")),
        (np.array("a", object), np.array("b", object)),
        (np.array("a", object), texts("x", "")),
        (np.zeros((0, 3), object), texts("x", "y", "z")),
    ],
)
def test_concat(left: Any, right: Any) -> None:
    agree("StringConcat", [left, right], **PLAIN)


SPLITS = texts("a--b", "----a---b-", "no", "--")


@pytest.mark.parametrize("limit", [None, -1, 0, 1, 2])
def test_split_at_a_delimiter(limit: int | None) -> None:
    options: dict[str, Any] = {} if limit is None else {"maxsplit": limit}
    for data in (SPLITS, SPLITS.reshape(2, 1, 2), np.array("a--b", object)):
        agree("StringSplit", [data], outputs=2, delimiter="--", **options, **PLAIN)
        agree("StringSplit", [data], outputs=2, delimiter=" ", **options, **PLAIN)


@pytest.mark.parametrize("limit", [None, 0, 1, 2])
@pytest.mark.parametrize("delimiter", [{}, {"delimiter": ""}])
def test_split_at_white_space(limit: int | None, delimiter: dict[str, str]) -> None:
    options: dict[str, Any] = delimiter | ({} if limit is None else {"maxsplit": limit})
    agree("StringSplit", [texts("  a  b c ", "", " ", "x")], outputs=2, **options, **PLAIN)


def test_split_corner_cases() -> None:
    pieces, counts = by_graft("StringSplit", [texts("", "  ")], outputs=2, **PLAIN)
    assert (pieces.shape, counts.tolist()) == ((2, 0), [0, 0])
    pieces, counts = by_graft("StringSplit", [np.zeros((2, 0), object)], outputs=2, **PLAIN)
    assert (pieces.shape, counts.shape) == ((2, 0, 0), (2, 0))
    found = by_graft("StringSplit", [texts("", "a,b")], outputs=2, delimiter=",", **PLAIN)
    assert_same(found, [np.array([["", ""], ["a", "b"]], object), np.array([1, 2])])
    found = by_graft("StringSplit", [texts("a\tb\u00a0c\n")], outputs=2, **PLAIN)
    assert_same(found, [np.array([["a", "b", "c"]], object), np.array([3])])


def test_split_types() -> None:
    builder = Builder()
    data = builder.input("data", tensor("string", symbol("n"), 2))
    pieces, counts = builder.call("string.split", data, delimiter=",")
    assert pieces.shape is not None
    assert (pieces.shape[:2], counts.shape) == ((symbol("n"), 2), (symbol("n"), 2))
    words = np.array([["a,b", "c"], ["", "d,e,f"]], object)
    assert evaluate(builder.build(pieces), [words])[0].shape == (2, 2, 3)
    anything = builder.input("anything", TensorType(data.dtype, None))
    assert [value.shape for value in builder.call("string.split", anything)] == [None, None]


WORDS = texts("The", "quick", "FOX", "the", "Straße", "ΟΔΟΣ")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, WORDS.tolist()),
        ({"case_change_action": "LOWER"}, [word.lower() for word in WORDS]),
        ({"case_change_action": "UPPER"}, [word.upper() for word in WORDS]),
        ({"stopwords": ["the", "fox"]}, ["quick", "Straße", "ΟΔΟΣ"]),
        ({"stopwords": ["STRASSE", "οδος"]}, ["The", "quick", "FOX", "the"]),
        (
            {"stopwords": ["the", "fox"], "is_case_sensitive": 1},
            ["The", "quick", "FOX", "Straße", "ΟΔΟΣ"],
        ),
        (
            {"stopwords": ["The"], "is_case_sensitive": 1, "case_change_action": "UPPER"},
            ["QUICK", "FOX", "THE", "STRASSE", "ΟΔΟΣ"],
        ),
        ({"stopwords": WORDS.tolist(), "locale": "en_US"}, [""]),
    ],
)
def test_normalize(attributes: dict[str, Any], expected: list[str]) -> None:
    options = {"domain": "", "opset": 10, **attributes}
    assert by_graft("StringNormalizer", [WORDS], **options)[0].tolist() == expected
    assert by_graft("StringNormalizer", [WORDS[np.newaxis]], **options)[0].tolist() == [expected]


def test_normalize_of_nothing_and_of_too_much() -> None:
    options = {"domain": "", "opset": 10}
    assert by_graft("StringNormalizer", [np.zeros(0, object)], **options)[0].tolist() == [""]
    with pytest.raises(TypeRuleError, match=r"wants a tensor of shape \[words\] or \[1, words\]"):
        by_graft("StringNormalizer", [np.zeros((2, 3), object)], **options)
    with pytest.raises(TypeRuleError, match="case is 'TITLE', none of NONE, LOWER, UPPER"):
        by_graft("StringNormalizer", [WORDS], case_change_action="TITLE", **options)


def test_normalize_types() -> None:
    builder = Builder()
    n = symbol("n")
    data = builder.input("data", tensor("string", 1, n))
    kept = builder("string.normalize", data, case="LOWER")
    assert str(kept.type) == "string[1, max(n, 1)]"
    thinned = builder("string.normalize", data, stopwords=("a",))
    assert thinned.shape is not None
    assert thinned.shape[0] == 1
    results = evaluate(builder.build(kept, thinned), [texts("A", "b", "c")[np.newaxis]])
    assert [result.shape for result in results] == [(1, 3), (1, 2)]


CANDIDATES = texts(
    "", "a", "ab", "abc", "a.b", "axb", "12", "١٢", "É", "é", "a\n", "a1_", "]", "-", "[:", " ",
    "\v", "😀", "aé", "foo@gmail.com", "A&B", "q\u00a0",
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a|ab", "a*b?c?", "(?i)É", r"\d+", r"\D+", r"\w+", r"\W", r"\s", r"[\s\d]+", r"[^\W]+",
        r"[[:alpha:]]+", r"[^[:alpha:]]+", r"[[:alpha:][:digit:]_]+", r"a\z", "a$", "a$\n", "^a$",
        r"\Qa.b\E", r"\Qa.b", r"a\Q.\Eb", r"(?P<x>a)(?:b)", r"(?<x>a)b", r"\x{1F600}", r"\x61b",
        "[]]", "[^]a]", "[[:]+", r"[\]\-]", ".", "(?s)a.", r"\bé", r"a\b.*", "[A&&B]+", r"\141b",
        r"(\W|^)[\w.\-]{0,25}@(hotmail|gmail)\.com(\W|$)", "(?i:A)b", "(?m)a$\n", r"\A.\z",
    ],
)  # fmt: skip
def test_regular_expressions_as_re2_reads_them(pattern: str) -> None:
    agree("RegexFullMatch", [CANDIDATES], pattern=pattern, **PLAIN)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", r"'\(' is not a regular expression: missing \)"),
        ("[", "unterminated character set"),
        (r"(a)\1", r"RE2 has no '\\1'"),
        ("(?=a)a", r"RE2 has no '\(\?='"),
        ("(?<!a)b", r"RE2 has no '\(\?<!'"),
        ("a*+", r"RE2 has no '\*\+'"),
        ("a{2}+", r"RE2 has no '\{2\}\+'"),
        (r"\pL", r"'\\p...' in the regular expression '\\pL' is not served"),
        ("[[:^alpha:]]", r"\[:\^alpha:\] in the regular expression"),
        ("[[:letter:]]", r"\[:letter:\] is unknown"),
        (r"\x{110000}", "is no character"),
        ("a(?i)b", "flags not at the start"),
    ],
)
def test_refused_regular_expressions(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        by_graft("RegexFullMatch", [texts("a")], pattern=pattern, **PLAIN)
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


@given(st.text(max_size=8))
def test_quoted_text_matches_itself_only(text: str) -> None:
    pattern = compile_re2("\\Q" + text.replace("\\", "") + "\\E")
    assert pattern.matches(text.replace("\\", ""))
    assert not pattern.matches(text.replace("\\", "") + "x")


def test_match_keeps_the_shape() -> None:
    for shape in ((), (0, 2), (2, 1, 3)):
        found = by_graft("RegexFullMatch", [np.full(shape, "ab", object)], pattern="a.", **PLAIN)
        assert found[0].tolist() == np.full(shape, True).tolist()


POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 6, 5, 5, 6, 7]  # 1-grams, 2-grams from 4, a 3-gram from 12


def grams_in(row: list[Any], length: int, skip: int) -> list[tuple[Any, ...]]:
    """All n-grams whose words lie `skip` + 1 apart, found by their positions."""
    step = skip + 1
    every = combinations(range(len(row)), length)
    apart = [at for at in every if all(b - a == step for a, b in pairwise(at))]
    return [tuple(row[i] for i in at) for at in apart]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_tfidf(mode: str, shortest: int, longest: int, skip: int) -> None:
    rows = np.random.default_rng(skip).integers(2, 9, (3, 11))
    options: dict[str, Any] = {
        "mode": mode,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "max_skip_count": skip,
        "ngram_counts": [0, 4, 12],
        "ngram_indexes": list(range(9)),
        "weights": [1.5, 2, 3, 4, 5, 6, 7, 8, 9.0],
    }
    for data in (rows, rows.astype(np.int32), rows[0]):
        agree("TfIdfVectorizer", [data], pool_int64s=POOL, **options, **TFIDF)
    words = np.array([[f"w{number}" for number in row] for row in rows], object)
    pool = [f"w{number}" for number in POOL]
    agree("TfIdfVectorizer", [words], pool_strings=pool, **options, **TFIDF)


def test_tfidf_columns_and_weights_belong_to_the_pools_order() -> None:
    """As ONNX words it; ONNX Runtime weighs by column."""
    pool, row = [7, 9, 7, 9, 9, 9], [7, 9, 9, 7, 9]
    weights = [0.5, 2.0, 8.0, 32.0]
    (found,) = by_graft(
        "TfIdfVectorizer",
        [np.array(row)],
        mode="TFIDF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=2,
        ngram_counts=[0, 2],
        ngram_indexes=[3, 1, 1, 0],
        pool_int64s=pool,
        weights=weights,
        **TFIDF,
    )
    counts = [row.count(7), row.count(9)]
    every = [gram for skip in range(3) for gram in grams_in(row, 2, skip)]
    counts += [every.count((7, 9)), every.count((9, 9))]
    expected = np.zeros(4, np.float32)
    for count, weight, column in zip(counts, weights, [3, 1, 1, 0], strict=True):
        expected[column] += count * weight
    assert found.tolist() == expected.tolist()


def tfidf(data: Any, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 1, 2],
    }
    given = {key: value for key, value in (options | changes).items() if value is not None}
    return by_graft("TfIdfVectorizer", [data], **given, **TFIDF)[0]


def test_tfidf_of_little() -> None:
    assert tfidf(np.zeros((2, 0), np.int64)).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert tfidf(np.zeros((0, 3), np.int64)).shape == (0, 3)
    assert tfidf(np.array([1])).tolist() == [1, 0, 0]
    unknown = tfidf(np.array([1, 9, 2, -3]), max_skip_count=5)
    assert unknown.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "BM25"}, TypeRuleError, "the mode is 'BM25'"),
        ({"min_gram_length": 3}, TypeRuleError, "lengths are not a range"),
        ({"max_gram_length": 3}, TypeRuleError, "the pool has no 3-grams"),
        ({"max_skip_count": -1}, TypeRuleError, "max_skip is -1"),
        ({"ngram_counts": [0, 3]}, TypeRuleError, "2-grams from 3 to 4 are not whole"),
        ({"ngram_counts": [0, 6]}, TypeRuleError, "1-grams from 0 to 6 are not whole"),
        ({"ngram_counts": [1, 2]}, TypeRuleError, "the 1-grams do not start the pool"),
        ({"ngram_indexes": [0, 1]}, TypeRuleError, "has 2 indexes for 3 n-grams"),
        ({"ngram_indexes": [0, -1, 2]}, TypeRuleError, "an index is negative"),
        ({"weights": [1.0]}, TypeRuleError, "has 1 weights for 3 n-grams"),
        ({"pool_int64s": [1, 1, 1, 2]}, TypeRuleError, "the pool has an n-gram twice"),
        ({"pool_strings": ["a"]}, ModelError, "wants either pool_int64s or pool_strings"),
        ({"pool_int64s": None}, ModelError, "wants either pool_int64s or pool_strings"),
        (
            {"pool_int64s": None, "pool_strings": ["a", "b", "a", "b"]},
            TypeRuleError,
            "a pool of string takes no int64",
        ),
    ],
)
def test_tfidf_refusals(changes: dict[str, Any], error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        tfidf(np.array([1, 2]), **changes)


def test_strings_take_strings_only() -> None:
    builder = Builder()
    number = builder.input("number", tensor("int64", 2))
    with pytest.raises(TypeRuleError, match="wants string operands, not int64"):
        builder("string.concat", number, number)
