"""The generic template: tensor expressions, scheduled by default, as machine code."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.row_kernels import AVX2, Case, check, made, refusal, results
from tests.ops.expression.cases import CASES, arrays, graph
from tests.ops.expression.cases import Case as OperatorCase
from tests.ops.expression.test_expressions import assert_close

import graft
from graft.backends.host.group import group_of
from graft.backends.host.kernel import Kernel
from graft.backends.host.kernels.expression.schedule import default_variants
from graft.backends.host.kernels.expression.template import expression
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.backends.host.storage import Storage, row_major, static_shape
from graft.base.dtypes import DType
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.loop.build import call
from graft.loop.ir import Block
from graft.loop.print import to_text
from graft.loop.schedule import parse_schedule
from graft.loop.tensor import compute, placeholder, reduce_axis, sum_
from graft.ops import get_op
from graft.ops.indexed import IndexRanges
from graft.rewrite.rule import Refusal
from graft.target.target import Target, host_target

HOST = host_target()
# A case in so many runs on the plainer machine, the others on this one.
TARGETS = [HOST, HOST, AVX2 if set(AVX2.features) <= set(HOST.features) else HOST]
# Formulas of one element are many and alike: every fourth of them has machine code made.
CHOSEN = [one for n, one in enumerate(CASES) if get_op(one.op).scalar is None or n % 4 == 0]
# A short run takes two cases of each operator, its first and its last.
ENDS = {id(one) for one in {one.op: one for one in CHOSEN}.values()}
ENDS |= {id(one) for one in {one.op: one for one in reversed(CHOSEN)}.values()}


def target_of(one: OperatorCase) -> Target:
    return TARGETS[CASES.index(one) % len(TARGETS)]


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=() if id(one) in ENDS else pytest.mark.full) for one in CHOSEN],
    ids=str,
)
def test_machine_code_agrees_with_the_evaluator(one: OperatorCase) -> None:
    numbers, whole = arrays(one), graph(one)
    wanted = evaluate(whole, numbers)
    kernel = made(expression, whole, target_of(one))
    assert isinstance(kernel, Kernel), kernel
    if all(np.size(result) == 0 for result in wanted):
        assert kernel.function.body == Block(())
        return
    for found in results(kernel, whole, numbers, target_of(one)):
        for mine, theirs in zip(found, wanted, strict=True):
            assert_close(mine, np.asarray(theirs))


def test_an_epilogue_joins_a_convolution() -> None:
    case = Case()
    data, weight = case.input(2, 5, 9, 11), case.input(7, 5, 3, 3)
    conv = case("nn.conv2d", data, weight, padding=(1, 1, 1, 1), strides=(2, 1))
    biased = case("nn.bias_add", conv, case.constant(7))
    check(expression, case, case("nn.relu", case("add", biased, case.input(2, 7, 5, 11))))


@pytest.mark.parametrize(
    "text",
    [
        """(float[5,5,4,1] x, float[5,2,3,1] w) => (float[a,b,c,d] y) {
            v = ConvTranspose <pads = [1, 0, 0, 0], kernel_shape = [3, 1]> (x, w)
            y = Mish (v)
        }""",
        """(float16[3,1,3,4,4] x) => (float16[a,b,c,d,e] y) {
            v = AveragePool <kernel_shape = [3, 3, 1], pads = [2, 2, 0, 2, 1, 0]> (x)
            y = Elu (v)
        }""",
    ],
)
def test_a_stage_that_is_kept_may_read_the_reduction(text: str) -> None:
    """Tiles of registers are for the result alone: another reader needs its own loops over them."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> kept {text}')
    draw = np.random.default_rng(0)
    reference = graft.compile(model, target="reference")
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    feeds = {
        one.name: draw.standard_normal(one.shape).astype(dtypes[one.type])
        for one in reference.get_inputs()
    }
    (expected,) = reference.run(None, feeds)
    (result,) = graft.compile(model, strict=True).run(None, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-3)


def test_pointwise_work_joins_a_reduction() -> None:
    case = Case()
    data = case("exp", case("multiply", case.input(3, 70), case.constant(70)))
    check(expression, case, case("sqrt", case("sum", data, axes=(1,))))


def test_movement_and_pointwise_work_in_a_chain() -> None:
    case = Case()
    turned = case("transpose", case.input(3, 40, 5, dtype="float16"), axes=(1, 2, 0))
    flat = case("reshape", case("abs", turned), shape=(20, 30))
    check(expression, case, case("strided_slice", flat, begin=(1,), end=(30,), axes=(1,)))


def test_a_value_that_is_used_again_and_again_is_computed_once() -> None:
    case = Case()
    value = case.input(5, 37)
    for _ in range(4):
        value = case("add", value, case("multiply", value, value))
    check(expression, case, case("tanh", value), tolerance=1e-4)


