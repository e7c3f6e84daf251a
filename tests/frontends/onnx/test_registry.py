"""Lowerings that others bring along: for operators that ONNX has no schema for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.small_models import it, model, refused

from graft.base.errors import ModelError
from graft.cli.survey import obstacles
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import read_model
from graft.frontends.onnx.registry import LOWERINGS, lowers
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value

DOMAIN = "my.domain"


@pytest.fixture(autouse=True)
def own_lowerings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    with monkeypatch.context() as patch:
        patch.setattr(LOWERINGS, "_entries", dict(LOWERINGS._entries))
        yield


def lower_scaled(call: Call) -> Value:
    x = call.input(0)
    return call.op("multiply", x, call.scalar(call.float("factor", 2.0), x))


def scaled(domain: str = DOMAIN, **attributes: Any) -> onnx.ModelProto:
    return model(it("Scaled", domain=domain, **attributes), opsets={"": 18, DOMAIN: 1})


@pytest.mark.parametrize("domain", [DOMAIN, ""])
def test_no_schema_is_needed(domain: str) -> None:
    lowers("Scaled", domain=domain)(lower_scaled)
    proto = scaled(domain, factor=3.0)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = evaluate(import_model(proto), [x])
    np.testing.assert_array_equal(found, 3 * x)
    assert obstacles(read_model(proto)) == []


def test_what_the_lowering_reads_is_checked() -> None:
    lowers("Scaled", domain=DOMAIN)(lower_scaled)
    refused(
        lambda: scaled(factor="much"),
        ModelError,
        "attribute 'factor' is 'much', not a number",
        "it",
    )
    lacking = model(it("Scaled", [], domain=DOMAIN), opsets={"": 18, DOMAIN: 1})
    refused(lambda: lacking, ModelError, "Scaled lacks operand 0", "it")
    twice = scaled(factor=3.0)
    twice.graph.node[0].attribute.add().CopyFrom(twice.graph.node[0].attribute[0])
    refused(lambda: twice, ModelError, "attribute 'factor' of Scaled is given twice", "it")


def test_a_schema_of_ones_own_is_heeded() -> None:
    lowers("Bounded", domain=DOMAIN)(lower_scaled)
    parameter = onnx.defs.OpSchema.FormalParameter
    ends = [parameter("x", "tensor(float)")], [parameter("y", "tensor(float)")]
    schema = onnx.defs.OpSchema("Bounded", DOMAIN, 2, inputs=ends[0], outputs=ends[1])
    onnx.defs.register_schema(schema)
    try:
        early = model(it("Bounded", domain=DOMAIN), opsets={"": 18, DOMAIN: 1})
        refused(lambda: early, ModelError, "Bounded does not exist in opset 1", "it")
        wide = model(it("Bounded", domain=DOMAIN, factor=2.0), opsets={"": 18, DOMAIN: 2})
        refused(lambda: wide, ModelError, "Bounded of opset 2 has no 'factor'", "it")
    finally:
        onnx.defs.deregister_schema("Bounded", 2, DOMAIN)
