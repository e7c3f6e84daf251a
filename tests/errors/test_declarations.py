"""Declared types that contradict what a model computes or brings along.

Inputs, outputs and defaults are taken at their word. What a file says of values in between is often
out of date in its extents, and then ignored; another dtype or rank is a mistake.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_sequence_value_info
from tests.frontends.onnx.small_models import (
    FLOAT,
    INT64,
    Mistake,
    it,
    model,
    node,
    refused,
    tensor,
    untyped,
    value,
)

from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model


def with_default(declared: Any) -> onnx.ModelProto:
    weights = [tensor("w", [1, 2, 3], np.float32)]
    return model(it("Add", ["x", "w"]), [value("x"), declared], weights=weights)


def in_between(declared: Any) -> onnx.ModelProto:
    """A model that says something of the value `z` between its two nodes."""
    made = model([it("Relu", outputs=["z"]), node("Relu", "z", "y")])
    made.graph.value_info.append(declared)
    return made


CONTRADICTIONS: dict[str, Mistake] = {
    "extent of a default": (
        lambda: with_default(value("w", FLOAT, [9])),
        ModelError,
        "declared float32[9], but its initialiser is float32[3]",
        "w",
    ),
    "dtype of a default": (
        lambda: with_default(value("w", INT64, [3])),
        ModelError,
        "declared int64[3], but its initialiser is float32[3]",
        "w",
    ),
    "dtype in between": (
        lambda: in_between(value("z", INT64)),
        ModelError,
        "'z' is declared as int64, but is float32[2, 3]",
        "it",
    ),
    "unknown dtype in between": (
        lambda: in_between(value("z", 99)),
        ModelError,
        "'z' is declared as 99, but is float32[2, 3]",
        "it",
    ),
    "rank in between": (
        lambda: in_between(value("z", FLOAT, [2, 3, 1])),
        ModelError,
        "'z' is declared with rank 3, but is float32[2, 3]",
        "it",
    ),
    "kind in between": (
        lambda: in_between(make_tensor_sequence_value_info("z", FLOAT, None)),
        ModelError,
        "'z' is declared as sequence, but is float32[2, 3]",
        "it",
    ),
    "extent of an output": (
        lambda: model(it("Relu"), outputs=[value("y", FLOAT, [7, 7])]),
        ModelError,
        "declared float32[7, 7], but computed as float32[2, 3]",
        "y",
    ),
    "output without a dtype": (
        lambda: model(it("Relu"), outputs=[value("y", 0)]),
        ModelError,
        "an element type is missing",
        "y",
    ),
    "output of an unknown dtype": (
        lambda: model(it("Relu"), outputs=[value("y", 99)]),
        UnsupportedError,
        "element type number 99 is unknown",
        "y",
    ),
}


@pytest.mark.parametrize("mistake", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions(mistake: Mistake) -> None:
    refused(*mistake)


@pytest.mark.parametrize(
    "declared",
    [
        value("z", FLOAT, [7, "n"]),
        value("z", FLOAT, ["made up"]),
        value("z", FLOAT, None),
        value("z", 0, None),
        untyped("z"),
        value("nowhere", INT64),
    ],
    ids=["stale extents", "mere names", "no shape", "nothing", "no type", "no such value"],
)
def test_what_is_out_of_date_is_no_mistake(declared: Any) -> None:
    assert str(import_model(in_between(declared)).outputs[0].type) == "float32[2, 3]"


def test_outputs_declared_by_mere_names_are_as_computed() -> None:
    graph = import_model(model(it("Relu"), outputs=[value("y", FLOAT, ["made up"])]))
    assert str(graph.outputs[0].type) == "float32[2, 3]"


@pytest.mark.parametrize("declared", [value("w", FLOAT, ["n"]), value("w", FLOAT, None)])
def test_defaults_that_say_less_are_no_mistake(declared: Any) -> None:
    assert [v.name for v in import_model(with_default(declared)).inputs] == ["x"]
