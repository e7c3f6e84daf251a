"""The short way of a run: what takes it, and that nothing else comes out of it."""

from __future__ import annotations

import gc
import weakref
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tests.runtime.kernels import chain, chain_meaning

import graft
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.runtime import memory
from graft.runtime.generated import define
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.session import Session
from graft.runtime.sizes import REMEMBERED

X = np.array([3, -1, 4, 1, -5], np.float32)
Y = chain_meaning(X)


class Subclass(np.ndarray):  # type: ignore[type-arg]
    """What a library derives from NumPy's arrays."""


def misaligned() -> Array:
    shifted = aligned_empty((21,), np.dtype(np.uint8))[1:].view(np.float32)
    shifted[:] = X
    return shifted


def read_only() -> Array:
    copy = X.copy()
    copy.flags.writeable = False
    return copy


@pytest.fixture(scope="module")
def session() -> Session:
    known = Session(chain(5), threads=1)
    assert takes_it(known, {"x": X})
    return known


def takes_it(session: Any, feeds: Any) -> bool:
    assert session.dispatcher is not None
    return session.dispatcher.run(feeds) is not None


@pytest.mark.parametrize(
    "data",
    [
        X.view(Subclass),
        np.ma.masked_array(X),
        np.repeat(X, 2)[::2],
        X[::-1].copy()[::-1],
        misaligned(),
        read_only(),
        array("f", X),
        X.data,
    ],
    ids=["subclass", "masked", "strided", "backwards", "odd", "read-only", "array", "buffer"],
)
def test_all_else_takes_the_ordinary_way(session: Session, data: Any) -> None:
    assert not takes_it(session, {"x": data})
    assert np.array_equal(session.run(None, {"x": data})[0], Y)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": X.tolist()}, r"'x' wants float32\[5\], not float64\[5\]"),
        ({"x": X.astype(np.float64)}, r"'x' wants float32\[5\], not float64\[5\]"),
        ({"x": X.view(np.int32)}, r"'x' wants float32\[5\], not int32\[5\]"),
        ({"x": X[:4].copy()}, r"'x' wants float32\[5\], not float32\[4\]"),
        ({"x": X[:0].copy()}, r"'x' wants float32\[5\], not float32\[0\]"),
        ({"x": X[0:1].reshape(())}, r"'x' wants float32\[5\], not float32\[\]"),
        ({"x": X.reshape(5, 1)}, r"'x' wants float32\[5\], not float32\[5, 1\]"),
        ({"x": None}, r"'x'"),
        ({"y": X}, "there is no input 'y'"),
        ({"x": X, "y": X}, "there is no input 'y'"),
        ({}, "the input 'x' is missing"),
    ],
)
def test_wrong_feeds_are_refused_as_ever(
    session: Session, feeds: dict[str, Any], message: str
) -> None:
    for _ in range(3):
        assert not takes_it(session, feeds)
        with pytest.raises(UserError, match=message):
            session.run(None, feeds)


def test_outputs_are_chosen_by_name(session: Session) -> None:
    assert np.array_equal(session.run(["y"], {"x": X})[0], Y)
    assert session.run([], {"x": X}) == []
    with pytest.raises(UserError, match="there is no output 'q'"):
        session.run(["y", "q"], {"x": X})


def test_alignment_that_a_program_asks_for() -> None:
    program = chain(5, alignment=64)
    session = Session(program, threads=1)
    aligned = aligned_empty((6,), np.dtype(np.float32))
    for one, short in ((aligned[:5], True), (aligned[1:], False)):
        one[:] = X
        feeds = {"x": one}
        for _ in range(2):
            assert np.array_equal(session.run(None, feeds)[0], Y)
        assert takes_it(session, feeds) == short
        (y,) = session.run(None, feeds)
        assert address_of(y) % 64 == 0


def test_results_that_somebody_holds_stay(session: Session) -> None:
    held = [session.run(None, {"x": X * n})[0] for n in range(20)]
    for n, result in enumerate(held):
        assert np.array_equal(result, chain_meaning(X * n))


