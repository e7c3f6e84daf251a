"""Images joined along their channels."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check

from graft.backends.host.kernels.images.concat import image_concat
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor


def joined(
    parts: list[tuple[int, int]],
    block: int,
    batch: int = 1,
    dtype: str = "float32",
    epilogue: bool = False,
) -> Case:
    """Images of (channels, block) each."""

    def write(builder: Builder) -> Value:
        images = [
            builder.input(f"part{number}", tensor(dtype, batch, channels, 5, 7))
            for number, (channels, _) in enumerate(parts)
        ]
        result = builder("concatenate", *images, axis=1)
        if not epilogue:
            return result
        channels = sum(channels for channels, _ in parts)
        bias = builder.constant(np.linspace(-1, 1, channels, dtype=dtype))
        biased = builder("nn.bias_add", result, bias)
        return builder("nn.relu", builder("add", biased, builder.input("other", result.type)))

    sources = {
        f"part{number}": (size, (number, 0, 1, 0)) if size else 0
        for number, (_, size) in enumerate(parts)
    }
    return case(write, {**sources, "other": block, "result": (block, (1, 0, 2, 1))})


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("parts", "block"),
    [
        ([(64, 16), (64, 16), (96, 16), (32, 16)], 16),
        ([(16, 16)], 16),
        ([(24, 8), (40, 8)], 16),
        ([(64, 16), (24, 8)], 8),
        ([(12, 4), (4, 4), (20, 4), (12, 12)], 16),
        ([(3, 3), (6, 3), (7, 7)], 16),
        ([(3, 3), (5, 1)], 4),
        ([(6, 0), (26, 2)], 16),
        ([(48, 48), (16, 16)], 32),
    ],
)
def test_any_blocks(parts: list[tuple[int, int]], block: int, threads: int) -> None:
    check(joined(parts, block), image_concat, threads)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_epilogue(dtype: str) -> None:
    check(joined([(24, 8), (40, 8)], 16, batch=3, dtype=dtype, epilogue=True), image_concat, 2)


def test_one_image_twice_and_one_computed() -> None:
    def write(builder: Builder) -> Value:
        one = builder.input("one", tensor("float32", 2, 24, 5, 7))
        scale = builder.input("scale", tensor("float32", 24, 1, 1))
        computed = builder("multiply", builder("tanh", one), scale)
        return builder("concatenate", one, computed, one, axis=-3)

    check(case(write, {"one": (8, (1, 1, 1, 1)), "result": 8}), image_concat)


def test_refusals() -> None:
    def along_rows(builder: Builder) -> Value:
        one = builder.input("one", tensor("float32", 2, 16, 5, 7))
        return builder("concatenate", one, one, axis=2)

    made = case(along_rows, {"one": 16, "result": 16})
    assert made.refusal(image_concat) == "the images are not joined along their channels"

    def computed(builder: Builder) -> Value:
        one = builder.input("one", tensor("float32", 2, 16, 5, 7))
        return builder("concatenate", builder("exp", one), one, axis=1)

    made = case(computed, {"one": 16, "result": 8})
    assert "blocks do not fit" in made.refusal(image_concat)
    assert "no blocked image" in case(computed, {"one": 16}).refusal(image_concat)
