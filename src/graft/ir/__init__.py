"""The graph IR: immutable typed SSA graphs, their text form, checks and meaning."""
