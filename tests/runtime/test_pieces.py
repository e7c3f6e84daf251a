"""Long programs run in pieces, between which Python sees to Ctrl-C."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.kernels import chain, chain_meaning, said_by

from graft.runtime import frames
from graft.runtime.session import Session


def test_long_programs_stop_for_ctrl_c() -> None:
    """A run of a minute ends soon after it is interrupted."""
    assert said_by(LONG) == "interrupted\n"


LONG = """
import os, signal, threading, time
from dataclasses import replace
import numpy as np
from tests.runtime.kernels import chain
from graft.runtime.session import Session
n = 1 << 20
short = chain(n, 2)
(segment,) = short.body.instructions
calls = tuple(replace(call, flops=10**10) for call in segment.calls) * 20_000
body = replace(short.body, instructions=(replace(segment, calls=calls),))
long = replace(short, body=body)
session = Session(long, threads=2)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.perf_counter()
try:
    session.run(None, {"x": np.ones(n, np.float32)})
except KeyboardInterrupt:
    print("interrupted" if time.perf_counter() - start < 10 else "late")
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_program_in_pieces_gives_the_same(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit, steps run once and in order, and each is measured."""
    x = np.arange(77, dtype=np.float32) - 30
    expected = chain_meaning(x, 4)
    for limit in (1, 200, 10**12):
        monkeypatch.setattr(frames, "LONG_WORK", limit)
        session = Session(chain(77, 4), threads)
        assert np.array_equal(session.run(None, {"x": x})[0], expected)
        profile = session.profile({"x": x})
        assert np.array_equal(profile.outputs[0], expected)
        assert len(profile.calls) == 8
        assert all(one.seconds > 0 for one in profile.calls)
