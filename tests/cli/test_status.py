from __future__ import annotations

import io
import sys
import time

import pytest

from graft.cli import status as module
from graft.cli.status import status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "SECONDS_BETWEEN", 0.02)
    with status("importing m.onnx"):
        time.sleep(seconds)
    return stream.getvalue()


def test_what_takes_long_is_shown_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), 0.2)
    assert text.startswith("\r\x1b[Kimporting m.onnx ... 0 s")
    assert text.endswith("\r\x1b[K")


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with status("importing m.onnx"):
        pass
    assert stream.getvalue() == ""


def test_files_and_dumb_terminals_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO(), 0.1) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert shown(monkeypatch, Terminal(), 0.1) == ""


def test_an_error_clears_the_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "SECONDS_BETWEEN", 0.02)

    def interrupted() -> None:
        with status("importing m.onnx"):
            time.sleep(0.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_what_exactly_is_being_done_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "SECONDS_BETWEEN", 0.02)
    with status("compiling m.onnx") as tell:
        tell("pricing 1 of 9")
        time.sleep(0.2)
    assert "compiling m.onnx: pricing 1 of 9 ... 0 s" in stream.getvalue()
