"""What all tests share: golden files, the models, and how many examples hypothesis tries."""

from __future__ import annotations

import difflib
import os
import re
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.combinations import leave_to_full_runs

os.environ.pop("COLUMNS", None)  # which pytest-xdist sets; reports would fit that width
os.environ["GRAFT_CALIBRATE"] = "0"  # kernels of tests follow from the table on every machine

from graft.backends.host import executable
from graft.byoc import measure
from graft.cli import terminal
from graft.llvm import pool
from graft.runtime import frames

ROOT = Path(__file__).resolve().parent.parent

Golden = Callable[[str, str], None]

ONNX_CASES = "tests/conformance/test_onnx_cases.py::test_case["
LISTED = ROOT / "tests" / "conformance" / "not_passed.toml"

# A short run tries the same few examples every time, so that it never fails by chance; a full run
# explores, and prints what is needed to see a failure again. Some tests have numbers of their own,
# see `examples.py`.
settings.register_profile(
    "short",
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "full",
    max_examples=2_000,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests produce into their golden files instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    marked_full = re.search(r"(?<!\bnot )\bfull\b", config.option.markexpr) is not None
    full = marked_full or os.environ.get("GRAFT_FULL") == "1"
    settings.load_profile("full" if full else "short")
    # The programs of tests are small, and what is to be tested is how threads share their work.
    frames.sharing_work = wraps(frames.sharing_work)(lambda _: (-(1 << 40), 0))
    # What things take here says nothing, so nobody waits for a quiet moment, or measures for long.
    measure.WATCH.patience, measure.BUDGET, measure.RACE_BUDGET = 0.0, 0.03, 0.05
    executable._PROFILE_SECONDS = 0.05
    # Jobs in the background ignore Ctrl-C, and so would the processes that tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests look at what commands say, however slow the machine is at the moment.
    terminal.QUIET_SECONDS = threading.TIMEOUT_MAX
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The other processors run tests, too: processes to compile in would only cost their start.
        pytest.MonkeyPatch().setattr(pool, "available_processors", lambda: 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_full_runs(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What came of ONNX's own cases, where they ran."""
    found = {
        outcome: [
            report.nodeid.partition("[")[2].rstrip("]")
            for report in terminalreporter.stats.get(outcome, [])
            if report.nodeid.startswith(ONNX_CASES) and report.when == "call"
        ]
        for outcome in ("passed", "failed")
    }
    if any(found.values()):
        groups = tomllib.loads(LISTED.read_text(encoding="utf-8"))["group"]
        names = {name for group in groups for name in group["cases"]}
        listed = sum(name in names for name in found["passed"])
        terminalreporter.write_line(
            f"ONNX's cases: {len(found['passed']) - listed} passed, {listed} listed with the reason"
            f" why they do not pass, {len(found['failed'])} failed"
        )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares text with golden/<name>.txt beside the requesting test file."""
    folder = request.path.parent / "golden"
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if not path.is_file():
            pytest.fail(f"{shown} does not exist; --update-golden writes it", pytrace=False)
        expected = path.read_bytes().decode("utf-8")
        if text != expected:
            lines = expected.split("\n"), text.split("\n")
            diff = difflib.unified_diff(*lines, str(shown), "this run", lineterm="")
            message = f"{shown} differs; --update-golden accepts the new text"
            pytest.fail("\n".join([message, *diff]), pytrace=False)

    return compare


@pytest.fixture
def one_core() -> Iterator[None]:
    """Processes that a test starts have one core: they do not wait for both to be free, as those do
    that time something, while other tests keep them busy."""
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The directory of the model skeletons."""
    return ROOT / "models"
