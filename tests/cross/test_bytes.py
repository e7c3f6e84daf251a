"""Products of bytes by the instructions that Arm's processors have for them, emulated."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.host import test_integers, test_winograd_integers
from tests.cross import emulated, image
from tests.llvm import kernels, test_expressions
from tests.llvm.kernels import elementwise

from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.depthwise_bytes import depthwise_bytes
from graft.base.dtypes import DType
from graft.llvm import load
from graft.llvm.compile import assembly
from graft.loop.ir import Call
from graft.target.target import named_target

# With signed bytes times signed ones, and with unsigned ones times signed ones.
MACHINES = {"neoverse-n1": "sdot", "neoverse-v1": "usdot"}


@pytest.mark.parametrize("name", MACHINES)
def test_bytes_are_multiplied_by_one_instruction(name: str) -> None:
    function = elementwise(
        [DType.INT32] * 3, [lambda a, b, c: Call("dot4", (a, b, c), DType.INT32)], [DType.INT32], 4
    )
    text = assembly(function, named_target(name))
    assert f"\t{MACHINES[name]}\t" in text
    assert "\tmul\tv" not in text


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (kernels, load):
        monkeypatch.setattr(module, "load", emulated.load)
    monkeypatch.setattr(image, "PROCESSOR", "max")
    return named_target(request.param)


@pytest.mark.full
def test_dot_products(machine: Any) -> None:
    test_expressions.test_dot_products_of_four_bytes(4, machine)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 255), ("int8", -128)])
@pytest.mark.parametrize(("groups", "template"), [(1, conv2d), (16, depthwise_bytes)])
def test_convolutions(dtype: str, zero: int, groups: int, template: Any, machine: Any) -> None:
    attrs: dict[str, Any] = {"groups": groups, "padding": (1, 1, 1, 1)}
    weight = (16, 16 // groups, 3, 3)
    made = test_integers._conv_case((1, 16, 5, 7), weight, dtype, zero, "int8", **attrs)
    test_integers._agrees(made, template, 1, machine)


@pytest.mark.full
@pytest.mark.parametrize("lanes", [4, 7])
def test_pairs(lanes: int, machine: Any) -> None:
    test_expressions.test_dot_products_of_two_int16(lanes, machine)


@pytest.mark.full
@pytest.mark.parametrize("tile", [2, 4])
def test_winograd(tile: int, machine: Any) -> None:
    attrs = {"padding": (1, 1, 1, 1)}
    test_winograd_integers.test_equals_direct_sums(
        (1, 20, 9, 6), 24, (3, 3), "int8", -128, attrs, tile, machine
    )


@pytest.mark.full
def test_extremes(machine: Any) -> None:
    test_integers.test_products_that_would_saturate_16_bits(1, conv2d, machine)
