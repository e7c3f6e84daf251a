"""Modules pickle by their artifact: what comes back runs alike, in this process and in others."""

from __future__ import annotations

import copy
import multiprocessing
import pickle  # noqa: TID251  (of what these tests have made themselves)
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.test_flow import HEAD, numbers

import graft
from graft.base.cores import available_cores
from graft.base.dtypes import Array
from graft.module import Module
from graft.runtime.session import Session

STATIC = "net (float[5] x) => (float[5] y) { z = Exp (x) y = Add (z, x) }"
SYMBOLIC = "net (float[n] x) => (float[n] y) { z = Exp (x) y = Add (z, x) }"
EVALUATED = "net (string[n] x) => (string[n] y) { y = StringConcat (x, x) }"
FEEDS = {
    STATIC: {"x": numbers(5)},
    SYMBOLIC: {"x": numbers(7)},
    EVALUATED: {"x": np.array(["a", "b"], object)},
}


def compiled(text: str, **options: Any) -> Module:
    return graft.compile(onnx.parser.parse_model(HEAD + text), **options)


def loaded(module: Module, path: Path, **options: Any) -> Session:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.save(path)
    return graft.load(path, **options)


def round_trip(model: Any) -> Session:
    session: Session = pickle.loads(pickle.dumps(model))
    return session


@pytest.mark.parametrize("text", FEEDS)
def test_compiled_and_loaded_models_come_back(text: str, tmp_path: Path) -> None:
    module = compiled(text)
    session = loaded(module, tmp_path / "m.graft")
    (tmp_path / "m.graft").unlink()
    (wanted,) = module.run(None, FEEDS[text])
    for model in (module, session):
        for again in (round_trip(model), round_trip(round_trip(model)), copy.deepcopy(model)):
            (found,) = again.run(None, FEEDS[text])
            assert found.tolist() == wanted.tolist()
            assert str(again.placement) == str(module.placement)


def test_variants_come_back() -> None:
    module = compiled(SYMBOLIC, shapes={"n": [7]})
    session = round_trip(module)
    for n in (3, 7):
        feeds = {"x": numbers(n)}
        assert session.variant(feeds) == module.variant(feeds)  # type: ignore[union-attr]
        assert session.run(None, feeds)[0].tolist() == module.run(None, feeds)[0].tolist()


def test_regions_come_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compiled(STATIC, target="csource", pins=["*=csource"], fallback="host")
    session = round_trip(module)
    assert session.regions.keys() == module.regions.keys()
    assert (
        session.run(None, FEEDS[STATIC])[0].tolist() == module.run(None, FEEDS[STATIC])[0].tolist()
    )


def test_threads_stay_as_asked_for(tmp_path: Path) -> None:
    module = compiled(STATIC, threads=1)
    assert round_trip(module).threads == 1
    session = loaded(module, tmp_path / "m.graft", threads=3)
    assert round_trip(session).threads == 3
    assert round_trip(compiled(STATIC)).threads == available_cores()


def test_models_keep_their_options(tmp_path: Path) -> None:
    session = loaded(compiled(STATIC), tmp_path / "m.graft", verify="off", deadline=3.0)
    again = round_trip(session)
    assert again.options == session.options
    assert again.options["deadline"] == 3.0


def test_what_is_bound_to_arrays_stays_here(tmp_path: Path) -> None:
    module = compiled(STATIC)
    binding = module.bind(FEEDS[STATIC])
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pickle.dumps(binding)
    again = round_trip(module).bind(FEEDS[STATIC])
    assert again()[0].tolist() == binding()[0].tolist()


def test_loaded_models_can_be_saved_again(tmp_path: Path) -> None:
    session = loaded(compiled(STATIC), tmp_path / "m.graft")
    session.save(tmp_path / "n.graft")
    assert (tmp_path / "n.graft").read_bytes() == (tmp_path / "m.graft").read_bytes()


def test_a_program_alone_cannot_be_pickled() -> None:
    session = Session(compiled(STATIC).program)
    with pytest.raises(TypeError, match="of a program alone"):
        pickle.dumps(session)


def run_there(model: Any, x: Array) -> Array:
    """In a process that has nothing but the pickle."""
    result: Array = model.run(None, {"x": x})[0]
    return result


def test_other_processes_get_them(tmp_path: Path) -> None:
    module = compiled(SYMBOLIC, threads=1)
    session = loaded(module, tmp_path / "m.graft")
    jobs = [(model, FEEDS[SYMBOLIC]["x"]) for model in (module, session)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for found in pool.starmap(run_there, jobs):
            assert found.tolist() == module.run(None, FEEDS[SYMBOLIC])[0].tolist()
