"""What oneDNN does not run, and the reasons."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.onednn.regions import Case, refusals

from graft.backends.onednn import runtime
from graft.backends.onednn.backend import OneDnn
from graft.base.errors import UserError
from graft.ir.graph import Value


def reasons(case: Case, *outputs: Value) -> str:
    return "\n".join(refusals(case.builder.build(*outputs)))


def test_other_dtypes() -> None:
    case = Case()
    found = reasons(case, case("nn.relu", case.input(3, 4, dtype="float64")))
    assert "%x1 is float64, not float32" in found


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((0, 3), "%x1 is float32[0, 3], which is empty"),
        ((2, 1, 2, 1, 2, 1, 2), "%x1 has 7 axes, not 0 to 6"),
    ],
)
def test_no_elements_or_too_many_axes(shape: tuple[int, ...], reason: str) -> None:
    case = Case()
    assert reason in reasons(case, case("exp", case.input(*shape)))


def test_bounds_in_the_wrong_order() -> None:
    case = Case()
    found = reasons(case, case("clip", case.input(3), a_min=2.0, a_max=1.0))
    assert "the lower bound of clip is above the upper one" in found


def test_operators_that_it_has_not() -> None:
    case = Case()
    assert "no pattern of onednn ends in sin" in reasons(case, case("sin", case.input(3)))


@pytest.mark.parametrize(
    ("shape", "attrs", "reason"),
    [
        ((1, 2, 8, 8), {"pool_size": (2, 2), "dilation": (2, 1)}, "the windows have gaps"),
        (
            (1, 2, 4, 4),
            {"pool_size": (2, 2), "padding": (2, 0, 0, 0)},
            "a window lies in the padding alone",
        ),
        (
            (1, 2, 8, 8),
            {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True, "count_include_pad": True},
            "a window reaches beyond what it counts",
        ),
    ],
)
def test_pooling(shape: Any, attrs: dict[str, Any], reason: str) -> None:
    case = Case()
    assert reason in reasons(case, case("nn.avg_pool2d", case.input(*shape), **attrs))


@pytest.mark.parametrize(("first", "second"), [((1, 4), (3, 4)), ((3, 1), (1, 4))])
def test_a_first_operand_that_is_broadcast(first: Any, second: Any) -> None:
    case = Case()
    found = reasons(case, case("subtract", case.input(*first), case.input(*second)))
    assert "the first operand of subtract is broadcast" in found


def test_layer_norm_over_more_axes_or_without_shift() -> None:
    case = Case()
    x, whole, row = case.input(2, 3, 4), case.constant(3, 4), case.constant(4)
    both = case("nn.layer_norm", x, whole, whole, axis=1), case("nn.layer_norm", x, row)
    assert reasons(case, *both).count("it is not over the last axis, scaled and shifted") == 2


def test_attention_with_extras() -> None:
    case = Case()
    query, key = case.input(1, 4, 5, 8), case.input(1, 2, 5, 8)
    shared = case("nn.attention", query, key, key)
    causal = case("nn.attention", query, query, query, causal=True)
    masked = case("nn.attention", query, query, query, case.input(1, 1, 5, 5))
    found = reasons(case, shared, causal, masked)
    assert found.count("the attention has a mask, a window, shared heads or the like") == 3


def test_means_over_other_axes_clips_by_operands_and_single_rows() -> None:
    case = Case()
    x = case.input(3, 4, 5)
    mean = case("mean", x, axes=(1,))
    clip = case("clip", x, case.input(), case.input())
    dense = case("nn.dense", case.input(5), case.constant(7, 5))
    found = reasons(case, mean, clip, dense)
    assert "the mean is not over all pixels" in found
    assert "the bounds of clip are operands" in found
    assert "the first operand of the product is one row" in found


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise UserError("oneDNN cannot run here")

    monkeypatch.setattr(runtime, "library", absent)
    assert OneDnn().version == "not installed"
    assert "pip install 'graft-compiler[onednn]'" in OneDnn().missing()


def test_with_the_library() -> None:
    assert OneDnn().version.startswith("3.")
    assert OneDnn().missing() == ""
