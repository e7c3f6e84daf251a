"""Index arithmetic of the loop IR as polynomials, and back."""

from __future__ import annotations

import gc
import weakref

import pytest

from graft.base.bounds import Intervals
from graft.base.dims import Dim, broadcast_dim, dim_max, dim_min, symbol
from graft.base.dtypes import DType
from graft.loop import index
from graft.loop.build import load, minimum, select, variable
from graft.loop.index import dim_of, expression, index_of, polynomial
from graft.loop.ir import INDEX, Broadcast, Buffer, Const, Ramp
from graft.loop.print import expression_text

n, m = symbol("n"), symbol("m")
BUFFER = Buffer("x", INDEX, (Const(8),))


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (7, "7"),
        (n, "n"),
        (2 * n * m - m + 3, "m * n * 2 + 3 - m"),
        ((n + 1) // 2 + n % m, "(n + 1) // 2 + n % m"),
        (dim_max(dim_min(n, m, 7), 2), "max(min(min(m, n), 7), 2)"),
        (broadcast_dim(n, m), "select(n == 1, m, n)"),
    ],
)
def test_dims_go_into_kernels_and_come_back(dim: Dim, text: str) -> None:
    expr = index_of(dim)
    assert expression_text(expr) == text
    assert dim_of(expr) == dim


def test_what_is_read_from_memory_is_no_dim() -> None:
    element = load(BUFFER, variable("n"))
    assert str(dim_of((element + 1).expr)) == "?"
    assert str(dim_of(minimum(element, 3).expr)) == "?"


def test_what_is_opaque_comes_back_as_it_was() -> None:
    element = load(BUFFER, variable("n"))
    chosen = select(element < 3, variable("n"), variable("m"))
    expr = (chosen + element * 2 - element).expr
    assert expression_text(expression(polynomial(expr))) == "select(x[n] < 3, n, m) + x[n]"


def test_lanes_have_the_bounds_of_all() -> None:
    vector = polynomial(Ramp(Const(3), 2, 8))
    assert Intervals({}).bounds(vector) == (3, 17)
    assert Intervals({}).bounds(polynomial(Broadcast(Const(3), 8))) == (3, 3)


def test_numbers_of_other_types_are_no_index_arithmetic() -> None:
    (((atom,), _),) = polynomial(variable("n", DType.INT32).expr).items()
    assert atom.kind == "opaque"


def test_atoms_die_with_what_they_stand_for() -> None:
    expr = (load(BUFFER, variable("nobody else has this name")) + 1).expr
    atoms = [weakref.ref(atom) for monomial in polynomial(expr) for atom in monomial]
    del expr
    index._opaque.cache_clear()
    gc.collect()
    assert [atom() for atom in atoms] == [None]
