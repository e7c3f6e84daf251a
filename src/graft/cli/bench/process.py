"""The parent's end of a contender's process: commands in, answers out, failures explained.

A process runs only during a command; otherwise it is stopped (SIGSTOP) with all its threads and
children, so that it takes no time from others. If it dies, or does not answer in time, a
`ContenderError` gives the reason. No process outlives its parent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from graft.cli.bench.rounds import ContenderError

# Each of the libraries that have threads listens to one of these.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TVM_NUM_THREADS",
)

_COMMAND = (sys.executable, "-P", "-m", "graft.cli.bench.worker")
_CHUNK = 1 << 16
_LONGEST_LOG_LINE = 200
# How long a process may take to end once it has closed its output.
_ENDING_SECONDS = 10.0


class Worker:
    """A process that runs only during `ask`."""

    def __init__(self, log: Path, threads: int) -> None:
        self._log = log
        self._received = b""
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # a group of its own, out of reach of the terminal
            )

    def ask(self, command: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a command, within so many seconds."""
        self._signal(signal.SIGCONT)
        self._send(command)
        answer: dict[str, Any] = json.loads(self._line(time.monotonic() + seconds, seconds))
        self._signal(signal.SIGSTOP)
        if not answer["ok"]:
            raise ContenderError(answer["reason"], hint=answer["hint"])
        return answer

    def close(self) -> None:
        """Kill the process and its children, unless they have ended."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _line(self, deadline: float, seconds: float) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._received:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], left)[0]:
                self.close()
                raise ContenderError(f"no answer within {seconds:.0f} s")
            chunk = os.read(output, _CHUNK)
            if not chunk:
                raise self._ended()
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ended(self) -> ContenderError:
        """Why the process has ended, as far as is known."""
        deadline = time.monotonic() + _ENDING_SECONDS
        # Not reaped yet, so that its process number is not reused before `close`.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.waitid(os.P_PID, self._process.pid, flags) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.close()
        code = self._process.returncode
        cause = f"ended with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        last = self._last_words()
        return ContenderError(f"its process {cause}{': ' if last else ''}{last}")

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((one.strip() for one in reversed(lines) if one.strip()), "")[:_LONGEST_LOG_LINE]

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"
    return f"a signal ({signal.strsignal(number) or number})"
