"""Models with branches, loops and scans, as text; values in bodies are named by what they are."""

from __future__ import annotations

import onnx
import onnx.parser

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'

STEP = """step (int64 i, bool c, float[2, 8] s) => (bool c2, float[2, 8] s2, float[2, 8] row) {
    c2 = Identity (c)
    e = Exp (s)
    s2 = Tanh (e)
    row = Neg (s2)
}"""
# A constant trip count, and a stacked result.
LOOP = f"""net (float[2, 8] x) => (float[2, 8] y, float[k, 2, 8] all)
    <int64 trip = {{4}}, bool go = {{1}}> {{
    y, all = Loop (trip, go, x) <body = {STEP}>
}}"""
NO_TRIPS = LOOP.replace("{4}", "{0}")
# The trip count is an input.
ASKED = f"""net (int64 trip, float[2, 8] x) => (float[2, 8] y, float[k, 2, 8] all)
    <bool go = {{1}}> {{
    y, all = Loop (trip, go, x) <body = {STEP}>
}}"""
# Goes on until the data say stop: three times from ones.
DATA = """net (float[2, 8] x) => (float[2, 8] y)
    <int64 trip = {50}, bool go = {1}, float most = {3.5}, float one = {1}> {
    y = Loop (trip, go, x) <body = step (int64 i, bool c, float[2, 8] s)
        => (bool c2, float[2, 8] s2) {
        e = Exp (s)
        t = Tanh (e)
        s2 = Add (s, one)
        h = ReduceMax <keepdims = 0> (s2)
        w = ReduceMin <keepdims = 0> (t)
        hw = Max (h, w)
        c2 = Less (hw, most)
    }>
}"""
# One of two branches; the sum of generated or of given data decides.
BRANCH = """net (float[2, 8] x) => (float[2, 8] y) <float limit = {1e6}> {
    total = ReduceSum <keepdims = 0> (x)
    c = Less (total, limit)
    y = If (c) <
        then_branch = yes () => (float[2, 8] a) { t = Tanh (x)
            a = Exp (t) },
        else_branch = no () => (float[2, 8] b) { u = Exp (x)
            b = Softmax (u) }
    >
}"""
CHOSEN = """net (bool c, float[2, 8] x) => (float[2, 8] y) {
    y = If (c) <
        then_branch = yes () => (float[2, 8] a) { t = Tanh (x)
            a = Exp (t) },
        else_branch = no () => (float[2, 8] b) { u = Exp (x)
            b = Softmax (u) }
    >
}"""
# A recurrent layer, whose weights and bias are captured from around it.
SCAN = """net (float[n, 1, 4] x, float[1, 8] h) => (float[1, 8] last, float[n, 1, 8] all)
    <float[4, 8] w = {W}, float[8, 8] r = {R}, float[8] b = {0, 1, 0, 1, 0, 1, 0, 1}> {
    last, all = Scan <num_scan_inputs = 1, body = cell (float[1, 8] s, float[1, 4] row)
        => (float[1, 8] s2, float[1, 8] out) {
        p = MatMul (row, w)
        q = MatMul (s, r)
        sum = Add (p, q)
        biased = Add (sum, b)
        s2 = Tanh (biased)
        out = Identity (s2)
    }> (h, x)
}""".replace("{W}", "{" + ", ".join(str(i % 3 * 0.1) for i in range(32)) + "}").replace(
    "{R}", "{" + ", ".join(str(i % 5 * 0.05) for i in range(64)) + "}"
)
# A loop of two iterations around a scan of three slices around a branch.
NESTED = """net (float[3, 8] x) => (float[8] y)
    <int64 trip = {2}, bool go = {1}, float[8] zero = {0,0,0,0,0,0,0,0},
    float limit = {1e6}> {
    y = Loop (trip, go, zero) <body = outer (int64 i, bool c, float[8] s)
        => (bool c2, float[8] s2) {
        c2 = Identity (c)
        s2 = Scan <num_scan_inputs = 1, body = inner (float[8] v, float[8] row) => (float[8] v2) {
            e = Exp (row)
            total = ReduceSum <keepdims = 0> (e)
            small = Less (total, limit)
            a = If (small) <
                then_branch = yes () => (float[8] p) { t = Tanh (e)
                    p = Softmax (t) },
                else_branch = no () => (float[8] q) { m = Exp (e)
                    q = Softmax (m) }
            >
            v2 = Add (v, a)
        }> (s, x)
    }>
}"""
# Extents of the body are the caller's.
SYMBOLIC = """net (float[n, 8] x) => (float[n, 8] y) <int64 trip = {3}, bool go = {1}> {
    y = Loop (trip, go, x) <body = step (int64 i, bool c, float[n, 8] s)
        => (bool c2, float[n, 8] s2) {
        c2 = Identity (c)
        e = Exp (s)
        s2 = Tanh (e)
    }>
}"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)
