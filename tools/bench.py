#!/usr/bin/env python3
"""Times the networks of models/ beside Graft's peers, and writes tables and a chart.

    python tools/bench.py [--networks NAMES] [--threads N] [--batch N] [--runs N]
                          [--settings NAMES] [--peers NAMES] [--quick] [--write]

What is timed, and how, is `graft bench`'s; each run starts all contenders anew. `--write` puts the
results into docs/benchmarks.md and README.md between their markers, with docs/images/benchmarks.png
beside them; without it all of that goes to build/bench/. Detectors take one image at a time and are
left out of larger batches. `--settings main,strict` gives the table with Graft's default accuracy
and the one with `--accuracy strict` beside it.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import bench_tables
import plot_bench
from bench_pages import (
    CHART,
    DETECTORS,
    DOCUMENT,
    MODELS,
    NETWORKS,
    README,
    Pages,
    add_common_arguments,
    chosen_pages,
    paragraph,
    parsed,
)
from bench_tables import Row, Setting
from graft import __version__
from graft.base.errors import UserError
from graft.cli import bench
from graft.cli.bench_contenders import CONTENDERS, PEERS
from graft.cli.bench_machine import Machine, this_machine
from graft.cli.bench_report import Comparison
from graft.cli.bench_rounds import GRAFT
from graft.cli.report import seconds_text
from graft.cli.usage import positive
from graft.target.target import host_target

USUAL_PEERS = ("onnxruntime", "openvino", "torch")
QUICK_LIMITS = ("--rounds", "3", "--seconds", "5")
LARGE_BATCH = 8
SETTINGS = ("main", "strict", "others")
MAIN, STRICT = "networks", "networks-strict"  # markers of their tables


def main() -> int:
    options = _options()
    machine = this_machine()
    pages = chosen_pages(options.write)
    contenders = (GRAFT, *options.peers)
    for warning in machine.warnings(options.threads):
        print(f"warning: {warning}")
    compared = 0
    for setting in _settings(options):
        print(f"{setting}, {machine}", flush=True)
        networks = _networks(options.networks, setting)
        rows = [_row(network, setting, contenders, options) for network in networks]
        _publish(rows, setting, contenders, machine, pages)
        compared += sum(row.speedup() is not None for row in rows)
    return 0 if compared else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add_common_arguments(parser)
    parser.add_argument("--batch", metavar="N", type=positive, default=1, help="(default 1)")
    parser.add_argument(
        "--runs", metavar="N", type=positive, default=1, help="independent ones (default 1)"
    )
    parser.add_argument(
        "--settings",
        metavar="NAMES",
        type=_setting_names,
        default=("main",),
        help="of main, strict (accuracy), others (1 thread, and a batch of"
        f" {LARGE_BATCH}) and all, separated by commas (default main)",
    )
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        type=lambda names: tuple(name.strip() for name in names.split(",")),
        default=USUAL_PEERS,
        help=f"of {', '.join(PEERS)} (default {','.join(USUAL_PEERS)})",
    )
    options = parsed(parser, (*NETWORKS, *DETECTORS))
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"there is no peer '{unknown[0]}'; there are {', '.join(PEERS)}")
    return options


def _setting_names(text: str) -> tuple[str, ...]:
    """Names of settings, for argparse."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in (*SETTINGS, "all"):
            known = ", ".join((*SETTINGS, "all"))
            raise argparse.ArgumentTypeError(f"there is no setting '{name}'; there are {known}")
    return SETTINGS if "all" in names else names


def _settings(options: argparse.Namespace) -> list[Setting]:
    """Those that are wanted."""
    threads, batch = options.threads, options.batch
    named = {
        "main": (Setting(MAIN, threads, batch),),
        "strict": (Setting(STRICT, threads, batch, accuracy="strict"),),
        "others": (
            Setting("networks-one-thread", 1, batch),
            Setting("networks-batch", threads, LARGE_BATCH),
        ),
    }
    return [one for name in named if name in options.settings for one in named[name]]


def _networks(wanted: Sequence[str], setting: Setting) -> list[str]:
    """Those that can be run in a setting."""
    return [name for name in wanted if setting.batch == 1 or name not in DETECTORS]


