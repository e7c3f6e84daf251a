"""Programs as text and as JSON: what a compiled model consists of, and that it comes back."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from tests.conftest import Golden

from graft.backends.host.lowering.builder import build_program
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.base.dtypes import Array
from graft.byoc.executable import Accuracy
from graft.frontends.onnx.importer import import_model
from graft.passes.pipeline import optimize
from graft.program.encode import decode_program, encode_program
from graft.program.instructions import Alias, Loop, Segment
from graft.program.print import to_text
from graft.program.program import Program
from graft.program.variants import with_variants
from graft.program.verify import verify_program
from graft.target.target import named_target

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
MODELS = {
    "static": """net (float[2, 3] x, float[3] w) => (float[2, 3] y) {
        a = Mul (x, w)
        b = Softmax (a)
        y = Exp (b)
    }""",
    "symbolic": """net (float[n, 3] x, float[3] w) => (float[n, 3] y) {
        a = Mul (x, w)
        b = Softmax (a)
        y = Exp (b)
    }""",
    "sizes": """net (float[n] x) => (float[m] y) {
        zero = Constant <value = float[1] {0.0}> ()
        test = Greater (x, zero)
        kept = Compress <axis = 0> (x, test)
        y = Sqrt (kept)
    }""",
    "branches": """net (bool c, float[n, 4] x) => (float[n, 4] y) {
        y = If (c) <
            then_branch = yes () => (float[n, 4] a) { a = Exp (x) },
            else_branch = no () => (float[n, 4] b) { b = Sin (x) }
        >
    }""",
    "loop": """net (int64 most, float[n] x, float[n] step) => (float[n] y, float[k, n] all) {
        always = Constant <value = bool {1}> ()
        y, all = Loop (most, always, x) <body = one (int64 i, bool c, float[n] v)
            => (bool d, float[n] w, float[n] seen) {
            d = Identity (c)
            w = Add (v, step)
            seen = Tanh (w)
        }>
    }""",
    "lists": """net (float[n] x, int64[] place) => (float[1] y) {
        parts = SplitToSequence (x)
        y = SequenceAt (parts, place)
    }""",
}


def compiled(text: str) -> Program:
    """For a machine whose kernels are the same everywhere."""
    graph = optimize(import_model(onnx.parser.parse_model(HEAD + text)))
    compiler = SegmentCompiler(named_target("icelake-server"), Accuracy.DEFAULT, {})
    return build_program(graph, compiler).program


@pytest.mark.parametrize("name", MODELS)
def test_text(name: str, golden: Golden) -> None:
    # Kernels are named by what they contain.
    golden(name, re.sub(r"\bk[0-9a-f]{20}\b", "kernel", to_text(compiled(MODELS[name]))))


def round_trip(program: Program) -> Program:
    constants: list[Array] = []

    def store(array: Array) -> int:
        constants.append(array)
        return len(constants) - 1

    encoded = json.loads(json.dumps(encode_program(program, store)))
    return decode_program(encoded, constants, program.objects)


@pytest.mark.parametrize("name", MODELS)
def test_json_comes_back(name: str) -> None:
    program = compiled(MODELS[name])
    verify_program(program)
    again = round_trip(program)
    same = [replace(one, constants=()).__dict__ for one in (program, again)]
    assert same[0] == same[1]
    for (number, array), (other, copy) in zip(program.constants, again.constants, strict=True):
        assert number == other
        np.testing.assert_array_equal(array, copy)
    assert to_text(again) == to_text(program)


def test_bodies_read_values_around_them() -> None:
    program = compiled(MODELS["loop"])
    (loop,) = (one for one in program.instructions if isinstance(one, Loop))
    (segment,) = loop.body.instructions
    assert isinstance(segment, Segment)
    step = program.body.inputs[2]
    assert step in segment.inputs
    assert step not in loop.body.inputs
    assert not any(isinstance(one, Alias) for one in program.instructions)


def test_variants_are_blocks_of_one_program(golden: Golden) -> None:
    general = compiled(MODELS["symbolic"])
    program = with_variants(general, ("n",), {(2,): compiled(MODELS["static"])})
    verify_program(program)
    assert to_text(round_trip(program)) == to_text(program)
    golden("variants", re.sub(r"\bk[0-9a-f]{20}\b", "kernel", to_text(program)))
