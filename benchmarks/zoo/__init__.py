"""Architectures by rule: exported, timed beside Graft's peers, reported."""
