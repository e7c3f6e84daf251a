"""The number of threads is the user's, and two of them may call one module."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, chain, flat

import graft
from graft.backends.csource.backend import CSource
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.byoc import JsonBackend
from graft.byoc.contract import Backend, Runner
from graft.byoc.discover import backend_named, find_backends, register_backend, unregister_backend
from graft.byoc.executable import Settings
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


def _rounded(array: Array, precision: str) -> Array:
    return array.astype(precision).astype(np.float32)


class Scaled(JsonBackend):
    """Computes what it was made for: `exp` times a factor, or in another precision rounded."""

    name, version = "scaled", "1"

    def __init__(self, factor: float = 1.0, precision: str = "float32") -> None:
        self.arguments = {"factor": factor, "precision": precision}
        self.kernels = MappingProxyType({"exp": lambda x: _rounded(np.exp(x) * factor, precision)})

    @property
    def options(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in self.arguments.items()}

    def configured(self, settings: Settings) -> Scaled:
        return Scaled(self.arguments["factor"], settings.precision.value)


def test_an_isolated_backend_is_made_as_it_was_configured() -> None:
    backend = IsolatedBackend(Scaled(2.0)).configured(Settings(precision=DType.FLOAT16))
    assert backend.options == {"factor": "2.0", "precision": "float16"}
    outputs = [np.zeros((1, 3, 9, 7), np.float32)]
    backend.loaded(backend.code(chain("exp")))([outputs[0] + 1], outputs)
    assert (outputs[0] == np.float16(2 * np.e)).all()


def test_a_backend_that_no_other_process_can_make_is_not_isolated() -> None:
    backend = Scaled(3.0)
    backend.arguments = {}
    with pytest.raises(UserError, match=r"its options are .*'factor': '1\.0'"):
        IsolatedBackend(backend)


def test_a_load_that_does_not_ask_is_not_told() -> None:
    backend = Fake(patterns=[("exp", graft.byoc.is_op("exp"))])
    assert callable(load_for(backend.load, backend.compile(chain("exp")), 3))


def present(name: str) -> Backend:
    backend = backend_named(name, find_backends())
    if backend.missing():
        pytest.skip(backend.missing())
    return backend


_BUSY = """
import os, sys
import numpy as np
import graft.ops
from graft.byoc.discover import backend_named, find_backends
from graft.ir.builder import Builder
from graft.ir.types import tensor

def spent():
    paths = {task: f"/proc/self/task/{task}/schedstat" for task in os.listdir("/proc/self/task")}
    return {task: int(open(path).read().split()[0]) for task, path in paths.items()}

build, data = Builder(), np.ones((4, 64, 56, 56), np.float32)
weight = build.constant(np.ones((64, 64, 3, 3), np.float32))
x = build.input("x", tensor("float32", *data.shape))
region = build.build(build("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
backend = backend_named(sys.argv[1], find_backends())
run, result = backend.loaded(backend.code(region), threads=int(sys.argv[2])), np.empty_like(data)
run([data], [result])
before = spent()
for _ in range(5):
    run([data], [result])
times = [after - before.get(task, 0) for task, after in spent().items()]
print(sum(time > sum(times) / 20 for time in times))
"""


def busy_threads(name: str, threads: int) -> int:
    """How many threads of a process do more than a twentieth of a region's work."""
    present(name)
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not tell what threads take")
    command = [sys.executable, "-c", _BUSY, name, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.parametrize("threads", [1, 3])
def test_onednn_works_with_as_many_threads_as_it_is_told(threads: int) -> None:
    assert busy_threads("onednn", threads) == threads


@pytest.mark.parametrize("threads", [1, 2])
def test_openvino_works_with_no_more_threads_than_it_is_told(threads: int) -> None:
    """Its scheduler may leave threads without work, so that there may be fewer."""
    backend = present("openvino")
    region: Any = load_for(backend.load, backend.compile(chain("exp")), threads)
    assert region._model.get_property("INFERENCE_NUM_THREADS") == threads
    assert 1 <= busy_threads("openvino", threads) <= threads


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
