"""Backends are found, and one that is broken harms nobody."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from tests.byoc.fakes import Fake

from graft.base.errors import UserError
from graft.byoc import discover
from graft.byoc.contract import Backend
from graft.byoc.discover import (
    backend_named,
    find_backends,
    register_backend,
    unregister_backend,
)
from graft.byoc.executable import Accuracy, Settings
from graft.compiler import compile_options


class Good(Backend):
    name = "good"


class Nameless(Backend):
    pass


class Raises(Backend):
    name = "raises"

    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Lacking(Backend):
    name = "lacking"

    def missing(self) -> str:
        return "its library is not installed; pip install lacking"


class NoBackend:
    name = "nobackend"


def announce(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Let installed packages announce these, and nothing else."""
    found = [EntryPoint(name, value, discover.GROUP) for name, value in points.items()]
    monkeypatch.setattr(discover, "entry_points", lambda group: found)


def here(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, __name__, request.module)
    yield
    unregister_backend("good")
    unregister_backend("fake")


@pytest.mark.parametrize(
    ("package", "version"), [("", "0"), ("numpy", np.__version__), ("nothing", "not installed")]
)
def test_the_version_is_that_of_its_package(package: str, version: str) -> None:
    backend = Good()
    backend.package = package
    assert backend.version == version
    backend.version = "of its own"
    assert backend.version == "of its own"


def test_announced_and_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, good=here("Good"))
    register_backend(Fake())
    found = find_backends()
    assert set(found.backends) == {"good", "fake"}
    assert found.origins["fake"] == "this process"
    assert found.broken == ()
    assert isinstance(backend_named("good", found), Good)


BROKEN = {
    "import": ("graft_plugin_that_is_not_there:Backend", "ModuleNotFoundError: No module named"),
    "name in the module": (here("Absent"), "AttributeError"),
    "constructor": (here("Raises"), "RuntimeError: no licence"),
    "class": (here("NoBackend"), "is no subclass of graft.byoc.Backend"),
    "another name": (here("Good"), "it is announced as 'bad' and calls itself 'good'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_one_is_reported_and_left_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, reason = BROKEN[kind]
    announce(monkeypatch, bad=value, good=here("Good"))
    found = find_backends()
    assert set(found.backends) == {"good"}
    (broken,) = found.broken
    assert broken.name == "bad"
    assert reason in broken.reason
    with pytest.raises(UserError, match=r"the backend 'bad' of .* fails"):
        backend_named("bad", found)


def test_two_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, good=here("Good"))
    register_backend(Good)
    with pytest.raises(UserError, match=r"two backends are named 'good': one from .*this process"):
        find_backends()


def test_registered_twice() -> None:
    register_backend(Good)
    with pytest.raises(UserError, match="registered already"):
        register_backend(Good)


def test_without_a_name() -> None:
    with pytest.raises(UserError, match="Nameless has no name"):
        register_backend(Nameless)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, lacking=here("Lacking"))
    found = find_backends()
    with pytest.raises(UserError, match="cannot run here: its library is not installed"):
        backend_named("lacking", found)


def test_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, good=here("Good"))
    found = find_backends()
    with pytest.raises(UserError) as close:
        backend_named("goood", found)
    assert close.value.hint == "did you mean 'good'?"
    with pytest.raises(UserError) as far:
        backend_named("xyz", found)
    assert far.value.hint == "there are good"


def test_the_packages_own_backends_load() -> None:
    found = find_backends()
    assert found.broken == ()
    assert {"host", "reference", "simnpu"} <= set(found.backends)


class Configurable(Good):
    """Keeps what it is configured with."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings

    def configured(self, settings: Settings) -> Backend:
        if settings.threads == 13:
            raise RuntimeError("no thirteen")
        return Configurable(settings)


def test_accelerators_get_the_users_settings() -> None:
    register_backend(Configurable())
    settings = Settings(accuracy=Accuracy.STRICT)
    (backend,) = compile_options("good, host", settings).accelerators
    assert isinstance(backend, Configurable)
    assert backend.settings == settings
    with pytest.raises(UserError, match=r"good.configured raised RuntimeError: no thirteen"):
        compile_options(["good"], Settings(threads=13))
