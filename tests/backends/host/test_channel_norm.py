"""Normalisation over the channels of blocked images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check

from graft.backends.host.kernels.images.channel_norm import channel_norm
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.loop.ir import Prefetch
from graft.loop.traverse import walk_stmt
from graft.target.target import host_target, named_target


def norm(
    shape: tuple[int, ...], block: int, parameters: int = 2, dtype: str = "float32", **attrs: object
) -> Case:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, *shape))
        lists = [builder.input(f"p{n}", tensor(dtype, shape[1])) for n in range(parameters)]
        return builder("nn.channel_norm", data, *lists, **attrs)

    return case(write, {"data": (block, (1, 0, 2, 1)), "result": (block, (0, 1, 1, 2))})


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((1, 96, 14, 14), 16),
        ((3, 24, 8, 1), 8),
        ((2, 16, 1, 5), 16),
        ((1, 40, 3, 41), 8),
    ],
)
def test_norm(shape: tuple[int, ...], block: int, threads: int) -> None:
    check(norm(shape, block), channel_norm, threads)


@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_without_mean_and_parameters(parameters: int) -> None:
    made = norm((2, 32, 5, 9), 16, parameters, centered=False, epsilon=1e-2)
    check(made, channel_norm, 2)
    check(norm((2, 32, 5, 9), 16, parameters), channel_norm)


def test_few_registers_and_double_precision() -> None:
    check(norm((2, 32, 9, 30), 16), channel_norm, target=named_target("x86-64-v3"))
    check(norm((2, 16, 5, 6), 8, dtype="float64"), channel_norm)


@pytest.mark.parametrize(("machine", "asks"), [("icelake-server", True), ("znver5", False)])
def test_tiles_ask_for_the_next_and_for_their_results(machine: str, asks: bool) -> None:
    """Where bursts from beyond the second cache are waited for; also in a last block of few."""
    target = named_target(machine)
    for shape, block in (((2, 40, 5, 19), 16), ((1, 24, 3, 9), 8)):
        made = norm(shape, block)
        body = walk_stmt(made.kernel(channel_norm, target).function.body)
        asked = {one.buffer.name for one in body if isinstance(one, Prefetch)}
        assert asked == ({"data", "result"} if asks else set())
    here = host_target()
    machine_here = replace(here.machine, fills_beside_loads=not asks)
    check(norm((1, 24, 3, 9), 8), channel_norm, 2, target=replace(here, machine=machine_here))


def test_work_after() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 2, 16, 5, 9))
        beside = builder.input("beside", tensor("float32", 2, 16, 5, 9))
        scale = builder.constant(np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1, 1))
        normal = builder("multiply", builder("nn.channel_norm", data), scale)
        return builder("nn.gelu", builder("add", normal, beside))

    layout = {"data": (8, (1, 1, 1, 1)), "beside": 8, "result": 8}
    check(case(write, layout), channel_norm, 2)


def test_refusals() -> None:
    assert "no blocked image" in norm((1, 8, 4, 4), 0).refusal(channel_norm)

    def other(builder: Builder) -> Value:
        return builder("nn.relu", builder.input("data", tensor("float32", 1, 8, 4, 4)))

    refusal = case(other, {"data": 8, "result": 8}).refusal(channel_norm)
    assert refusal == "there is no nn.channel_norm"