def test_without_the_layout_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NumPy's own structures cannot be read, it is asked."""
    monkeypatch.setattr("graft.runtime.dispatch.address_of", memory._told_address)
    monkeypatch.setattr("graft.runtime.frames.address_of", memory._told_address)
    session = Session(chain(5), threads=1)
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": X})[0], Y)
    assert np.array_equal(session.bind({"x": X})()[0], Y)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads(threads: int) -> None:
    session = Session(chain(3000, rounds=3), threads=threads)
    inputs = [np.full(3000, n, np.float32) for n in range(4)]
    expected = [session.run(None, {"x": x})[0] for x in inputs]

    def runs(number: int) -> int:
        feeds = {"x": inputs[number]}
        return sum(
            np.array_equal(session.run(None, feeds)[0], expected[number]) for _ in range(100)
        )

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(runs, range(4))) == [100] * 4


SYMBOLIC = """
<ir_version: 10, opset_import: ["": 21]>
net (float[n, 4] x, float[n] w, int64[k] i) => (float[n, 4] y, float[k, 4] z) {
    axis = Constant<value = int64[1] {1}>()
    column = Unsqueeze(w, axis)
    y = Mul(x, column)
    z = Gather(y, i)
}
"""


def symbolic(n: int, k: int = 2) -> dict[str, Array]:
    x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
    return {"x": x, "w": np.full(n, 2, np.float32), "i": np.zeros(k, np.int64)}


@pytest.fixture(scope="module")
def module() -> graft.Module:
    return graft.compile(onnx.parser.parse_model(SYMBOLIC))


def test_symbolic_sizes(module: graft.Module) -> None:
    """More of them than stay ready."""
    for _ in range(2):
        for n in range(1, REMEMBERED + 4):
            feeds = symbolic(n, k=n % 3)
            for _ in range(3):
                y, z = module.run(None, feeds)
                assert np.array_equal(y, feeds["x"] * 2)
                assert np.array_equal(z, y[feeds["i"]])
            assert np.array_equal(module.run(["z"], feeds)[0], z)


def test_the_ordinary_way_leaves_no_sizes_behind(module: graft.Module) -> None:
    feeds, strided = symbolic(3), symbolic(20_000)
    strided["x"] = np.repeat(strided["x"], 2, axis=1)[:, ::2]
    assert takes_it(module, feeds)
    assert not takes_it(module, strided)
    for _ in range(3):
        for one in (feeds, strided):
            y, z = module.run(None, one)
            assert np.array_equal(y, one["x"] * 2)
            assert np.array_equal(z, y[one["i"]])


def test_sizes_that_do_not_fit_together(module: graft.Module) -> None:
    feeds = symbolic(3) | {"w": np.ones(2, np.float32)}
    for _ in range(3):
        with pytest.raises(UserError, match=r"'w' has the shape \[2\] where \[n\] is wanted"):
            module.run(None, feeds)


def test_indices_outside_are_refused_every_time(module: graft.Module) -> None:
    good, bad = symbolic(3), symbolic(3) | {"i": np.array([0, 3])}
    for _ in range(3):
        module.run(None, good)
        with pytest.raises(EvaluationError, match="index 3 is out of range for axis 0 of extent 3"):
            module.run(None, bad)
    bound = module.bind(bad)
    for _ in range(2):
        with pytest.raises(EvaluationError, match="index 3 is out of range"):
            bound()
        bad["i"][1] = 2
        assert np.array_equal(bound()[1], bad["x"][[0, 2]] * 2)
        bad["i"][1] = 3


def test_variants_and_the_general_program() -> None:
    module = graft.compile(onnx.parser.parse_model(SYMBOLIC), shapes={"n": [2], "k": [2]})
    for n in (2, 3) * (3):
        feeds = symbolic(n)
        assert module.variant(feeds) == ("n=2, k=2" if n == 2 else "")
        y, z = module.run(None, feeds)
        assert np.array_equal(y, feeds["x"] * 2)
        assert np.array_equal(z, y[feeds["i"]])


@pytest.mark.parametrize("shapes", [None, {"n": [2], "k": [2]}])
def test_a_model_goes_with_the_last_reference(shapes: dict[str, list[int]] | None) -> None:
    """At once: its threads and its memory need not wait for the garbage collector."""
    module = graft.compile(onnx.parser.parse_model(SYMBOLIC), shapes=shapes)
    for n in (2, 3) * (3):
        module.run(None, symbolic(n))
    gone = weakref.ref(module.executor)
    gc.collect()
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()


def test_functions_are_written_out() -> None:
    run = define(["a", "b"], ["c = a + b", "return c * factor"], {"factor": 3})
    assert run(1, 2) == 9
