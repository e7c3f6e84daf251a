"""Tensors without elements: among pieces that are joined along vectors, and as results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.backends.host.test_flow import agree, both, numbers

from graft.backends.host.backend import HostBackend
from graft.byoc.probe import shape_at
from graft.ir.parser import from_text

SIZES = (0, 1, 2, 17, 40)


def test_any_of_three_pieces_may_be_empty() -> None:
    pair = both("""
        net (float[n, a] x, float[n, b] y, float[n, c] z) => (float[m, l] w) {
            p = Neg (x)
            q = Abs (y)
            r = Tanh (z)
            w = Concat <axis = 1> (p, q, r)
        }
    """)
    for rows in (0, 1, 3):
        for sizes in itertools.product(SIZES, repeat=3):
            given = (numbers(rows, size, seed=seed) for seed, size in enumerate(sizes))
            agree(pair, **dict(zip("xyz", given, strict=True)))


@pytest.mark.parametrize("turned", [False, True])
def test_nothing_behind_something_of_known_size(turned: bool) -> None:
    axes, view = ("s, n", "Transpose <perm = [1, 0]>") if turned else ("n, s", "Neg")
    pair = both(f"""
        net (float[n, 3] x, float[{axes}] t) => (float[a, b] y) {{
            moved = {view} (t)
            y = Concat <axis = 1> (x, moved)
        }}
    """)
    for rows, size in itertools.product((1, 4), SIZES):
        x, shape = numbers(rows, 3, seed=1), (size, rows) if turned else (rows, size)
        (found,) = agree(pair, x=x, t=numbers(*shape))
        np.testing.assert_array_equal(found[:, :3], x)


def test_an_innermost_axis_may_be_followed_by_ones() -> None:
    pair = both("""
        net (float[n, 1] x, float[s, 1] t) => (float[a, b] y) {
            p = Neg (x)
            q = Abs (t)
            y = Concat <axis = 0> (p, q)
        }
    """)
    for rows, size in itertools.product(SIZES, repeat=2):
        agree(pair, x=numbers(rows, 1), t=numbers(size, 1, seed=1))


def test_the_evaluator_reads_an_output_that_no_kernel_writes() -> None:
    graph = from_text("""
        graph @example(%x: float32[1, 1, 1, 7], %o: float32[1, 8, 0, 6], %w: float32[1, 1, 2, 2],
                       %p: float32[1, 4, 0, 5], %v: float32[1, 1, 1, 2]) {
          %y: float32[1, 1, 0, 6] = nn.deformable_conv2d(%x, %o, %w)
          %z: float32[1, 1, 0, 5] = nn.deformable_conv2d(%y, %p, %v)
          return %y, %z
        }
    """)
    inputs = [np.ones(shape_at(value, {}), np.float32) for value in graph.inputs]
    outputs = [np.empty((1, 1, 0, width), np.float32) for width in (6, 5)]
    HostBackend().runner(graph)(inputs, outputs)
