"""A file with wrong bytes in it is read as what it says, or refused: no crash, no hang."""

from __future__ import annotations

from random import Random

from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.examples import MANY, sharded, share
from tests.property.damage import damaged
from tests.property.damage_fields import damage_bytes, damage_field
from tests.property.test_bad_models import in_time, seeds, survives, tight_limits

__all__ = ["tight_limits"]  # a fixture that every test here uses


@sharded
@settings(max_examples=share(MANY, short=200))
@given(which=st.integers(0), before=st.integers(0, 2), how=st.integers(0, 1 << 30))
def test_damaged_bytes(shard: int, which: int, before: int, how: int) -> None:
    seed = seeds()[which % len(seeds())]
    random = Random(how)
    fields = [(damage_field, random.randrange(1 << 30)) for _ in range(before)]
    data = damage_bytes(random, damaged(seed.model, seed.feeds, fields).SerializeToString())
    note(f"{seed.name}, {len(data)} bytes")
    with in_time():
        survives(data, seed.feeds, random)
