"""Joining computed pieces along vectors, where some of the pieces have no elements at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.backends.host.test_flow import agree, both, numbers

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
