"""Models whose sizes or steps depend on data: results as the evaluator's, at sizes that change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.flows import check_flow

import graft
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.module import Module
from graft.program.instructions import Evaluate, Segment
from graft.runtime import executor
from graft.runtime.frames import Frame
from graft.runtime.memory import address_of

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def both(text: str) -> tuple[Module, Module]:
    """The model on the host, and on the evaluator."""
    model = onnx.parser.parse_model(HEAD + text)
    return graft.compile(model), graft.compile(model, target="reference")


def agree(pair: tuple[Module, Module], **feeds: Array) -> list[Array]:
    """Run both and compare; gives the results."""
    host, reference = pair
    found, wanted = host.run(None, feeds), reference.run(None, feeds)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)
    return list(found)


def steps(module: Module) -> list[object]:
    return list(module.program.body.instructions)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


PERCEPTRON = """
    net (float[n, 12] x, float[12, 40] w, float[40] b, float[40, 7] v) => (float[n, 7] y) {
        h = MatMul (x, w)
        s = Add (h, b)
        r = Relu (s)
        o = MatMul (r, v)
        y = Softmax <axis = -1> (o)
    }
"""


def test_one_program_for_every_size() -> None:
    pair = both(PERCEPTRON)
    (segment,) = steps(pair[0])
    assert isinstance(segment, Segment)
    assert pair[0].placement.reasons == {}
    weights = {"w": numbers(12, 40), "b": numbers(40), "v": numbers(40, 7)}
    for count in (1, 3, 8, 17, 64, 0, 3, 1000):
        (y,) = agree(pair, x=numbers(count, 12, seed=count), **weights)
        assert y.shape == (count, 7)


def test_one_frame_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Frame] = []

    def counted(*given: Any) -> Frame:
        made.append(Frame(*given))
        return made[-1]

    monkeypatch.setattr(executor, "Frame", counted)
    pair = both(PERCEPTRON)
    weights = {"w": numbers(12, 40), "b": numbers(40), "v": numbers(40, 7)}
    for rows in (*range(1, 20), 3, 200):
        agree(pair, x=numbers(rows, 12), **weights)
    assert len(made) == 1


def test_sizes_that_contradict_each_other_are_refused() -> None:
    host, _ = both("net (float[n] x, float[n] y) => (float[n] z) { z = Add (x, y) }")
    with pytest.raises(UserError, match="y"):
        host.run(None, {"x": numbers(3), "y": numbers(4)})
    assert host.run(None, {"x": numbers(2), "y": numbers(2)})[0].shape == (2,)


@pytest.mark.parametrize(
    ("node", "one", "other"),
    [
        ("[mix] z = MatMul (x, y)", (3, 4), (5, 6)),
        ("[mix] z = Concat <axis = 0> (x, y)", (3, 4), (3, 5)),
        ("[mix] z = Add (x, y)", (3, 4), (2, 4)),
    ],
)
def test_sizes_that_do_not_fit_never_reach_a_kernel(
    node: str, one: tuple[int, int], other: tuple[int, int]
) -> None:
    host, _ = both(f"net (float[a, b] x, float[c, d] y) => (float[e, f] z) {{ {node} }}")
    assert host.placement.reasons == {}
    with pytest.raises(UserError, match="mix"):
        host.run(None, {"x": numbers(*one), "y": numbers(*other)})
    host.run(None, {"x": numbers(4, 4), "y": numbers(4, 4)})


def test_broadcasting_that_only_the_sizes_decide() -> None:
    text = "net (float[n, m] x, float[k, m] y) => (float[a, m] z) { s = Add (x, y) z = Exp (s) }"
    pair = both(text)
    for rows, others in ((3, 3), (1, 5), (5, 1), (1, 1)):
        agree(pair, x=numbers(rows, 9), y=numbers(others, 9))


def test_sizes_from_data() -> None:
    text = """
        net (float[n] x) => (float[m] y, int64[1] count) {
            zero = Constant <value = float[1] {0.0}> ()
            test = Greater (x, zero)
            kept = Compress <axis = 0> (x, test)
            y = Sqrt (kept)
            count = Shape (y)
        }
    """
    pair = both(text)
    for count in (0, 1, 10, 77):
        agree(pair, x=numbers(count, seed=count))


CHOICE = """
    net (float[n, 4] x, bool c) => (float[n, 4] y) {
        d = Neg (x)
        y = If (c) <
            then_branch = yes () => (float[n, 4] t) { s = Sin (d) t = Mul (s, x) },
            else_branch = no () => (float[n, 4] e) { e = Cos (d) }
        >
    }
