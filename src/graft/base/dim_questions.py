"""Predicates on extents that hold for every binding of their symbols.

False means "not provable". A caller that wants to know what a decision depends on installs an
oracle (`supposing`), which decides wherever the answer differs between bindings. All predicates
come down to whether two extents differ, so that such decisions can be recorded and checked once
the symbols have values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

from graft.base.dims import AnyDim, Dim, Unknown, at_least, dim_max

# Whether two extents are to be treated as different.
Oracle: TypeAlias = Callable[[Dim, Dim], bool]

_ORACLE: Final[ContextVar[Oracle | None]] = ContextVar("oracle", default=None)


@contextmanager
def supposing(oracle: Oracle) -> Iterator[None]:
    """Let the oracle decide what is not provable."""
    token = _ORACLE.set(oracle)
    try:
        yield
    finally:
        _ORACLE.reset(token)


def provably_equal(left: AnyDim, right: AnyDim) -> bool:
    """True only if the extents agree for every binding."""
    return not isinstance(left, Unknown) and left == right


def provably_different(left: AnyDim, right: AnyDim) -> bool:
    """True only if the extents differ for every binding."""
    if isinstance(left, int) and isinstance(right, int):
        return left != right
    difference = left - right
    if at_least(difference, 1) or at_least(-difference, 1):
        return True
    oracle = _ORACLE.get()
    if oracle is None or isinstance(difference, int | Unknown):
        return False
    assert not isinstance(left, Unknown)
    assert not isinstance(right, Unknown)
    return oracle(left, right)


def provably_below(left: AnyDim, right: AnyDim) -> bool:
    """True only if the first extent is smaller for every binding."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return provably_different(dim_max(right - left, 0), 0)


def provably_not_broadcastable(left: AnyDim, right: AnyDim) -> bool:
    """True only if the extents differ and neither is 1, for every binding."""
    return provably_different((left - right) * (left - 1) * (right - 1), 0)


def provably_no_multiple(dim: AnyDim, divisor: int) -> bool:
    """True only if the extent is no whole number of times the divisor, for every binding."""
    return provably_different(dim % divisor, 0)
