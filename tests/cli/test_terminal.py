"""What commands print on wide and narrow terminals, in colour and without, and in pipes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.cli.tiny import saved

from graft.cli.main import main
from graft.cli.report import Line, lines_of, print_lines, section, table

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3|9)[0-7]m")
NAME = "a_rather_long_name_of_an_input_that_has_no_place_to_be_broken_at"

MODEL = f"""
    net (float[n, 8] {NAME}, float[8] w) => (float[n, 8] y) {{
        [first] s = Add ({NAME}, w)
        [second] y = Relu (s)
    }}
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return saved(tmp_path, MODEL)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


COMMANDS = {
    "inspect": ("inspect", "MODEL"),
    "run": ("run", "MODEL", "--target", "reference"),
    "profile": ("run", "MODEL", "--profile"),
    "check": ("check", "MODEL", "--nodes"),
    "explain": ("explain", "MODEL", "--target", "simnpu,host"),
    "node": ("explain", "MODEL", "--target", "simnpu,host", "--node", "first"),
    "backends": ("backends",),
    "machine": ("backends", "--machine", "icelake-server"),
    "cache": ("cache",),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_forty_columns(
    command: tuple[str, ...],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lines are wrapped, and nothing that a pipe would show is missing."""
    monkeypatch.chdir(Path(model).parent)
    arguments = [Path(model).name if one == "MODEL" else one for one in command]
    wide = printed(capsys, *arguments)
    monkeypatch.setenv("COLUMNS", "40")
    lines = printed(capsys, *arguments).splitlines()
    assert max(map(len, lines)) <= 40
    narrow = "".join("".join(lines).split())
    words = {word for word in wide.split() if re.fullmatch(r"[A-Za-z]{3,12}", word)}
    assert {word for word in words if word not in narrow} == set()


@pytest.mark.parametrize("command", [COMMANDS["inspect"], COMMANDS["explain"]])
def test_json_is_the_same_everywhere(
    command: tuple[str, ...],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [model if one == "MODEL" else one for one in (*command, "--json")]
    expected = printed(capsys, *arguments)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = printed(capsys, *arguments)
    assert ESCAPE.search(text) is None
    assert json.loads(text).keys() == json.loads(expected).keys()
    assert len(text.splitlines()) == len(expected.splitlines())


def test_stages_are_never_broken(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = printed(capsys, "compile", model, "--emit", "graph")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert printed(capsys, "compile", model, "--emit", "graph") == expected


def test_a_row_is_a_line_in_a_pipe(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "inspect", model)
    assert ESCAPE.search(text) is None
    assert f"  {NAME}  float32[n, 8]  dynamic: n" in text.splitlines()


def test_colours_are_for_who_asks(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = printed(capsys, "inspect", model)
    monkeypatch.setenv("FORCE_COLOR", "1")
    bold = printed(capsys, "inspect", model)
    assert "\x1b[1mInputs\x1b[0m" in bold
    assert ESCAPE.sub("", bold) == plain
    assert COLOUR.search(printed(capsys, "backends"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert COLOUR.search(printed(capsys, "backends")) is None


def test_errors_in_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "nowhere.onnx"]) == 1
    assert capsys.readouterr().err.startswith("graft: error: cannot read 'nowhere.onnx'")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["inspect", "nowhere.onnx"]) == 1
    assert capsys.readouterr().err.startswith("\x1b[1;31mgraft: error:\x1b[0m cannot read")


def test_markup_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    name = "[red]x[/red] :warning: \\[y] https://example.org [link=file:///]z[/link]\x1b[31m"
    print_lines(section(name, [name, *table([(name, "1")], (name, name), right=(1,))]))
    text = ESCAPE.sub("", capsys.readouterr().out)
    assert text.count("[red]x[/red] :warning: \\[y] https://example.org") == 5
    assert "\x1b" not in text
    assert text.count("\\u001b[31m") == 5


def test_too_many_columns_become_records(monkeypatch: pytest.MonkeyPatch) -> None:
    header = ("kernel", "node", "µs", "share", "rate")
    cells = [("conv", "", "1,234.5", "50%", "-"), ("add", "n", "1.0", "1%", "2")]
    rows = table(cells, header, right=(2, 3, 4))
    assert lines_of(rows)[0] == "kernel  node       µs  share  rate"
    monkeypatch.setenv("COLUMNS", "24")
    assert lines_of(rows) == [
        "kernel  conv",
        "µs      1,234.5",
        "share   50%",
        "rate    -",
        "",
        "kernel  add",
        "node    n",
        "µs      1.0",
        "share   1%",
        "rate    2",
    ]


def test_commands_to_copy_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    command = "graft explain models/resnet18.onnx --target simnpu,host"
    assert lines_of([Line(command, wraps=False)]) == [command]
    assert lines_of([f"  {command}"]) == [
        "  graft explain",
        "    models/resnet18.onnx",
        "    --target simnpu,host",
    ]


@pytest.mark.parametrize("columns", ["0", "1", "nonsense"])
def test_widths_that_no_terminal_has(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert lines_of(table([("name", "1")]))[0] == "name  1"


# A terminal of its own for a process.


class Terminal:
    """A process on a terminal, and what it has written so far."""

    def __init__(self, command: list[str], columns: int, **environment: str) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | environment,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        self.text = ""

    def read(self, until: str = "", seconds: float = 60) -> str:
        """What is written up to some text, or to the end."""
        end = time.monotonic() + seconds
        while not (until and until in self.text):
            ready, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            assert ready, f"{until!r} is not in {self.text!r}"
            try:
                received = os.read(self._master, 1 << 16)
            except OSError:  # the other end is closed
                break
            self.text += received.decode().replace("\r\n", "\n")
        return self.text

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def close(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self._master)
        return code


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def on_terminal(arguments: list[str], columns: int, **environment: str) -> str:
    terminal = Terminal([sys.executable, "-m", "graft", *arguments], columns, **environment)
    text = terminal.read()
    assert terminal.close() == 0
    return text


def test_a_terminal_has_colours_and_a_width() -> None:
    text = on_terminal(["backends"], 60)
    assert COLOUR.search(text)
    assert max(map(len, ESCAPE.sub("", text).split("\n"))) <= 60


def test_no_color() -> None:
    assert COLOUR.search(on_terminal(["backends"], 60, NO_COLOR="1")) is None


def test_a_dumb_terminal() -> None:
    assert ESCAPE.search(on_terminal(["backends"], 60, TERM="dumb")) is None


WORKING = """
import sys, time
from graft.base.progress import Stage
from graft.cli import terminal
terminal.QUIET_SECONDS = 0.05
try:
    with terminal.status("working") as tell:
        tell(Stage("step", 1, 2))
        time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


def test_an_interrupt_leaves_the_terminal_as_it_was() -> None:
    terminal = Terminal([sys.executable, "-c", WORKING], 90)
    terminal.read("working: step 1 of 2")
    terminal.press(b"\x03")
    text = terminal.read()
    assert terminal.close() == 0
    assert text.rstrip().endswith("\x1b[2Kstopped")
    assert "\x1b[?25l" not in text  # the cursor was never hidden


def test_progress_in_a_pipe_leaves_standard_output_alone() -> None:
    script = WORKING.replace("time.sleep(60)", "time.sleep(0.5); print('a result')")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "a result\n"
    assert done.stderr == "graft: working: step 1 of 2\n"


def test_a_reader_that_has_gone(model: str) -> None:
    """No traceback, and not the way in which Rich would end."""
    line = f"set -o pipefail; {sys.executable} -m graft inspect {model} | head -c 0"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 141)