"""


@pytest.mark.parametrize("condition", [True, False])
def test_branches_run_natively(condition: bool) -> None:
    pair = both(CHOICE)
    assert pair[0].placement.reasons == {}
    for count in (1, 5, 0):
        agree(pair, x=numbers(count, 4), c=np.array(condition))


LOOP = """
    net (int64 turns, bool go, float[n] x) => (float[n] y, float[k, n] all) {
        y, all = Loop (turns, go, x) <
            body = one (int64 i, bool c, float[n] v) => (bool again, float[n] w, float[n] piece) {
                half = Constant <value = float {0.5}> ()
                w = Mul (v, half)
                piece = Exp (w)
                total = ReduceSum <keepdims = 0> (w)
                limit = Constant <value = float {0.01}> ()
                again = Greater (total, limit)
            }
        >
    }
"""


def test_loops_run_natively() -> None:
    pair = both(LOOP)
    assert pair[0].placement.reasons == {}
    for turns in (0, 1, 3, 50):
        for go in (True, False):
            x = np.abs(numbers(6)) + np.float32(0.1)
            agree(pair, turns=np.array(turns), go=np.array(go), x=x)


SCAN = """
    net (float[3] start, float[t, 3] steps) => (float[3] last, float[3, t] sums) {
        last, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1],
                           scan_output_axes = [1], scan_output_directions = [1],
            body = one (float[3] state, float[3] slice) => (float[3] next, float[3] out) {
                next = Add (state, slice)
                out = Tanh (next)
            }
        > (start, steps)
    }
