"""Graphs of a few nodes, of shapes that no tile divides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType

Case = tuple[str, Graph]


class Cases:
    """Graphs of a few nodes with constants of their own; `small` leaves large ones out."""

    def __init__(self, small: bool = False) -> None:
        self._small, self._random = small, np.random.default_rng(7)

    def _array(self, *shape: int) -> Array:
        return self._random.standard_normal(shape).astype(np.float32) / 4

    def of(self, name: str, shapes: Sequence[tuple[int, ...]], make: Callable[..., Value]) -> Case:
        builder = Builder("case")
        inputs = [
            builder.input(f"x{n}", TensorType(DType.FLOAT32, shape))
            for n, shape in enumerate(shapes)
        ]
        return name, builder.build(make(builder, *inputs))

    def convolution(
        self,
        shape: tuple[int, ...],
        outputs: int,
        kernel: tuple[int, int],
        groups: int = 1,
        **attrs: Any,
    ) -> Case:
        def make(b: Builder, x: Value) -> Value:
            weight = b.constant(self._array(outputs, shape[1] // groups, *kernel))
            made = b("nn.conv2d", x, weight, groups=groups, **attrs)
            return b("nn.relu", b("nn.bias_add", made, b.constant(self._array(outputs))))

        label = f"conv {shape} {outputs} {kernel} groups={groups} {attrs or ''}"
        return self.of(label, [shape], make)

    def dense(self, rows: int, depth: int, units: int) -> Case:
        def make(b: Builder, x: Value) -> Value:
            return b("nn.gelu", b("nn.dense", x, b.constant(self._array(units, depth))))

        return self.of(f"dense {rows}x{depth}x{units}", [(rows, depth)], make)

    def _large(self) -> Iterator[Case]:
        pad: dict[str, Any] = {"padding": (1, 1, 1, 1)}
        yield self.convolution((1, 64, 14, 14), 64, (3, 3), **pad)
        yield self.convolution((1, 3, 131, 133), 64, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2))
        yield self.convolution((1, 512, 7, 7), 512, (3, 3), **pad)
        yield self.convolution((1, 2048, 7, 7), 512, (1, 1))
        yield self.convolution((1, 96, 57, 57), 96, (3, 3), 96, **pad)
        yield self.dense(1, 2048, 1000)
        yield self.dense(197, 768, 2304)
        pool: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        for kind in ("max", "avg"):
            yield self.of(
                f"{kind} pool",
                [(1, 64, 57, 55)],
                lambda b, x, k=kind: b(f"nn.{k}_pool2d", b("nn.relu", x), **pool),
            )
        yield self.of("attention", [(1, 12, 197, 64)] * 3, lambda b, *x: b("nn.attention", *x))

    def all(self) -> Iterator[Case]:
        pad: dict[str, Any] = {"padding": (1, 1, 1, 1)}
        if not self._small:
            yield from self._large()
        yield self.convolution((1, 3, 13, 11), 40, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2))
        yield self.convolution((2, 24, 9, 11), 20, (1, 1))
        yield self.convolution((1, 34, 5, 7), 36, (3, 3), padding=(0, 1, 2, 1))
        yield self.convolution((1, 16, 5, 9), 24, (1, 7), padding=(0, 3, 0, 3))
        yield self.convolution((1, 16, 10, 9), 33, (3, 3), dilation=(2, 2), **pad)
        yield self.convolution((1, 32, 5, 6), 32, (3, 3), 2, **pad)
        yield self.convolution((1, 40, 9, 9), 40, (3, 3), 40, strides=(2, 2), **pad)
        yield self.convolution((1, 12, 5, 5), 24, (3, 3), 3, **pad)
        yield self.dense(33, 77, 19)
        yield self.dense(5, 1, 3)
        yield from self._products()
        yield from self._others()

    def _products(self) -> Iterator[Case]:
        yield self.of(
            "matmul", [(3, 5, 40), (3, 40, 17)], lambda b, x, y: b("nn.batch_matmul", x, y)
        )
        yield self.of(
            "matmul^T",
            [(2, 3, 40, 5), (2, 3, 7, 40)],
            lambda b, x, y: b("nn.batch_matmul", x, y, transpose_a=True, transpose_b=True),
        )
        for size, keys in ((8, 5), (16, 9), (16, 70)):
            shapes = [(1, 2, 3, size), *[(1, 2, keys, size)] * 2]
            yield self.of(f"attention {size}x{keys}", shapes, lambda b, *x: b("nn.attention", *x))
        yield self.of("heads", [(1, 21, 96)], self._heads)
        yield self.of("softmax", [(3, 2, 100)], lambda b, x: b("nn.softmax", x, axis=-1))
        yield self.of("softmax rows", [(2, 65, 3)], lambda b, x: b("nn.softmax", x, axis=1))
        yield self.of(
            "layer norm",
            [(2, 3, 96)],
            lambda b, x: b(
                "nn.layer_norm",
                x,
                b.constant(self._array(96)),
                b.constant(self._array(96)),
                axis=-1,
            ),
        )

    def _heads(self, b: Builder, x: Value) -> Value:
        """Attention as vision transformers have it, with heads side by side before and after."""
        made = b("nn.dense", x, b.constant(self._array(96, 96)))
        parts = b("transpose", b("reshape", made, shape=(1, 21, 3, 2, 16)), axes=(2, 0, 3, 1, 4))
        heads = [b("squeeze", one, axes=(0,)) for one in b.call("split", parts, sections=3, axis=0)]
        result = b("transpose", b("nn.attention", *heads), axes=(0, 2, 1, 3))
        weight = b.constant(self._array(96, 32))
        return b("add", b("nn.dense", b("reshape", result, shape=(1, 21, 32)), weight), x)

    def _branches(self, b: Builder, x: Value) -> Value:
        """Convolutions side by side, joined, and one behind them."""
        parts = [
            b("nn.relu", b("nn.conv2d", x, b.constant(self._array(size, 16, 1, 1))))
            for size in (24, 8, 20)
        ]
        return b(
            "nn.conv2d", b("concatenate", *parts, axis=1), b.constant(self._array(8, 52, 3, 3))
        )

    def _others(self) -> Iterator[Case]:
        yield self.of("mean", [(2, 8, 7, 7)], lambda b, x: b("mean", x, axes=(2, 3)))
        yield self.of("sum", [(2, 299)], lambda b, x: b("sum", x, axes=(1,)))
        pool: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        for kind in ("max", "avg"):
            yield self.of(
                f"{kind} pool, small",
                [(1, 8, 9, 7)],
                lambda b, x, k=kind: b(f"nn.{k}_pool2d", b("nn.relu", x), **pool),
            )
        yield self.of(
            "transpose", [(2, 5, 7, 9)], lambda b, x: b("transpose", x, axes=(3, 1, 0, 2))
        )
        yield self.of(
            "residual",
            [(1, 32, 4, 4)],
            lambda b, x: b("add", b("nn.conv2d", x, b.constant(self._array(32, 32, 1, 1))), x),
        )
        yield self.of("branches", [(1, 16, 5, 5)], self._branches)
        yield self.of(
            "concatenate",
            [(1, 30, 5, 5), (1, 34, 5, 5)],
            lambda b, x, y: b(
                "nn.conv2d",
                b("concatenate", x, y, axis=1),
                b.constant(self._array(16, 64, 3, 3)),
            ),
        )


def relative_error(result: Array, expected: Array) -> float:
    """The largest difference, of the largest value; infinite where anything is not finite."""
    if result.shape != expected.shape or not np.isfinite(result).all():
        return float("inf")
    scale = float(np.abs(expected).max()) if expected.size else 1.0
    return float(np.abs(result - expected).max()) / max(scale, 1e-30) if result.size else 0.0
