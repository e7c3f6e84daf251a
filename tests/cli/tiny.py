"""Small models for the command line's tests, written in ONNX's own text form."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

# Two dynamic dims, one of them in both inputs.
TWO_INPUTS = """
    sums (float[batch, width] x, float[batch, 1] y) => (float[batch, width] z, int64[2] shape) {
        [add_node] a = Add(x, y)
        [relu_node] z = Relu(a)
        [shape_node] shape = Shape(x)
    }
"""

# Static, and all of it native: four kernels, of which no two are equal.
NATIVE = """
    rows (float[3, 7] x, float[1, 7] y) => (float[3, 7] z, float[7, 3] t) {
        [first] a = Softmax (x)
        [plus] b = Add (a, y)
        [second] z = Softmax (b)
        [turn] t = Transpose (b)
    }
"""

# Static, with one operator that no kernel takes.
MIXED = """
    product (float[2] x) => (float[2] z) {
        [times] a = RandomUniformLike <seed = 1.0> (x)
        [rectify] b = Relu (a)
        [last] z = Softmax (b)
    }
"""

# A node of each kind that keeps a model from being imported, in the main graph, in a branch and
# in a function, and one that does not.
OBSTACLES = """
    <ir_version: 8, opset_import: ["": 17, "com.example": 1, "local": 1],
     producer_name: "hand", producer_version: "1.0">
    bad (float[n] x, bool c) => (float[n] w) {
        [first] y = com.example.Shear (x)
        z = Reluu (y)
        v = If (c) <
            then_branch = yes () => (float[n] t) { [inside] t = com.example.Bend (z) },
            else_branch = no () => (float[n] e) { e = Neg (z) }
        >
        [calls] u = local.twice (v)
        [odd] w = Relu <alpha = 1.0> (u)
    }
    <domain: "local", opset_import: ["": 17, "elsewhere": 2]>
    twice (a) => (b) { d = Add (a, a)  [deep] b = elsewhere.Fold (d) }
"""


def saved(folder: Path, text: str, opset: int = 17) -> str:
    """The path of a model file; a text that has a head of its own keeps it."""
    head = "" if text.lstrip().startswith("<") else f'<ir_version: 8, opset_import: ["": {opset}]>'
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(head + text), path)
    return str(path)
