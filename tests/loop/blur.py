"""A small computation with everything in it that a schedule can get wrong.

Padding by a select, a reduction over a window, a pointwise end; integers, so that every order of
evaluation has to give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dtypes import Array, DType
from graft.loop.build import Operand, select, term, variable
from graft.loop.interpret import interpret
from graft.loop.ir import Function
from graft.loop.tensor import Tensor, compute, placeholder, reduce_axis, sum_


def blur(rows: int, columns: int, symbolic: bool) -> list[Tensor]:
    """x, w and out: a 3 x 2 window over x with a border of zeros, doubled, plus x."""
    n: Operand = variable("n") if symbolic else rows
    m: Operand = variable("m") if symbolic else columns
    x = placeholder("x", [n, m], DType.INT32)
    w = placeholder("w", [3, 2], DType.INT32)
    return _stages(x, w)


def _stages(x: Tensor, w: Tensor) -> list[Tensor]:
    n, m = (term(extent) for extent in x.shape)
    pad = compute(
        "pad",
        [n + 2, m + 1],
        lambda i, j: select((i >= 1) & (i < n + 1) & (j < m), x[i - 1, j], 0),
    )
    a, b = reduce_axis("a", 3), reduce_axis("b", 2)
    total = compute("total", [n, m], lambda i, j: sum_(pad[i + a, j + b] * w[a, b], [a, b]))
    out = compute("out", [n, m], lambda i, j: total[i, j] * 2 + x[i, j])
    return [x, w, out]


def expected(x: Array, w: Array) -> Array:
    """The same in NumPy."""
    padded = np.pad(x, ((1, 1), (0, 1)))
    rows, columns = x.shape
    parts = [padded[a : a + rows, b : b + columns] * w[a, b] for a in range(3) for b in range(2)]
    return np.asarray(sum(parts) * 2 + x)


def run(function: Function, rows: int, columns: int, threads: int = 1) -> tuple[Array, Array]:
    """What the function computes on fixed inputs, and what it should."""
    generator = np.random.default_rng(rows * 31 + columns)
    x = generator.integers(-9, 9, (rows, columns)).astype(np.int32)
    w = generator.integers(-9, 9, (3, 2)).astype(np.int32)
    out = np.full((rows, columns), -99, np.int32)
    arguments: dict[str, Array | int] = {"x": x, "w": w, "out": out}
    names = {parameter.name for parameter in function.parameters}
    scalars = {"n": rows, "m": columns}
    arguments |= {name: value for name, value in scalars.items() if name in names}
    interpret(function, arguments, threads)
    return out, expected(x, w)


SIZES: Sequence[int] = (0, 1, 2, 5, 7, 13)
