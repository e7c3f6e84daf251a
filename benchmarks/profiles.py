"""Records what `graft run --profile` prints for two networks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import takewhile

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, ROOT

PROFILED = ("resnet50", "mobilenet_v2")
_TITLE = "Profile"


def measure(options: argparse.Namespace) -> Json:
    """Commands, and the lines that each of them prints."""
    commands = (
        ["run", f"models/{network}.onnx", "--profile", "--threads", str(options.threads)]
        for network in PROFILED
    )
    return {" ".join(["graft", *arguments]): profiled(arguments) for arguments in commands}


def profiled(arguments: list[str]) -> list[str]:
    """The lines of a profile."""
    done = subprocess.run(
        [sys.executable, "-m", "graft", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return profile_section(done.stdout)


def profile_section(output: str) -> list[str]:
    """The lines below the title, up to the next one, without their indentation."""
    lines = output.splitlines()
    after = lines[lines.index(_TITLE) + 1 :]
    section = takewhile(lambda line: not line or line.startswith(" "), after)
    return textwrap.dedent("\n".join(section)).strip().splitlines()


def sections(record: Record) -> Iterator[Section]:
    """The profiles, folded away on the page."""
    lines = []
    for command, profile in record.data.items():
        head = ["<details>", f"<summary><code>{command}</code></summary>", "", "```text"]
        lines += [*head, *profile, "```", "", "</details>", ""]
    yield Section(DOCUMENT, "profiles", lines)


BENCHMARKS = (Benchmark("profiles", measure, sections),)
