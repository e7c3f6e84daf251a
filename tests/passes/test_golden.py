"""What every pass makes of a small graph that it is for, as text before and after.

`pytest --update-golden` writes the texts anew; a change of them is read in the diff of golden/.
"""

from __future__ import annotations

import inspect
import pkgutil
from functools import partial
from importlib import import_module

import onnx.parser
import pytest
from tests.conftest import Golden

from graft import passes
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify
from graft.passes.bind_sizes import bind_sizes

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>'

# By pass, a model that it changes, or a graph where importing would already change it.
MODELS = {
    "bind_sizes": """
        g (float[batch, 6] x) => (float[batch, m] y, int64[2] s) {
            s = Shape (x)
            y = Concat <axis = 1> (x, x)
        }
    """,
    "crop_kernels": """
        g (float[1, 1, 3, 3] x) => (float[1, 1, 3, 3] y)
        <float[1, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            y = Conv <dilations = [4, 4], pads = [4, 4, 4, 4]> (x, w)
        }
    """,
    "duplicate_dequantize": """
        g (int8[4] x) => (float[4] y, float[4] z) <float s = {0.5}, int8 zero = {3}> {
            real = DequantizeLinear (x, s, zero)
            y = Relu (real)
            z = Exp (real)
        }
    """,
    "eliminate_common_subexpressions": """
        g (float[n, 3] x) => (float[n, 3] y) { a = Exp (x) b = Exp (x) y = Add (a, b) }
    """,
    "eliminate_dead_code": """
        g (float[2] x) => (float[2] y) { dead = Exp (x) deader = Neg (dead) y = Abs (x) }
    """,
    "eliminate_noops": """
        g (float[2, 3] x) => (float[2, 3] y) <int64[2] shape = {2, 3}> {
            a = Identity (x)
            b = Reshape (a, shape)
            c = Transpose <perm = [0, 1]> (b)
            y = Neg (c)
        }
    """,
    "eliminate_zero_size": """
        g (float[2, 0] x, float[2, 3] z) => (float[2, 3] y) {
            a = Exp (x)
            y = Concat <axis = 1> (a, z)
        }
    """,
    "encode_strings": """
        g (string[4, 2] x) => (int64[4, 1] y) <int64[1] first = {0}, int64[1] second = {1}> {
            a = Gather <axis = 1> (x, first)
            b = Gather <axis = 1> (x, second)
            c = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2]> (a)
            d = ai.onnx.ml.LabelEncoder <keys_strings = ["c", "b"], values_int64s = [3, 4]> (b)
            y = Add (c, d)
        }
    """,
    "fold_affine": """
        g (float[1, 1, 2, 2] x) => (float[1, 2, 2, 2] y)
        <float[2, 1, 1, 1] w = {1, 2}, float[2] scale = {0.5, 0.25}, float[2] bias = {1, 2},
         float[2] mean = {0, 1}, float[2] variance = {3, 15}> {
            a = Conv (x, w)
            y = BatchNormalization <epsilon = 1.0> (a, scale, bias, mean, variance)
        }
    """,
    "fold_constants": """
        g (float[n, 2] x) => (float[n, 2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
            c = Mul (a, b)
            y = Add (x, c)
        }
    """,
    "group_fusion": """
        g (float[n, 4] x) => (float[n, 3] y)
        <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[3] b = {1, 2, 3}> {
            a = MatMul (x, w)
            c = Add (a, b)
            y = Relu (c)
        }
    """,
    "hoist_slices": """
        g (float[1, 5, 2] x) => (float[1, 2] y) <float[2, 2] w = {1, 2, 3, 4}, int64 first = {0}> {
            a = MatMul (x, w)
            b = Relu (a)
            c = Add (b, x)
            y = Gather <axis = 1> (c, first)
        }
    """,
    "index_slices": """
        g (float[rows, 2, 3] x, int64[n] i, float[n, 2, 3] u) => (float[rows, 2, 3] y)
        <int64[3] column = {-1, 1, 1}, int64[2] inner = {2, 3}> {
            j = Reshape (i, column)
            count = Shape (i)
            shape = Concat <axis = 0> (count, inner)
            k = Expand (j, shape)
            y = ScatterElements <axis = 0, reduction = "add"> (x, k, u)
        }
    """,
    "inline_branches": """
        graph @g(%x: float32[2]) {
          %condition: bool[] = constant() {value=dense<bool[]: true>}
          %y: float32[2] = if(%condition, %x) {then_branch=graph @yes(%x: float32[2]) {
            %t: float32[2] = exp(%x)
            return %t
          }, else_branch=graph @no(%x: float32[2]) {
            %e: float32[2] = negative(%x)
            return %e
          }}
          return %y
        }
    """,
    "name_apart": """
        g (bool flag, float[2] x) => (float[2] y) {
            y = If (flag) <
                then_branch = doubled () => (float[2] a) { a = Add (x, x) },
                else_branch = squared () => (float[2] a) { a = Mul (x, x) }
            >
        }
    """,
    "recognize": """
        g (float[n, 4] x) => (float[n, 4] y)
        <float root = {1.4142135}, float one = {1}, float half = {0.5}> {
            a = Div (x, root)
            b = Erf (a)
            c = Add (b, one)
            d = Mul (x, c)
            y = Mul (d, half)
        }
    """,
    "select_branches": """
        g (float[2] x, bool condition) => (float[2] y) {
            y = If (condition) <
                then_branch = yes () => (float[2] t) { t = Abs (x) },
                else_branch = no () => (float[2] e) { e = Neg (x) }
            >
        }
    """,
    "settle_ranks": """
        g (float[a, b] x, bool condition) => (float y) <int64[1] last = {-1}> {
            z = If (condition) <
                then_branch = yes () => (float t) { t = Squeeze (x, last) },
                else_branch = no () => (float e) { e = Identity (x) }
            >
            w = Exp (z)
            y = ReduceSum <keepdims = 0> (w)
        }
    """,
    "simplify_algebra": """
        g (float[n] x) => (float[n] y) <float one = {1}, float half = {0.5}, float two = {2}> {
            a = Mul (x, one)
            b = Neg (a)
            c = Neg (b)
            d = Mul (c, half)
            y = Mul (d, two)
        }
    """,
    "simplify_movement": """
        g (float[2, 3, 4] x) => (float[2, 12] y)
        <int64[2] flat = {6, 4}, int64[2] rows = {2, 12}> {
            a = Reshape (x, flat)
            y = Reshape (a, rows)
        }
    """,
    "sink_transposes": """
        g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) {
            a = Transpose <perm = [0, 2, 3, 1]> (x)
            b = Tanh (a)
            y = Transpose <perm = [0, 3, 1, 2]> (b)
        }
    """,
    "stack_appended": """
        g (int64 n, float[1, 2] start, float[1, 2] piece) => (float[m, 2] y) <bool go = {1}> {
            y = Loop (n, go, start) <
                body = step (int64 i, bool before, float[k, 2] v) => (bool after, float[l, 2] w) {
                    after = Identity (before)
                    number = Cast <to = 1> (i)
                    scaled = Mul (piece, number)
                    w = Concat <axis = 0> (v, scaled)
                }
            >
        }
    """,
}


def modules() -> list[str]:
    """Those of passes: each has a function of its own name that makes a graph of one."""
    names = [module.name for module in pkgutil.iter_modules(passes.__path__)]
    found = {name: getattr(import_module(f"graft.passes.{name}"), name, None) for name in names}
    graph = ("Graph", Graph)
    return [
        name
        for name, function in found.items()
        if function is not None and inspect.signature(function).return_annotation in graph
    ]


def test_every_pass_has_a_golden() -> None:
    assert set(modules()) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_pass_does(name: str, golden: Golden) -> None:
    transform = getattr(import_module(f"graft.passes.{name}"), name)
    if name == "bind_sizes":
        transform = partial(bind_sizes, sizes={"batch": 4})
    text = MODELS[name]
    is_graph = text.lstrip().startswith("graph")
    before = from_text(text) if is_graph else import_model(onnx.parser.parse_model(HEAD + text))
    after = verify(transform(before))
    assert after is not before
    golden(name, f"{to_text(before).text}\n// after {name}\n{to_text(after).text}")