def test_bits_are_read_as_another_dtype() -> None:
    builder = Builder()
    bits = builder("bitcast", builder.input("x", tensor("float32", 3, 7)), dtype=DType.INT32)
    low = builder("bitwise_and", bits, builder.constant(np.int32(0xFFFFFF)))
    module = graft.compile(builder.build(low), strict=True)
    numbers = np.linspace(-2, 2, 21, dtype=np.float32).reshape(3, 7)
    (found,) = module.run(None, {"x": numbers})
    np.testing.assert_array_equal(found, numbers.view(np.int32) & 0xFFFFFF)


def test_bits_of_what_is_not_in_memory_are_refused() -> None:
    case = Case()
    bits = case("bitcast", case("exp", case.input(3)), dtype=DType.INT32)
    assert refusal(expression, case, bits) == "the bits are of something that is not in memory"


def test_what_has_no_expression_is_refused() -> None:
    case = Case()
    assert refusal(expression, case, case("det", case.input(3, 3))) == (
        "det has no tensor expression"
    )


def test_dtypes_that_machine_code_does_not_hold_are_refused() -> None:
    case = Case()
    wide = case("cast", case.input(3), dtype=DType.COMPLEX64)
    assert refusal(expression, case, wide) == "machine code does not hold complex64"


def test_blocked_images_are_refused() -> None:
    builder = Builder()
    image = builder.input("x", tensor("float32", 1, 16, 4, 4))
    (node,) = builder.build(builder("exp", image)).nodes
    blocked = Storage(DType.FLOAT32, static_shape(image), 16)
    said = expression(group_of(node, {}), {image: blocked, node.output: row_major(image)}, HOST)
    assert isinstance(said, Refusal)
    assert said.reason == "%x is not row-major"


def test_a_result_without_elements_takes_no_work() -> None:
    builder = Builder()
    data = builder.input("x", tensor("float16", 3, 0))
    module = graft.compile(builder.build(builder("nn.softmax", data)), strict=True)
    (found,) = module.run(None, {"x": np.zeros((3, 0), np.float16)})
    assert found.shape == (3, 0)


def test_the_schedule_is_data_that_can_be_written_down() -> None:
    data, weight = placeholder("x", [64, 96]), placeholder("w", [96, 80])
    depth = reduce_axis("k", 96)
    product = compute("p", [64, 80], lambda i, j: sum_(data[i, depth] * weight[depth, j], [depth]))
    result = compute("out", [64, 80], lambda i, j: call("tanh", product[i, j]))
    schedule = default_variants([result], AVX2)[0].schedule
    assert parse_schedule(str(schedule)) == schedule
    assert str(schedule) == (
        "out: split(i, i_o, i_i, 6, shift_inwards) split(j, j_o, j_i, 16, guard)"
        " split(j_i, j_i_o, j_i_i, 8, guard) reorder(j_o, i_o, i_i, j_i_o, j_i_i)"
        " fuse(j_o, i_o, shared) parallel(shared) unroll(i_i) vectorize(j_i_i) unroll(j_i_o)\n"
        "p: compute_at(out, shared) store_in(register) split(j, j_o, j_i, 8, guard)"
        " reorder(k, i, j_o, j_i) unroll(i) vectorize(j_i) unroll(j_o)\n"
    )


def test_windows_that_are_put_back_and_shifted_are_not_stored_in_between() -> None:
    """A stage for the windows would be computed whole for each element of the result."""

    def shifted(value: Value, axis: int) -> Value:
        size, by = (8, 12)[axis - 1], 3
        parts = (
            g("strided_slice", value, begin=(begin,), end=(end,), axes=(axis,))
            for begin, end in ((size - by, size), (0, size - by))
        )
        return g("concatenate", *parts, axis=axis)

    g = Builder()
    windows = g.input("x", tensor("float32", 6, 16, 20))
    parted = g("reshape", windows, shape=(1, 2, 3, 4, 4, 20))
    image = g("reshape", g("transpose", parted, axes=(0, 1, 3, 2, 4, 5)), shape=(1, 8, 12, 20))
    moved = shifted(shifted(image, 1), 2)
    graph = g.build(g("add", moved, g.input("y", tensor("float32", 1, 8, 12, 20))))
    compiler = SegmentCompiler(host_target(), Accuracy.DEFAULT, {})
    assembly = compiler.assembled(graph, IndexRanges(graph), {})[1]
    (function,) = assembly.functions.values()
    assert "allocate" not in to_text(function)
    inputs = [
        np.random.default_rng(7).standard_normal(s, dtype=np.float32)
        for s in ((6, 16, 20), (1, 8, 12, 20))
    ]
    (found,) = graft.compile(graph, strict=True).run(None, dict(zip("xy", inputs, strict=True)))
    np.testing.assert_array_equal(found, evaluate(graph, inputs)[0])
