"""Mistakes in an author's callbacks are shown as theirs: backend, callback, node, file and line."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import graft
from graft.base.callbacks import author_line, described
from graft.base.errors import BackendError, UnsupportedError
from graft.byoc.annotate import unregister
from graft.byoc.discover import unregister_backend
from graft.byoc.kit import conformance
from graft.cli.main import main
from graft.runtime.regions import RegionWarning

AUTHOR = """
import os
import numpy as np
from graft.byoc import Backend, Cost, is_op, register_backend, register_op_attr
from graft.byoc import register_pattern_table, wildcard
from graft.ir.evaluate import evaluate
from graft.ir.parser import from_text
from graft.ir.printer import to_text

RAISES = ""


def trip(callback):
    if callback == RAISES:
        raise KeyError("groups")  # LINE


class Mine(Backend):
    name = "mine"
    version = "1"
    simulated = True  # not raced against the host, which would win

    def missing(self):
        trip("missing")
        return ""

    def patterns(self):
        trip("patterns")
        return [("tanh", is_op("tanh").where(lambda value: not trip("where"), "is odd"))]

    def supports(self, match):
        trip("supports")

    def price(self, region):
        trip("price")
        return Cost(1e-9)

    def process(self, region):
        trip("process")
        return region

    def compile(self, region):
        trip("compile")
        return to_text(region).text.encode()

    def load(self, blob):
        trip("load")
        region = from_text(blob.decode())

        def run(inputs, outputs):
            trip("run")
            return [np.asarray(item) for item in evaluate(region, inputs)]

        return run


class Isolated(Mine):
    name = "apart"
    isolation = "process"

    def compile(self, region):
        {}["in a process of its own"]  # APART


def check(match):
    trip("check")


@register_op_attr("tanh", "codegen.mine")
def predicate(node):
    trip("predicate")


