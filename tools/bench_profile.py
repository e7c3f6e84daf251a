#!/usr/bin/env python3
"""Puts what `graft run --profile` prints for two networks into docs/benchmarks.md.

    python tools/bench_profile.py [--threads N] [--write]

Without `--write` the page goes to build/bench/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
from itertools import takewhile

from bench_pages import DOCUMENT, ROOT, add_writing_arguments, chosen_pages

PROFILED = ("resnet50", "mobilenet_v2")
_TITLE = "Profile"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add_writing_arguments(parser)
    options = parser.parse_args()
    pages = chosen_pages(options.write)
    lines: list[str] = []
    for network in PROFILED:
        print(f"  {network}: profiling", flush=True)
        lines += block(network, options.threads)
    pages.replace(DOCUMENT, "profiles", lines)


def block(network: str, threads: int) -> list[str]:
    """A network's profile, folded away on the page."""
    arguments = ["run", f"models/{network}.onnx", "--profile", "--threads", str(threads)]
    done = subprocess.run(
        [sys.executable, "-m", "graft", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    command = " ".join(["graft", *arguments])
    head = ["<details>", f"<summary><code>{command}</code></summary>", "", "```text"]
    return [*head, *profile_section(done.stdout), "```", "", "</details>", ""]


def profile_section(output: str) -> list[str]:
    """The lines below the title, up to the next one, without their indentation."""
    lines = output.splitlines()
    after = lines[lines.index(_TITLE) + 1 :]
    section = takewhile(lambda line: not line or line.startswith(" "), after)
    return textwrap.dedent("\n".join(section)).strip().splitlines()


if __name__ == "__main__":
    main()
