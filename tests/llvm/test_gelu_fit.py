"""The polynomial behind float32 GELU: `llvm/math.py` holds the coefficients that are fitted here.

GELU is max(x, 0) - |x| Φ(-|x|), and Φ(-x) is taken as q(x)⁴ for 0 <= x <= LIMIT. What should be
small everywhere is the error of x q(x)⁴, so that of q is weighted by its derivative, 4 x q(x)³;
near zero, where relative errors matter, by a little more. q(LIMIT) is zero, or numbers far below
zero would not vanish. Remez' exchange algorithm finds the polynomial whose largest weighted error
is least: one whose error alternates between extremes of one size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from graft.llvm.math import GELU_FLOAT

LIMIT = 6.4
TERMS = 12
NEAR_ZERO = 0.3
ROUNDS = 30

Array = np.ndarray


def target(x: Array) -> Array:
    """The fourth root of Φ(-x)."""
    return np.array([(math.erfc(one * math.sqrt(0.5)) / 2) ** 0.25 for one in x])


def weight(x: Array) -> Array:
    return 4 * (x + NEAR_ZERO) * target(x) ** 3


def basis(x: Array) -> Array:
    """Polynomials with a zero at the limit, by column: Chebyshev's, to be well conditioned."""
    columns = [Chebyshev.basis(k, domain=[0, LIMIT])(x) for k in range(TERMS - 1)]
    return np.stack(columns, axis=1) * (LIMIT - x)[:, None]


def extremes(error: Array) -> Array:
    """Where the error is largest between two changes of its sign."""
    changes = np.flatnonzero(np.diff(np.sign(error))) + 1
    parts = np.split(np.arange(len(error)), changes)
    return np.array([part[np.argmax(np.abs(error[part]))] for part in parts])


def fit() -> tuple[tuple[float, ...], float]:
    """Coefficients from the constant term on, and the largest weighted error."""
    grid = LIMIT / 2 * (1 - np.cos(np.pi * np.arange(4000) / 4000))
    matrix, values, weights = basis(grid), target(grid), weight(grid)
    chosen = np.linspace(0, len(grid) - 1, TERMS).astype(int)
    for _ in range(ROUNDS):
        signs = (-1.0) ** np.arange(TERMS) / weights[chosen]
        equations = np.column_stack([matrix[chosen], signs])
        *factors, _level = np.linalg.solve(equations, values[chosen])
        error = (matrix @ np.array(factors) - values) * weights
        found = extremes(error)
        while len(found) > TERMS:  # one of the ends has one too many
            found = found[1:] if abs(error[found[0]]) < abs(error[found[-1]]) else found[:-1]
        if len(found) < TERMS or np.array_equal(found, chosen):
            break
        chosen = found
    inner = Chebyshev(factors, domain=[0, LIMIT]).convert(kind=Polynomial)
    return tuple((inner * Polynomial([LIMIT, -1])).coef), float(np.max(np.abs(error)))


def test_the_coefficients_are_those_in_use() -> None:
    coefficients, largest = fit()
    np.testing.assert_allclose(coefficients, GELU_FLOAT, rtol=1e-3)
    assert largest < 4e-9
