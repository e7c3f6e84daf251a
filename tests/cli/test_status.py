"""What long work says on standard error: on terminals, in pipes, and when it is stopped."""

from __future__ import annotations

import io
import sys
import time

import pytest

from graft.base.progress import Stage
from graft.cli import terminal as module
from graft.cli.terminal import status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.02)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def wait_for(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 20
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    assert text in stream.getvalue()


def test_a_terminal_shows_the_stage_its_share_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with status("compiling m.onnx") as tell:
        tell(Stage("pricing candidates", 3, 9, "conv[bold]"))
        wait_for(stream, "compiling m.onnx: pricing candidates 3 of 9: conv[bold]")
        wait_for(stream, "━")
        wait_for(stream, " 0 s")
        tell(Stage("lowering"))
        wait_for(stream, "compiling m.onnx: lowering")


def test_the_line_goes_and_the_cursor_was_never_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with status("importing m.onnx"):
        wait_for(stream, "importing m.onnx")
    assert stream.getvalue().endswith("\x1b[2K")
    assert "\x1b[?25l" not in stream.getvalue()


def test_an_interrupt_clears_the_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())

    def interrupted() -> None:
        with status("importing m.onnx"):
            wait_for(stream, "importing m.onnx")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_pipes_and_dumb_terminals_get_a_line_per_stage(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # about colours, not about what moves
    monkeypatch.setattr(sys, "stderr", stream := kind())
    with status("compiling m\n.onnx") as tell:
        tell(Stage("pricing", 1, 9, "conv"))
        wait_for(stream, "pricing")
        tell(Stage("pricing", 2, 9, "relu"))
        time.sleep(0.1)
        tell(Stage("lowering"))
        wait_for(stream, "lowering")
    assert stream.getvalue().splitlines() == [
        "graft: compiling m\\n.onnx: pricing 1 of 9",
        "graft: compiling m\\n.onnx: lowering",
    ]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_what_is_quick_says_nothing(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 60)
    monkeypatch.setattr(sys, "stderr", stream := kind())
    with status("importing m.onnx") as tell:
        tell(Stage("lowering"))
    assert stream.getvalue() == ""


def test_a_stream_that_nobody_reads_any_more_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class BrokenBackend(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", BrokenBackend())
    with status("importing m.onnx"):
        time.sleep(0.1)


def test_stages_as_text() -> None:
    assert str(Stage("lowering")) == "lowering"
    assert str(Stage("pricing", 2, 9, "conv")) == "pricing 2 of 9: conv"