"""


def test_a_loop_without_turns_around_one_that_decides_a_size() -> None:
    text = """
        net (float[2] x, int64 n) => (float[2] y, float[turns, inner, 2] z) {
            y, z = Loop (n, "", x) <body = outer (int64 i, bool c, float[2] s)
                    => (bool more, float[2] after, float[inner, 2] kept) {
                k = Constant <value_int = 3> ()
                after, kept = Loop (k, "", s) <body = inner (int64 j, bool d, float[2] p)
                        => (bool still, float[2] turned, float[2] size) {
                    limit = Constant <value_int = 1> ()
                    still = Less (j, limit)
                    turned = Neg (p)
                    size = Abs (p)
                }>
                many = Constant <value_int = 100> ()
                more = Less (i, many)
            }>
        }
    """
    pair = both(text)
    for turns, shape in ((2, (2, 2, 2)), (0, (0, 0, 2))):
        _, z = agree(pair, x=numbers(2), n=np.array(turns))
        assert z.shape == shape


def test_scans_run_natively_in_both_directions() -> None:
    pair = both(SCAN)
    assert pair[0].placement.reasons == {}
    for count in (1, 4, 0):
        agree(pair, start=numbers(3), steps=numbers(count, 3))


def test_what_has_no_native_code_is_listed() -> None:
    text = """
        net (float[n] x, string[n] s) => (string[n] t, float[n] y) {
            y = Exp (x)
            t = StringConcat (s, s)
        }
    """
    host, _ = both(text)
    assert [type(step) for step in steps(host)].count(Evaluate) == 1
    (reason,) = host.placement.reasons.values()
    assert "strings" in reason
    words = np.array(["a", "b"], object)
    text_out, y = host.run(None, {"x": numbers(2), "s": words})
    assert list(text_out) == ["aa", "bb"]
    np.testing.assert_allclose(y, np.exp(numbers(2)), rtol=1e-6)


def test_what_has_no_native_code_stands_between_stretches_of_any_size() -> None:
    text = """
        net (float[n] x, float[2, 2] s) => (float[n] y, float[2, 2] t)
        <float ratio = {0}, bool training = {1}> {
            a = Exp (x)
            d = Dropout (s, ratio, training)
            t = Relu (d)
            y = Neg (a)
        }
    """
    pair = both(text)
    for count in (3, 0, 8):
        agree(pair, x=numbers(count), s=numbers(2, 2))
    (reason,) = pair[0].placement.reasons.values()
    assert "dropout" in reason or "expression" in reason, reason


def test_a_stretch_may_mention_sizes_that_none_of_its_inputs_has() -> None:
    text = """
        net (int32[n,7] x, float[3,4] z) => (float[n,7] y, float[3,4] w) {
            v = Cast <to = 1> (x)
            y = EyeLike (v)
            a = Sin (z)
            w = Exp (a)
        }
    """
    pair = both(text)
    for count in (5, 0, 9):
        agree(pair, x=np.zeros((count, 7), np.int32), z=numbers(3, 4))


def test_many_at_once_at_different_sizes() -> None:
    pair = both(PERCEPTRON)
    weights = {"w": numbers(12, 40), "b": numbers(40), "v": numbers(40, 7)}

    def run(count: int) -> None:
        agree(pair, x=numbers(count, 12, seed=count), **weights)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [count % 13 for count in range(40)]))


GROWING = """
    net (float[n] x) => (float[k] y) {
        always = Constant <value = bool {1}> ()
        [grow] y = Loop ("", always, x) <
            body = one (int64 i, bool c, float[m] v) => (bool same, float[p] w) {
                same = Identity (c)
                [twice] w = Concat <axis = 0> (v, v)
            }
        >
    }
"""

STACKING = """
    net (float[n] x) => (float[n] y, float[k, n] all) {
        always = Constant <value = bool {1}> ()
        [grow] y, all = Loop ("", always, x) <
            body = one (int64 i, bool c, float[n] v) => (bool same, float[n] w, float[n] piece) {
                same = Identity (c)
                w = Neg (v)
                piece = Exp (v)
            }
        >
    }
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [(GROWING, "more than this machine's memory"), (STACKING, "more than this machine's memory")],
)
def test_what_grows_without_bound_is_refused(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graft.base.capacity.MOST_BYTES", 1 << 20)
    for module in both(text):
        with pytest.raises(EvaluationError, match=message) as error:
            module.run(None, {"x": numbers(1000)})
        assert error.value.location is not None
        assert error.value.location.node.startswith("grow")


def test_constants_beside_a_loop_are_contiguous_and_aligned() -> None:
    """What a transposed constant folds to is an output; bodies capture constants as they are."""
    odd = np.zeros(17 * 4 + 4, np.uint8)[4:].view(np.float32)  # aligned to no more than an element
    build = Builder()
    x, count = build.input("x", tensor("float32", 17)), build.input("n", tensor("int64"))
    shift = build.constant(odd)
    turned = build.constant(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    inner = Builder()
    inner.input("i", tensor("int64"))
    proceed = inner.input("proceed", tensor("bool"))
    value, captured = (inner.input(name, tensor("float32", 17)) for name in ("value", "captured"))
    body = inner.build(proceed, inner("add", value, captured))
    (result,) = build.call("loop", count, None, x, shift, body=body, carried=1)
    graph = build.build(result, turned)
    literals = [literal.array for literal in graph.constants.values()]
    assert not all(array.flags.c_contiguous for array in literals)
    assert any(address_of(array) % 64 for array in literals)
    check_flow(graph, [numbers(17), np.array(3, np.int64)])
