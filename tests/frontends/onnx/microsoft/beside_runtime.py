"""Models of one node of `com.microsoft`, run by ONNX Runtime and by Graft's evaluator.

A case is an operator on arrays (None where an operand is left out). Graft runs it twice: with the
shapes as they are, and with every extent left open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from graft.base.dtypes import Array
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate
from graft.ir.verify import verify

DOMAIN = "com.microsoft"
Operands = Sequence["Array | None"]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(*shape: int, seed: int = 0) -> Array:
    return random(seed).standard_normal(shape).astype(np.float32)


def whole(dtype: Any, *shape: int, low: int | None = None, high: int | None = None) -> Array:
    """Whole numbers, by default all that the dtype has."""
    info = np.iinfo(dtype)
    bounds = info.min if low is None else low, info.max + 1 if high is None else high
    return random(7).integers(*bounds, shape).astype(dtype)


def scalar(number: float, dtype: Any = np.float32) -> Array:
    return np.array(number, dtype)


def model(
    op_type: str,
    operands: Operands,
    outputs: str = "y",
    constants: Sequence[int] = (),
    opened: bool = False,
    domain: str = DOMAIN,
    opset: int = 17,
    shapes: Mapping[int, Sequence[int | str]] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; `outputs` are words, with "-" for one that is not wanted.

    Operands at the positions `constants` are initialisers. `shapes` replaces declared shapes by
    position, while `opened` leaves every extent open. An attribute that is called like one of
    the parameters is given with an underscore behind it.
    """
    names = ["" if array is None else f"in{i}" for i, array in enumerate(operands)]
    results = ["" if word == "-" else word for word in outputs.split()]
    given = {name.rstrip("_"): value for name, value in attributes.items()}
    node = helper.make_node(op_type, names, results, name="it", domain=domain, **given)
    inputs, weights = [], []
    for position, (name, array) in enumerate(zip(names, operands, strict=True)):
        if array is not None and position in constants:
            weights.append(numpy_helper.from_array(array, name))
        elif array is not None:
            shape = (shapes or {}).get(position) or [
                f"{name}_{axis}" if opened else n for axis, n in enumerate(array.shape)
            ]
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, dtype, shape))
    undeclared = [onnx.ValueInfoProto(name=name) for name in results if name]
    graph = helper.make_graph([node], "one_node", inputs, undeclared, weights)
    opsets = {"": opset, DOMAIN: 1}
    imports = [helper.make_opsetid(name, version) for name, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def by_runtime(op_type: str, operands: Operands, **options: Any) -> list[Array]:
    """What ONNX Runtime gives."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    proto = model(op_type, operands, **options)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    constants = options.get("constants", ())
    given = {
        f"in{i}": array
        for i, array in enumerate(operands)
        if array is not None and i not in constants
    }
    return list(session.run(None, given))


def by_graft(op_type: str, operands: Operands, **options: Any) -> list[Array]:
    """What Graft's evaluator gives."""
    graph = import_model(model(op_type, operands, **options))
    verify(graph)
    constants = options.get("constants", ())
    given = [a for i, a in enumerate(operands) if a is not None and i not in constants]
    return evaluate(graph, given)


def agrees(
    op_type: str,
    *operands: Array | None,
    opened: bool = True,
    tolerance: float = 1e-5,
    off_by_one: float = 0.0,
    **options: Any,
) -> None:
    """Graft gives what ONNX Runtime gives, also with extents that are left open.

    Floats may be off by a tolerance relative to the largest of them, and a share of all integers
    by one.
    """
    expected = by_runtime(op_type, operands, **options)
    for is_open in (False, True) if opened else (False,):
        actual = by_graft(op_type, operands, opened=is_open, **options)
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            same(ours, theirs, tolerance, off_by_one)


def same(ours: Array, theirs: Array, tolerance: float, off_by_one: float) -> None:
    """Equal shapes and dtypes, and elements within the tolerance."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if theirs.size == 0:
        return
    away = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if theirs.dtype.kind == "f":
        assert np.all(np.isfinite(theirs))
        assert away.max() <= tolerance * max(1.0, float(np.abs(theirs).max()))
        return
    assert away.max() <= (1 if off_by_one else 0)
    assert np.mean(away > 0) <= off_by_one
