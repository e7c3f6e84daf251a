"""ONNX Runtime's tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import by_graft, by_runtime, model

from graft.base.errors import GraftError
from graft.frontends.onnx.importer import import_model

TEXTS = np.array([["a,b;c  d", "ü-mläut, ok"], ["", ",;,"]], object)


def options(**given: Any) -> dict[str, Any]:
    return {"mark": 0, "pad_value": "#", "mincharnum": 1, **given}


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    "given",
    [
        {"separators": [""]},
        {"tokenexp": "."},
        {"separators": [","]},
        {"separators": [",", ";", " "]},
        {"separators": [",", ";", " "], "mincharnum": 2},
        {"separators": ["a|a,b", " +"]},
        {"separators": [" *"]},
        {"tokenexp": "[a-z]+"},
        {"tokenexp": "[a-z]+", "mincharnum": 2},
        {"tokenexp": "a|a,b|[a-z]*"},
        {"tokenexp": "x"},
    ],
)
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[0], TEXTS[1], TEXTS[:, :1]])
def test_tokens_are_those_of_onnx_runtime(
    texts: np.ndarray, given: dict[str, Any], mark: int
) -> None:
    asked = options(**given, mark=mark)
    (expected,) = by_runtime("Tokenizer", [texts], **asked)
    (actual,) = by_graft("Tokenizer", [texts], **asked)
    assert actual.shape == expected.shape
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tokenexp": "."} | {"mincharnum": 2},
        {"tokenexp": "a", "mincharnum": 0},
        {"tokenexp": "(a"},
    ],
)
def test_nonsense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(GraftError):
        import_model(model("Tokenizer", [TEXTS], **options(**given)))
