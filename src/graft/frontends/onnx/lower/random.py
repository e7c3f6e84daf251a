"""Random numbers."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

# Per ONNX operator: the Graft operator and its two parameters with their defaults.
_DISTRIBUTIONS = {
    "RandomNormal": ("random.normal", {"mean": 0.0, "scale": 1.0}),
    "RandomUniform": ("random.uniform", {"low": 0.0, "high": 1.0}),
}


def _draw(call: Call, kind: str, *operands: Value, **attrs: Any) -> Value:
    name, parameters = _DISTRIBUTIONS[kind]
    given = {key: call.float(key, default) for key, default in parameters.items()}
    return call.op(name, *operands, seed=call.float("seed", None), **given, **attrs)


@lowers("RandomNormal", "RandomUniform")
def _random(call: Call) -> Value:
    dtype = dtype_from_onnx(call.int("dtype", 1))
    return _draw(call, call.node.op_type, shape=call.ints("shape"), dtype=dtype)


@lowers("RandomNormalLike", "RandomUniformLike")
def _random_like(call: Call) -> Value:
    like = call.input(0)
    dtype = dtype_from_onnx(call.int("dtype")) if call.has("dtype") else like.dtype
    kind = call.node.op_type.removesuffix("Like")
    return _draw(call, kind, call.op("shape_of", like), dtype=dtype)


@lowers("Bernoulli")
def _bernoulli(call: Call) -> Value:
    odds = call.input(0)
    dtype = dtype_from_onnx(call.int("dtype")) if call.has("dtype") else odds.dtype
    if odds.dtype not in (DType.FLOAT32, DType.FLOAT64):
        odds = call.op("cast", odds, dtype=DType.FLOAT32)  # small odds need fine draws
    shape, seed = call.op("shape_of", odds), call.float("seed", None)
    draws = call.op("random.uniform", shape, seed=seed, dtype=odds.dtype)
    return call.op("cast", call.op("less", draws, odds), dtype=dtype)


@lowers("Multinomial")
def _multinomial(call: Call) -> Value:
    return call.op(
        "random.multinomial",
        call.input(0),
        sample_size=call.int("sample_size", 1),
        seed=call.float("seed", None),
        dtype=dtype_from_onnx(call.int("dtype", 6)),
    )
