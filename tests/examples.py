"""How many examples hypothesis tries where the profile's own number is not the right one.

A test whose examples are slow asks for fewer of them in a full run. One that has to try very many
is cut into shards, each a test with its share of them, so that they spread over the processors.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

FULL = settings.get_current_profile_name() == "full"
SHARDS = 4 if FULL else 1

# Random graphs and damaged models that a full run tries.
MANY = 10_000

sharded = pytest.mark.parametrize("shard", range(SHARDS))


def examples(full: int, short: int = 0) -> int:
    """As many in a full run; in a short one so many, or else as few as the profile says."""
    return full if FULL else short or settings().max_examples


def share(full: int, short: int = 0) -> int:
    """The examples of one shard."""
    return examples(full, short) // SHARDS
