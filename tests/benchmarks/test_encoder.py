"""The encoder of sentences that tools time gives what ONNX Runtime does, at any size."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from benchmarks.encoder import WORDS, encoder

import graft

SIZES = [(1, 1), (2, 7), (1, 33), (3, 16)]


def test_any_batch_and_length() -> None:
    model = encoder("batch", "length", layers=2, width=24, heads=3)
    onnx.checker.check_model(model, full_check=True)
    native = graft.compile(model, strict=True)
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for batch, length in SIZES:
        random = np.random.default_rng(length)
        mask = (np.arange(length) <= random.integers(0, length, (batch, 1))).astype(np.int64)
        feeds = {"tokens": random.integers(0, WORDS, (batch, length)), "mask": mask}
        (found,), (wanted,) = (one.run(None, feeds) for one in (native, peer))
        assert found.shape == (batch, 24)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_known_sizes_are_the_same_network() -> None:
    feeds = {"tokens": np.arange(10).reshape(2, 5), "mask": np.ones((2, 5), np.int64)}
    sizes = [(2, 5), ("batch", 5), ("batch", "length")]
    (one, *others) = (
        graft.compile(encoder(*size, layers=1, width=16, heads=2), strict=True).run(None, feeds)[0]
        for size in sizes
    )
    for other in others:
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_words_that_are_not_there() -> None:
    module = graft.compile(encoder(1, 2, layers=1, width=16, heads=2), strict=True)
    feeds = {"tokens": np.array([[0, WORDS]]), "mask": np.ones((1, 2), np.int64)}
    with pytest.raises(graft.base.errors.UserError, match=f"index {WORDS} is out of range"):
        module.run(None, feeds)
