"""Extents of operands that are broadcast together."""

from __future__ import annotations

from graft.base.dims import UNKNOWN, broadcast_dim, dim_max, dim_min, symbol, uncut

N, M = symbol("n"), symbol("m")


def test_what_is_cut_from_another_says_nothing_new() -> None:
    """`positions[:, :n]` added to n words: as many as there are words, or else it fails."""
    assert broadcast_dim(dim_min(N, 512), N) == N
    assert broadcast_dim(N, dim_min(N, 512)) == N
    assert broadcast_dim(N, dim_min(N, M, 512)) != N
    assert broadcast_dim(N, dim_min(N, 1)) != N
    assert broadcast_dim(M, dim_min(N, 512)) != M


def test_where_a_cut_extent_broadcasts_it_is_not_cut_anywhere() -> None:
    """Rows [N : N + M] of a mask for 8 positions, whose columns stand beside N + M of them."""
    columns = dim_min(N + M, 8)
    rows = dim_max(columns - N, 0)
    for pair in ((columns, N + M), (N + M, columns)):
        assert uncut([rows, 2 * columns, M, 3, UNKNOWN], [(1, N), pair]) == (
            *(M, 2 * (N + M), M, 3, UNKNOWN),
        )


def test_other_cuts_stay() -> None:
    columns = dim_min(N + M, 8)
    for other in (8, 1, N, N + M + 1, UNKNOWN):
        assert uncut([columns], [(columns, other)]) == (columns,)
    assert uncut([dim_min(N, 1)], [(dim_min(N, 1), N)]) == (dim_min(N, 1),)
    assert uncut([dim_min(N, 9)], [(dim_min(N, 8), N)]) == (dim_min(N, 9),)
