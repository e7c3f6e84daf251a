"""Extents of operands that are broadcast together."""

from __future__ import annotations

from graft.base.dims import broadcast_dim, dim_min, symbol

N, M = symbol("n"), symbol("m")


def test_what_is_cut_from_another_says_nothing_new() -> None:
    """`positions[:, :n]` added to n words: as many as there are words, or else it fails."""
    assert broadcast_dim(dim_min(N, 512), N) == N
    assert broadcast_dim(N, dim_min(N, 512)) == N
    assert broadcast_dim(N, dim_min(N, M, 512)) != N
    assert broadcast_dim(N, dim_min(N, 1)) != N
    assert broadcast_dim(M, dim_min(N, 512)) != M
