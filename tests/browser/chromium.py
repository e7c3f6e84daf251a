"""A headless browser for tests: pages in, clicks and what they lead to out.

Chromium is told what to do through a pair of pipes, in JSON with a zero byte after each message, so
that nothing but the browser itself is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # needless for a page of our own, and refused in many containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1500,900",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """The browser on this machine, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One page, driven through the browser's own protocol."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []  # errors that scripts raised
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.ask("Page.enable")
        self.ask("Runtime.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            received = os.read(self._answers, 1 << 16)
            assert received, "the browser has ended"
            self._received += received
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))
        return message

    def open(self, address: str) -> None:
        """Load a page and wait for it."""
        self.ask("Page.navigate", url=address)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, script: str) -> Any:
        """What a piece of JavaScript comes to."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What a person reads in an element."""
        found: str = self.value(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element."""
        box = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoViewIfNeeded();"
            " const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """A running browser with an empty page."""
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()

    def as_the_browser_expects() -> None:  # it reads from 3 and writes to 4
        os.dup2(read_commands, 100)
        os.dup2(write_answers, 101)
        os.dup2(100, 3)
        os.dup2(101, 4)

    with tempfile.TemporaryDirectory(prefix="graft-browser-") as folder:
        process = subprocess.Popen(
            [program, *_SWITCHES, f"--user-data-dir={Path(folder) / 'profile'}"],
            preexec_fn=as_the_browser_expects,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            page = Page(commands, answers)
            yield page
            page.ask("Target.getTargets")
        finally:
            os.close(commands)
            process.terminate()
            process.wait(timeout=20)
            os.close(answers)