def _row(
    network: str, setting: Setting, contenders: Sequence[str], options: argparse.Namespace
) -> Row:
    """All runs of a network, told as they come in."""
    runs = []
    for number in range(1, options.runs + 1):
        print(f"  {network}, run {number} of {options.runs}: ", end="", flush=True)
        path = MODELS / f"{network}.onnx"
        runs.append(compared(path, setting, contenders, options.quick))
        print(_in_short(Row(network, runs[-1:]), contenders), flush=True)
    return Row(network, runs)


def compared(
    path: Path, setting: Setting, contenders: Sequence[str], quick: bool, *more: str
) -> Comparison:
    """One run of `graft bench` on a model, with more of its options."""
    arguments = [str(path), "--threads", str(setting.threads), *(QUICK_LIMITS if quick else ())]
    arguments += ["--accuracy", setting.accuracy, *more]
    if setting.batch != 1:  # the networks' own
        arguments += ["--batch", str(setting.batch)]
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    chosen = [CONTENDERS[name] for name in contenders]
    try:
        return bench.compared(path, chosen, parser.parse_args(arguments), setting.threads)
    except UserError as error:
        return Comparison(path, problem=" ".join(str(error).split()))


def _in_short(row: Row, contenders: Sequence[str]) -> str:
    times = [
        f"{CONTENDERS[name].title} {seconds_text(seconds)}"
        for name in contenders
        if (seconds := row.seconds(name)) is not None
    ]
    speedup = row.speedup()
    result = [] if speedup is None else [f"{speedup:.2f} ×"]
    return "; ".join([*([", ".join(times)] if times else []), *result, *row.problems()])


def _publish(
    rows: Sequence[Row],
    setting: Setting,
    contenders: Sequence[str],
    machine: Machine,
    pages: Pages,
) -> None:
    """Print the table of a setting and write it where it belongs."""
    full = bench_tables.full_table(rows, contenders)
    notes = bench_tables.notes(rows, setting.threads)
    print("\n".join(["", *full, "", *notes, ""]), flush=True)
    is_main = setting.marker == MAIN
    block = [
        f"{setting}, float32. {' '.join(bench_tables.summary(rows))}",
        "",
        *([_image(CHART.relative_to(DOCUMENT.parent)), ""] if is_main else []),
        *full,
        "",
        *([*notes, ""] if notes else []),
        *_provenance(rows, machine),
    ]
    pages.replace(DOCUMENT, setting.marker, block)
    if is_main:
        plot_bench.draw(rows, contenders, str(setting), pages.path(CHART))
        intro = (
            f"{setting}, float32, medians, on {machine} ({host_target().machine.summary}) and"
            f" nowhere else yet; how measured, and what other machines are predicted to do:"
            f" [{DOCUMENT}]({DOCUMENT}), [docs/machine.md](docs/machine.md)."
        )
        short = bench_tables.short_table(rows, contenders)
        pages.replace(README, MAIN, [*paragraph(intro), "", _image(CHART), "", *short])
    if setting.marker == STRICT:
        pages.replace(README, STRICT, paragraph(_strict_sentence(rows)))


def _strict_sentence(rows: Sequence[Row]) -> str:
    """The strict table in a sentence, for the page that has the default one."""
    each = [f"{row.network} {bench_tables.speedup_text(row)}" for row in rows]
    return (
        "With `accuracy=\"strict\"`, which rules out Winograd's and Strassen's algorithms, against"
        f" the best peer: {', '.join(each)}. {' '.join(bench_tables.summary(rows))}"
        f" The [table]({DOCUMENT}#strict-accuracy)."
    )


def _provenance(rows: Sequence[Row], machine: Machine) -> list[str]:
    where = f"{machine}, Python {machine.python}, load average {machine.load:.1f} at the start"
    date = datetime.date.today().isoformat()
    command = shlex.join(["python", "tools/bench.py", *sys.argv[1:]])
    return bench_tables.provenance(where, date, bench_tables.versions(rows, __version__), command)


def _image(path: Path) -> str:
    return f"![Speed of Graft and its peers]({path.as_posix()})"


if __name__ == "__main__":
    sys.exit(main())
