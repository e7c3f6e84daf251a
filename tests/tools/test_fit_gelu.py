"""The tool finds the polynomial that the compiler holds."""

from __future__ import annotations

import numpy as np

import fit_gelu
from graft.llvm.math import GELU_FLOAT


def test_the_coefficients_are_those_in_use() -> None:
    coefficients, largest = fit_gelu.fit()
    np.testing.assert_allclose(coefficients, GELU_FLOAT, rtol=1e-3)
    assert largest < 4e-9
