"""Models with weights that cannot be, and files that are no models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx.small_models import (
    FLOAT,
    INT64,
    STRING,
    Mistake,
    it,
    model,
    refused,
    tensor,
)

from graft.base.errors import ModelError


def weight_with(**fields: Any) -> onnx.ModelProto:
    """A model whose initialiser is not as it was made."""
    made = model(it("Add", ["x", "w"]), weights=[tensor("w", [1, 2, 3], np.float32)])
    weight = made.graph.initializer[0]
    for name, content in fields.items():
        if name == "dims":
            weight.dims[:] = content
        else:
            setattr(weight, name, content)
    return made


def sparse_constant(index: int) -> onnx.ModelProto:
    values = helper.make_tensor("v", FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("i", INT64, [2], [0, index])
    sparse = helper.make_sparse_tensor(values, indices, [4])
    return model(it("Constant", [], sparse_value=sparse), [])


WEIGHTS: dict[str, Mistake] = {
    "sparse": (
        lambda: sparse_constant(99),
        ModelError,
        "sparse constant 'v' has an index outside its shape [4]",
        "",
    ),
    "too short": (
        lambda: weight_with(dims=[5]),
        ModelError,
        "initialiser 'w' holds 12 bytes, but float32 [5] takes 20",
        "",
    ),
    "negative": (
        lambda: weight_with(dims=[-3]),
        ModelError,
        "initialiser 'w' has a negative dimension: [-3]",
        "",
    ),
    "absurd": (
        lambda: weight_with(dims=[1 << 40, 1 << 40]),
        ModelError,
        "initialiser 'w' has the absurd shape [1099511627776, 1099511627776]",
        "",
    ),
    "unknown dtype": (
        lambda: weight_with(data_type=99),
        ModelError,
        "initialiser 'w' has element type 99, which ONNX does not define",
        "",
    ),
    "no text": (
        lambda: model(it("Constant", [], value=helper.make_tensor("v", STRING, [1], [b"\xff"]))),
        ModelError,
        "holds a string that is not UTF-8",
        "",
    ),
    "garbage": (lambda: b"garbage", ModelError, "not a readable ONNX model", ""),
    "nothing": (lambda: b"", ModelError, "the model is empty", ""),
    "empty message": (onnx.ModelProto, ModelError, "it has no IR version", ""),
    "name that is no text": (
        lambda: model(it("Relu")).SerializeToString().replace(b"it", b"\xff\xfe", 1),
        ModelError,
        "a name in the model is not UTF-8",
        "",
    ),
}


@pytest.mark.parametrize("mistake", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_and_files(mistake: Mistake) -> None:
    refused(*mistake)
