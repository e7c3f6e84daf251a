"""The small models: all ways of a run give what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from benchmarks.small_models import MODELS, process

import graft


@pytest.mark.parametrize("name", MODELS)
def test_all_ways_give_what_onnxruntime_gives(name: str) -> None:
    small = MODELS[name]()
    peer = onnxruntime.InferenceSession(
        small.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = peer.run(None, small.feeds)
    module = graft.compile(small.model, threads=1, strict=True)
    bound = module.bind(small.feeds)
    for _ in range(3):
        for results in (module.run(None, small.feeds), bound()):
            for own, right in zip(results, expected, strict=True):
                assert own.dtype == right.dtype
                np.testing.assert_allclose(own, right, rtol=1e-4, atol=1e-5)
    assert module.dispatcher is not None
    assert module.dispatcher.run(small.feeds) is not None


def test_a_process_tells_seconds_and_results() -> None:
    answer = process("graft", MODELS["add"]())
    assert set(answer) == {"graft", "bound", "results"}
    assert all(0 < seconds < 1 for seconds in answer["graft"] + answer["bound"])
