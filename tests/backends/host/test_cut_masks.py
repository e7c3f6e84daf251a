"""Decoders with a causal mask for so many positions, of which each step takes some rows."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import graft
from graft.base.errors import GraftError
from graft.frontends.onnx.importer import import_model

POSITIONS, LAYERS = 8, 3


def decoder() -> onnx.ModelProto:
    """Layers of attention over what is past and what is new, which make the new of the next."""
    lines = ["x0 = Neg (x)"]  # so that the first layer reads memory like the others': one kernel
    for i in range(LAYERS):
        lines += [
            f"k{i} = Concat <axis = 1> (past{i}, x{i})",
            f"t{i} = Transpose <perm = [0, 2, 1]> (k{i})",
            f"scores{i} = MatMul (x{i}, t{i})",
            f"end{i} = Shape <start = 1, end = 2> (k{i})",
            f"own{i} = Shape <start = 1, end = 2> (x{i})",
            f"begin{i} = Sub (end{i}, own{i})",
            f"rows{i} = Slice (mask, begin{i}, end{i}, first)",
            f"cut{i} = Slice (rows{i}, none, end{i}, second)",
            f"seen{i} = Where (cut{i}, scores{i}, low)",
            f"share{i} = Softmax <axis = -1> (seen{i})",
            f"x{i + 1} = MatMul (share{i}, k{i})",
        ]
    pasts = ", ".join(f"float[batch, past, 4] past{i}" for i in range(LAYERS))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, new, 4] x, {pasts}) => (float[batch, new, 4] x{LAYERS})
        {{ {"  ".join(lines)} }}""")
    constants = {
        "mask": np.tril(np.ones((POSITIONS, POSITIONS), bool)),
        "low": np.float32(-1e4),
        "none": np.array([0]),
        "first": np.array([0]),
        "second": np.array([1]),
    }
    made = (numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items())
    model.graph.initializer.extend(made)
    return model


def feeds(past: int, new: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    pasts = {f"past{i}": random.normal(size=(2, past, 4)) for i in range(LAYERS)}
    given = {"x": random.normal(size=(2, new, 4)), **pasts}
    return {name: one.astype(np.float32) for name, one in given.items()}


def test_extents_do_not_grow_from_layer_to_layer() -> None:
    graph = import_model(decoder())
    assert str(graph.outputs[0].type) == "float32[batch, new, 4]"


@pytest.mark.parametrize("target", ["host", "reference"])
def test_as_many_positions_as_the_mask_has_are_served(target: str) -> None:
    model = decoder()
    module = graft.compile(model, target=target)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for past, new in ((0, 1), (3, 2), (5, 3), (7, 1), (0, POSITIONS), (1, 0)):
        given = feeds(past, new)
        (result,) = module.run(None, given)
        np.testing.assert_allclose(result, session.run(None, given)[0], rtol=1e-5, atol=1e-5)
    for past, new in ((POSITIONS, 1), (6, 3), (0, POSITIONS + 1), (20, 1)):
        with pytest.raises(GraftError, match="do not broadcast"):
            module.run(None, feeds(past, new))