register_pattern_table("mine", [("checked", is_op("tanh"), check)])
register_backend(Mine)
"""
LINE = AUTHOR.splitlines().index('        raise KeyError("groups")  # LINE') + 1
APART = next(n for n, line in enumerate(AUTHOR.splitlines(), 1) if line.endswith("# APART"))
MODEL = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[2, 3] x) => (float[2, 3] y) {
      [bend] y = Tanh (x)
    }
"""
RAISED = {
    "missing": "mine.missing raised KeyError: 'groups'",
    "patterns": "mine.patterns raised KeyError: 'groups'",
    "where": "the pattern 'tanh' of mine raised KeyError: 'groups' for %y (tanh)",
    "supports": "mine.supports raised KeyError: 'groups' for %y (tanh)",
    "check": "the check of 'checked' for mine raised KeyError: 'groups' for %y (tanh)",
    "predicate": "the predicate of mine for tanh raised KeyError: 'groups' for %y (tanh)",
}
DEMOTED = {
    "price": "mine.price raised KeyError: 'groups' for %y (tanh)",
    "process": "mine.process raised KeyError: 'groups' for %y (tanh)",
    "compile": "mine.compile raised KeyError: 'groups' for %y (tanh)",
    "load": "mine.load raised KeyError: 'groups'",
    "run": "KeyError: 'groups' for float32[2, 3]",
}


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, in a file of its author's, who stands in the folder with it and a model."""
    (tmp_path / "author_of_mine.py").write_text(AUTHOR)
    onnx.save(parser.parse_model(MODEL), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("author_of_mine")
    del sys.modules["author_of_mine"]
    unregister_backend("mine")
    unregister_backend("apart")
    unregister("mine")


@pytest.mark.parametrize(("callback", "message"), RAISED.items())
def test_placing_stops_at_a_mistake(author: Any, callback: str, message: str) -> None:
    author.RAISES = callback
    with pytest.raises(BackendError) as caught:
        graft.compile("net.onnx", target="mine")
    assert caught.value.message == f"{message}, at author_of_mine.py:{LINE}"
    assert isinstance(caught.value.__cause__, KeyError)
    about_a_node = "%y" in message
    assert ("node 'bend'" in str(caught.value)) is about_a_node


@pytest.mark.parametrize(("callback", "message"), DEMOTED.items())
def test_the_host_stands_in_with_a_warning(author: Any, callback: str, message: str) -> None:
    author.RAISES = callback
    wanted = re.escape(f"{message}, at author_of_mine.py:{LINE}")
    with pytest.warns(RegionWarning, match=wanted):
        module = graft.compile("net.onnx", target="mine", pins=["bend=mine"], fallback="host")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(module.run(None, {"x": x})[0], np.tanh(x), rtol=1e-6)


def test_incidents_have_the_line(author: Any) -> None:
    module = graft.compile("net.onnx", target="mine", pins=["bend=mine"])
    author.RAISES = "run"
    with pytest.warns(RegionWarning):
        module.run(None, {"x": np.ones((2, 3), np.float32)})
    (incident,) = module.incidents
    reason = "KeyError: 'groups' for float32[2, 3]"
    assert incident.reason == f"{reason}, at author_of_mine.py:{LINE}"


@pytest.mark.parametrize(("callback", "message"), RAISED.items())
def test_on_the_command_line(
    author: Any, callback: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    author.RAISES = callback
    assert main(["run", "net.onnx", "--target", "mine"]) == 1
    told = capsys.readouterr().err
    assert f"graft: error: {message}, at author_of_mine.py:{LINE}\n" in told
    assert "hint: this is code of the backend's" in told
    assert "Traceback" not in told
    assert main(["--debug", "run", "net.onnx", "--target", "mine"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("callback", "message"), DEMOTED.items())
def test_on_the_command_line_as_a_warning(
    author: Any, callback: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    author.RAISES = callback
    pinned = ["--target", "mine", "--pin", "bend=mine", "--fallback", "host"]
    assert main(["run", "net.onnx", *pinned]) == 0
    told = capsys.readouterr().err
    assert f"{message}, at author_of_mine.py:{LINE}" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("callback", [*RAISED, *DEMOTED])
def test_the_kit_says_the_same(
    author: Any, callback: str, capsys: pytest.CaptureFixture[str]
) -> None:
    author.RAISES = callback
    assert main(["check", "--backend", "mine", "--examples", "1"]) == 1
    told = capsys.readouterr()
    shown = re.split(r" for (?=%|float32)", {**RAISED, **DEMOTED}[callback])[0]
    assert re.search(
        rf"{re.escape(shown)}.*, at author_of_mine\.py:{LINE}\n", told.out + told.err
    ), told
    assert "Traceback" not in told.err


def test_a_price_that_is_none(author: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author.Mine, "price", lambda self, region: float("nan"))
    report = conformance(author.Mine(), examples=1)
    assert "price gives nan, neither a Cost of some seconds nor None" in report.failures[0].reason


def test_a_signature_that_does_not_fit(author: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no frame of the author's: the function's own line is shown."""
    monkeypatch.setattr(author.Mine, "supports", author.check.__get__(author.Mine()))
    line = AUTHOR.splitlines().index("def check(match):") + 1
    with pytest.raises(BackendError, match=rf"1 positional.* author_of_mine\.py:{line}"):
        graft.compile("net.onnx", target="mine")


def test_an_isolated_backend(author: Any) -> None:
    graft.byoc.register_backend(author.Isolated)
    wanted = rf"apart.compile raised KeyError.*, at author_of_mine\.py:{APART}$"
    with pytest.warns(RegionWarning, match=wanted):
        graft.compile("net.onnx", target="apart", pins=["bend=apart"], fallback="host")


def test_nothing_is_said_without_a_mistake(author: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        module = graft.compile("net.onnx", target="mine", pins=["bend=mine"])
    assert [region.backend for region in module.placement.regions] == ["mine"]


def test_the_line_is_the_authors_and_not_a_librarys(author: Any) -> None:
    code = "import numpy as np\n\n\ndef wrong():\n    np.zeros(2).reshape(3)\n"
    space: dict[str, object] = {"__name__": "somebody.kernels"}
    exec(compile(code, "/elsewhere/kernels.py", "exec"), space)
    try:
        space["wrong"]()  # type: ignore[operator]
    except ValueError as error:
        own = error.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
        assert author_line(own) == "/elsewhere/kernels.py:5"
        assert described(own).startswith("ValueError: cannot reshape")
    assert author_line(ValueError()) == ""
    assert described(UnsupportedError("no", hint="try")) == "UnsupportedError: no; hint: try"
