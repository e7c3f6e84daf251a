"""What becomes part of a primitive, what does not, and that both give the right numbers."""

from __future__ import annotations

from tests.backends.onednn.regions import Case, check, operators

CONVOLUTION, PRODUCT = "convolution_forward", "matmul"


def test_bias_residual_and_activation_are_one_convolution() -> None:
    case = Case()
    x = case.input(1, 19, 9, 9)
    y = case("nn.conv2d", x, case.constant(21, 19, 3, 3), padding=(1, 1, 1, 1))
    y = case("nn.bias_add", y, case.constant(21))
    y = case("add", case("nn.relu", case.input(1, 21, 9, 9)), y)
    assert operators(check(case, case("nn.relu", y))) == ["eltwise_forward", CONVOLUTION]


def test_a_residual_that_is_also_the_source() -> None:
    case = Case()
    x = case("nn.relu", case.input(1, 16, 9, 9))
    y = case("nn.conv2d", x, case.constant(16, 16, 3, 3), padding=(1, 1, 1, 1))
    assert operators(check(case, case("add", x, y))) == ["eltwise_forward", CONVOLUTION]


def test_a_residual_that_is_read_again() -> None:
    case = Case()
    x = case.input(1, 8, 9, 9)
    y = case("nn.conv2d", x, case.constant(8, 8, 1, 1))
    z = case("nn.conv2d", x, case.constant(8, 8, 3, 3), padding=(1, 1, 1, 1))
    total = case("nn.relu", case("add", z, y))
    plan = check(case, case("multiply", total, y), total)
    assert operators(plan) == [CONVOLUTION, CONVOLUTION, "binary"]


def test_an_activation_before_the_residual() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(2, 7, 8, 8), case.constant(9, 7, 1, 1))
    y = case("nn.leaky_relu", case("nn.bias_add", y, case.constant(9)), alpha=0.1)
    y = case("clip", case("add", y, case.input(2, 9, 8, 8)), a_min=-0.5, a_max=1.5)
    assert operators(check(case, y)) == [CONVOLUTION]


def test_factors_per_channel_and_differences() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(1, 5, 6, 7), case.constant(8, 5, 3, 3))
    y = case("multiply", y, case.constant(8, 1, 1))
    y = case("subtract", y, case.constant(1, 8, 1, 1))
    assert operators(check(case, case("tanh", y))) == [CONVOLUTION]


def test_what_is_subtracted_from_stays_apart() -> None:
    case = Case()
    y = case("nn.dense", case.input(3, 5), case.constant(7, 5))
    assert operators(check(case, case("subtract", case.input(3, 7), y))) == [PRODUCT, "binary"]


def test_dense_with_bias_gelu_and_residual() -> None:
    case = Case()
    y = case("nn.dense", case.input(2, 9, 20), case.constant(37, 20))
    y = case("nn.gelu", case("nn.bias_add", y, case.constant(37), axis=2))
    assert operators(check(case, case("add", case.input(2, 9, 37), y))) == [PRODUCT]


def test_product_with_a_mask_and_softmax() -> None:
    case = Case()
    y = case("nn.batch_matmul", case.input(2, 3, 5, 7), case.input(2, 3, 9, 7), transpose_b=True)
    y = case("add", case("multiply", y, case.constant()), case.input(2, 1, 1, 9))
    plan = check(case, case("nn.softmax", y))
    assert operators(plan) == [PRODUCT, "softmax_forward"]


def test_a_bias_along_another_axis() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(1, 5, 6, 7), case.constant(8, 5, 1, 1))
    z = case("nn.dense", case.input(3, 4, 5), case.constant(6, 5))
    y = case("nn.bias_add", y, case.constant(7), axis=-1)
    z = case("nn.bias_add", z, case.constant(4), axis=1)
    assert operators(check(case, y, z)) == [CONVOLUTION, PRODUCT]


def test_two_biases() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(1, 5, 6, 7), case.constant(8, 5, 1, 1))
    y = case("nn.bias_add", case("nn.bias_add", y, case.constant(8)), case.constant(8))
    assert operators(check(case, y)) == [CONVOLUTION]


def test_a_result_that_others_read_is_not_fused() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(1, 5, 6, 7), case.constant(8, 5, 1, 1))
    assert operators(check(case, case("nn.relu", y), y)) == [CONVOLUTION, "eltwise_forward"]


def test_broadcasting_a_product_is_not_fused() -> None:
    case = Case()
    y = case("nn.dense", case.input(1, 5), case.constant(7, 5))
    assert operators(check(case, case("add", y, case.input(3, 7)))) == [PRODUCT, "binary"]


def test_blocks_of_channels_through_pooling_concatenation_and_mean() -> None:
    case = Case()
    x = case("nn.conv2d", case.input(1, 3, 21, 19), case.constant(17, 3, 3, 3))
    a = case("nn.max_pool2d", x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    b = case("nn.conv2d", x, case.constant(24, 17, 1, 1))
    c = case("nn.avg_pool2d", x, pool_size=(3, 3), padding=(1, 1, 1, 1), count_include_pad=True)
    y = case("concatenate", a, case("nn.relu", b), c, axis=1)
    y = case("nn.conv2d", y, case.constant(16, 58, 3, 3))
    y = case("reshape", case("mean", y, axes=(2, 3), keepdims=True), shape=(1, 16))
    check(case, case("nn.dense", y, case.constant(10, 16)))


def test_pieces_of_a_convolution() -> None:
    case = Case()
    y = case("nn.conv2d", case.input(1, 8, 6, 5), case.constant(24, 8, 1, 1))
    y = case("transpose", case("reshape", y, shape=(1, 24, 30)), axes=(0, 2, 1))
    first, second, third = case.builder.call("split", y, axis=2, sizes=(7, 9, 8))
    first = case("nn.dense", first, case.constant(9, 7))
    check(
        case,
        case("add", first, second),
        case("nn.layer_norm", third, case.constant(8), case.constant(8)),
    )


def test_outputs_that_are_inputs_constants_or_each_other() -> None:
    case = Case()
    x = case.input(3, 5)
    y = case("nn.relu", x)
    z = case("reshape", y, shape=(5, 3))
    check(case, y, z, case("transpose", x), case("reshape", y, shape=(15,)))


def test_a_bias_behind_a_sum_stays_apart() -> None:
    case = Case()
    y = case("add", case.input(2, 2, 1), case.input(2, 2, 1))
    assert operators(check(case, case("nn.bias_add", y, case.constant(2)))) == ["binary", "binary"]
    case = Case()
    y = case("add", case.input(2, 2, 1), case.input(1))
    assert operators(check(case, case("add", y, case.input(2, 2, 1)))) == ["binary"]


def test_one_channel_seen_as_a_list() -> None:
    case = Case()
    y = case("nn.conv3d", case.input(2, 1, 4, 1, 1), case.constant(1, 1, 2, 1, 1))
    check(case, case("reshape", y, shape=(6,)))
