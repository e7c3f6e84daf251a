"""The number of threads is the user's, and two of them may call one module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, chain, flat

import graft
from graft.backends.csource.backend import CSource
from graft.byoc import JsonBackend
from graft.byoc.contract import Backend, Runner
from graft.byoc.discover import backend_named, find_backends, register_backend, unregister_backend
from graft.byoc.formats.c_source import compiler
from graft.byoc.isolate import IsolatedBackend
from graft.byoc.measure import time_region
from graft.runtime.loaders import load_for
from graft.runtime.spaces import with_transfers


class Counting(Fake):
    """Remembers how many threads it was allowed."""

    version = "1"

    def __init__(self) -> None:
        super().__init__("counting", [("exp", graft.byoc.is_op("exp"))], price=flat(1e-9))
        self.simulated = True
        self.allowed: list[int | None] = []

    def load(self, blob: bytes, threads: int | None = None) -> Runner:
        self.allowed.append(threads)
        return super().load(blob)


@pytest.fixture
def counting() -> Iterator[Counting]:
    backend = Counting()
    register_backend(backend)
    yield backend
    unregister_backend("counting")


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_load_that_asks_is_told(counting: Counting, threads: int | None) -> None:
    graft.compile(chain("exp"), "counting", threads=threads, pins=["exp=counting"])
    assert set(counting.allowed) == {threads}
    counting.allowed.clear()
    time_region(counting, chain("exp"), threads=threads)
    assert counting.allowed == [threads]


class Apart(JsonBackend):
    """Gives the number of threads that it is allowed."""

    name, version = "apart", "1"
    kernels = MappingProxyType({"exp": lambda x, threads: np.full_like(x, threads)})


def test_an_isolated_backend_is_told() -> None:
    backend = IsolatedBackend(Apart())
    outputs = [np.zeros((1, 3, 9, 7), np.float32)]
    backend.loaded(backend.code(chain("exp")), threads=3)([outputs[0] + 1], outputs)
    assert (outputs[0] == 3).all()


def test_a_load_that_does_not_ask_is_not_told() -> None:
    backend = Fake(patterns=[("exp", graft.byoc.is_op("exp"))])
    assert callable(load_for(backend.load, backend.compile(chain("exp")), 3))


def present(name: str) -> Backend:
    backend = backend_named(name, find_backends())
    if backend.missing():
        pytest.skip(backend.missing())
    return backend


def test_onednn_is_told() -> None:
    backend = present("onednn")
    region = load_for(backend.load, backend.compile(chain("exp")), 1)
    assert region.threads == 1  # type: ignore[attr-defined]


def test_openvino_is_told() -> None:
    backend = present("openvino")
    region: Any = load_for(backend.load, backend.compile(chain("exp")), 1)
    assert region._model.get_property("INFERENCE_NUM_THREADS") == 1


@pytest.mark.parametrize("name", ["csource", "openvino", "onednn", "simnpu"])
def test_calls_from_several_threads(name: str) -> None:
    """Right results, whether or not calls take turns."""
    if name == "csource" and compiler() is None:
        pytest.skip("there is no C compiler here")
    backend = CSource() if name == "csource" else present(name)
    ops = ("nn.relu", "nn.relu") if name == "simnpu" else ("exp", "nn.relu", "exp")
    run = with_transfers(load_for(backend.load, backend.compile(chain(*ops)), 1))
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal((1, 3, 9, 7), dtype=np.float32) for _ in range(4)]
    alone = [np.empty_like(x) for x in inputs]
    for x, out in zip(inputs, alone, strict=True):
        run([x], [out])
    wrong: list[int] = []

    def work(number: int) -> None:
        out = np.empty_like(inputs[number])
        for _ in range(50):
            out[...] = 0
            run([inputs[number]], [out])
            if not np.array_equal(out, alone[number]):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
