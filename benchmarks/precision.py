"""Quantises float networks by Graft, ONNX Runtime and NNCF, and times all results in one run.

    make .venv-bench/.stamp
    .venv-bench/bin/python -m benchmarks precision [--networks NAMES] [--resume] --write

Of each network: Graft with every unit in 8 bits, and with `auto` within 5 % and 1 % of error; ONNX
Runtime's static quantiser; NNCF's, run by OpenVINO; and the float model in all three. All
calibrate on the same random images. Errors are relative ones of the outputs, on images that none
has seen, each in its own runtime; detectors' outputs cannot be compared, but their heads can. All
contenders of a network are timed alternately, each in a process of its own, as `graft bench` does.

Every finished network is kept in build/quantized/precision.json at once: after an interruption
`--resume` measures the rest. `--networks` measures some again and keeps what is recorded of others.
`--errors-only` times nothing. A result of `auto` that is slower than float or over its budget, on
the samples of `graft quantize` or on the others, makes the run a failure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import (
    DETECTORS,
    NETWORKS,
    ONNXRUNTIME,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
)
from benchmarks.network_tables import MISSING, Setting
from benchmarks.pages import DOCUMENT, item, paragraph, table
from benchmarks.precision_files import (
    PEER_FILES,
    SAMPLES,
    graft_file,
    quantized_by_graft,
    runner,
    unseen,
)
from benchmarks.precision_heads import HeadNames
from benchmarks.quantized import FOLDER, float_file
from graft.base.quantities import time_text
from graft.byoc.cores import Watch
from graft.cli.arrays import write_data
from graft.cli.bench.command import prepare_contender
from graft.cli.bench.contenders import CONTENDERS
from graft.cli.bench.rounds import GRAFT, Limits, Slice, summarize
from graft.cli.bench.rounds import measure as run_rounds
from graft.quantize.confidence import OutputError
from graft.target.target import HOST

BUDGETS = {"graft-5%": 0.05, "graft-1%": 0.01}
# By contender of Graft's, the options of `graft quantize` that make its file.
GRAFT_OPTIONS = {
    "graft-int8": ["--precision", "int8"],
    **{name: ["--budget", str(budget)] for name, budget in BUDGETS.items()},
}
PEERS_INT8 = ("onnxruntime-int8", "openvino-int8")
CHECKED = 16  # images that errors are measured on
SECONDS = 45.0  # of timing a network
PARTIAL = FOLDER / "precision.json"
GUIDE = Path("docs/quantization.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser)
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run finished")
    parser.add_argument("--errors-only", action="store_true", help="time nothing")
    parser.add_argument("--seconds", metavar="S", type=float, default=SECONDS, help="per network")


def measure(options: argparse.Namespace) -> Json:
    return resumable_rows(options, PARTIAL, _row, _tables)


def resumable_rows(
    options: argparse.Namespace,
    partial: Path,
    measure_row: Callable[[str, argparse.Namespace], Json],
    tables: Callable[[list[Json]], list[str]],
) -> Json:
    """Measure network by network. Each that is finished is kept in the file `partial` at once."""
    networks = chosen_networks(options, (*NETWORKS, *DETECTORS))
    rows = dict(json.loads(partial.read_text(encoding="utf-8"))) if partial.exists() else {}
    if not options.resume:
        rows = {name: row for name, row in rows.items() if name not in networks}
    for position, network in enumerate(networks):
        if network in rows:
            say(f"{network}: kept from an earlier run")
            continue
        say(f"{network} ({position + 1} of {len(networks)})")
        rows[network] = measure_row(network, options)
        partial.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        print("\n".join(tables([rows[network]])), flush=True)
    return [rows[network] for network in networks]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _row(network: str, options: argparse.Namespace) -> Json:
    """All that is measured of a network; what a contender cannot do is said in words."""
    row = empty_row(network)
    files: dict[str, Path] = {GRAFT: float_file(network)}
    for name, arguments in GRAFT_OPTIONS.items():
        say(f"  graft quantize {' '.join(arguments)}")
        with said(row, name):
            report = quantized_by_graft(network, arguments, name, options.threads)
            row["reports"][name] = recorded(report)
            files[name] = graft_file(network, name)
    for name, make in PEER_FILES.items():
        say(f"  file of {name}")
        with said(row, name):
            files[name] = make(network)
    add_errors(row, files, (*GRAFT_OPTIONS, *PEERS_INT8))
    if not options.errors_only:
        add_times(row, files, options)
    return row


def empty_row(network: str) -> Json:
    return {"network": network, "reports": {}, "errors": {}, "problems": {}, "timing": {}}


def recorded(report: Json) -> Json:
    """Of the report of `graft quantize`, what the tables and promises are made from."""
    units = [{key: unit[key] for key in ("name", "precision")} for unit in report["units"]]
    return {**{key: report[key] for key in ("quality", "seconds", "float_seconds")}, "units": units}


@contextmanager
def said(row: Json, name: str) -> Iterator[None]:
    """Note what goes wrong with a contender, and go on with the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (of any peer)
        row["problems"][name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        say(f"    {name}: {row['problems'][name]}")


def add_errors(
    row: Json, files: Mapping[str, Path], names: Sequence[str], machine: str = HOST
) -> None:
    """The relative error of some files' outputs, or detectors' heads, each in its own runtime;
    Graft's code is for the `machine`."""
    heads = HeadNames.of(files[GRAFT]) if row["network"] in DETECTORS else HeadNames()
    run = runner("onnxruntime", heads.observed(files[GRAFT]))
    known = [(feeds, run(feeds)) for feeds in unseen(row["network"], CHECKED)]
    samples = [({**feeds, **heads.choices(results)}, results) for feeds, results in known]
    for name in names:
        if name in files:
            say(f"  error of {name}")
            with said(row, name):
                error = OutputError()
                run = runner(name, heads.compared(files[name], samples[0][0]), machine)
                for feeds, exact in samples:
                    outputs = run(feeds)
                    error.add(exact[: len(outputs)], outputs)
                row["errors"][name] = error.relative if math.isfinite(error.relative) else None


def add_times(
    row: Json,
    files: Mapping[str, Path],
    options: argparse.Namespace,
    asked: Mapping[str, str] | None = None,
    environment: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext(),
) -> None:
    """Time all files in turns, each in a process of its own, started in its `environment`; `asked`
    is what `graft.compile` is asked."""
    feeds = next(unseen(row["network"], 1))
    described = [
        (name, write_data(FOLDER, f"{row['network']}-input", x)) for name, x in feeds.items()
    ]
    with tempfile.TemporaryDirectory(prefix="graft-precision-") as folder, ExitStack() as workers:
        ready = {}
        for name, path in files.items():
            say(f"  preparing {name}")
            kind = name.partition("-")[0]
            contender = replace(CONTENDERS[kind], name=name)
            task: Json = {"function": contender.function, "model": str(path), "feeds": described}
            task |= {"threads": options.threads, "asked": dict(asked or {})}
            with said(row, name), environment(kind):
                ready[name] = prepare_contender(contender, task, Path(folder), workers).run
        say(f"  timing {len(ready)} contenders")
        limits, watch = Limits(200, options.seconds), Watch(options.threads, options.seconds)
        result = run_rounds(ready, limits, Slice(3, 0.2, 1.0), watch)
    for name, error in result.failures.items():
        row["problems"][name] = error.message
    for name in result.rounds[0]:
        ratio = result.ratio(name, GRAFT)
        row["timing"][name] = {
            "seconds": summarize(result.times(name)).median,
            "to_float": [ratio.value, ratio.low, ratio.high],
        }


def merge(earlier: Json, new: Json) -> Json:
    """The new rows in the place of earlier ones of the same networks."""
    rows = {row["network"]: row for row in (*earlier, *new)}
    return [rows[name] for name in (*NETWORKS, *DETECTORS) if name in rows]


def problems(data: Json, budgets: Mapping[str, float] = BUDGETS) -> list[str]:
    """Promises that were not kept, here or where `graft quantize` itself has measured them."""
    found = []
    for row in data:
        for name, budget in budgets.items():
            report = row["reports"].get(name)
            if report is None:
                found.append(f"{row['network']}: {name} failed: {row['problems'][name]}")
                continue
            if max(report["quality"]["error"], row["errors"].get(name) or 0.0) > budget:
                found.append(f"{row['network']}: {name} is over its budget")
            if report["seconds"] > report["float_seconds"]:
                found.append(f"{row['network']}: {name} is slower than float")
    return found


def sections(record: Record) -> Iterator[Section]:
    rows = record.data
    intro = (
        f"{Setting().described(record.made.threads)}; all calibrated on {SAMPLES} random images,"
        f" errors on {CHECKED} others (detectors: at their heads)."
    )
    made = paragraph(str(record.made))
    yield Section(DOCUMENT, "precision", [*paragraph(intro), "", *_tables(rows), "", *made])
    short = paragraph(f"Made on {record.made.date} on {record.made.machine}.")
    yield Section(GUIDE, "precision", [*_summary(rows), "", *short])


def _summary(rows: list[Json]) -> list[str]:
    """Of each network, what Graft alone gives: errors, and times in relation to float."""
    titles = ("error", "speedup")
    header = ["network", "units", *(f"{TITLES[n]}: {one}" for n in GRAFT_OPTIONS for one in titles)]
    lines = []
    for row in rows:
        cells = [row["network"], _unit_count(row)]
        for name in GRAFT_OPTIONS:
            time_ratio = row["timing"].get(name, {}).get("to_float")
            cells.append(error_cell(row, name))
            cells.append(MISSING if time_ratio is None else f"{1 / time_ratio[0]:.2f} ×")
        lines.append(cells)
    return table(header, lines)


def _unit_count(row: Json) -> str:
    reports = row["reports"]
    return str(len(reports["graft-int8"]["units"])) if "graft-int8" in reports else MISSING


def error_cell(row: Json, name: str) -> str:
    """The error on unseen images or, in records without it, on those that `graft quantize` had set
    aside."""
    error = row["errors"].get(name)
    if error is None and name in row["reports"]:
        error = row["reports"][name]["quality"]["error"]
    return MISSING if error is None else f"{error:.2%}"


def _tables(rows: list[Json]) -> list[str]:
    """Errors and units, then times where there are some, then notes."""
    lines = table(
        [
            *("network", "units", "error: Graft int8", "ONNX Runtime int8", "NNCF int8"),
            *("Graft auto, 5 %", "its units", "Graft auto, 1 %", "its units"),
        ],
        [_error_cells(row) for row in rows],
    )
    if any(row["timing"] for row in rows):
        timed = [row for row in rows if row["timing"]]
        titles = ["network", *(TITLES[name] for name in TITLES), *AGAINST]
        lines += [
            "",
            *table(titles, [_time_cells(row) for row in timed]),
            "",
            *means(timed, AGAINST),
        ]
    return lines + notes(rows)


def notes(rows: list[Json]) -> list[str]:
    """What contenders could not do, in words."""
    return [
        line
        for row in rows
        for name, problem in row["problems"].items()
        for line in item(f"{row['network']}, {name}: {problem}")
    ]


TITLES = {
    GRAFT: "Graft float",
    "graft-int8": "Graft int8",
    "graft-5%": "Graft auto, 5 %",
    "graft-1%": "Graft auto, 1 %",
    "onnxruntime": "ONNX Runtime float",
    "onnxruntime-int8": "its int8",
    "openvino": "OpenVINO float",
    "openvino-int8": "NNCF int8",
}
# Times over Graft's: of whom, and which of Graft's.
AGAINST = {
    "best float peer / auto, 5 %": (("onnxruntime", "openvino"), "graft-5%"),
    "ONNX Runtime int8 / Graft int8": (("onnxruntime-int8",), "graft-int8"),
    "NNCF int8 / Graft int8": (("openvino-int8",), "graft-int8"),
}


def _error_cells(row: Json) -> list[str]:
    cells = [row["network"], _unit_count(row)]
    for name in ("graft-int8", *PEERS_INT8, *BUDGETS):
        cells.append(error_cell(row, name))
        if name in BUDGETS:
            cells.append(units_cell(row, name))
    return cells


def units_cell(row: Json, name: str) -> str:
    """How many units have which precision."""
    units = row["reports"].get(name, {}).get("units", ())
    counts = Counter(unit["precision"] for unit in units).most_common()
    return ", ".join(f"{count} {kind}" for kind, count in counts) or MISSING


def _time_cells(row: Json) -> list[str]:
    return [row["network"], *times_and_ratios(row, TITLES, AGAINST)]


def times_and_ratios(
    row: Json, names: Iterable[str], pairs: Mapping[str, tuple[Sequence[str], str]]
) -> Iterator[str]:
    """Cells with times of contenders, and with those of some peers over Graft's."""
    timing = row["timing"]
    for name in names:
        yield time_text(timing[name]["seconds"]) if name in timing else MISSING
    for pair in pairs.values():
        ratio = against(row, *pair)
        yield MISSING if ratio is None else f"{ratio:.2f} ×"


def against(row: Json, peers: Sequence[str], ours: str) -> float | None:
    """The time of the fastest of some peers over one of Graft's."""
    timing = row["timing"]
    theirs = [timing[name]["to_float"][0] for name in peers if name in timing]
    return min(theirs) / timing[ours]["to_float"][0] if theirs and ours in timing else None


def means(rows: list[Json], pairs: Mapping[str, tuple[Sequence[str], str]]) -> list[str]:
    """Geometric means over networks of times over Graft's, by title."""
    texts = []
    for title, pair in pairs.items():
        ratios = [one for row in rows if (one := against(row, *pair)) is not None]
        if ratios:
            mean = math.prod(ratios) ** (1 / len(ratios))
            texts.append(f"{title} {mean:.2f} × (least {min(ratios):.2f})")
    return paragraph(f"Geometric means: {'; '.join(texts)}.")


BENCHMARKS = (
    Benchmark(
        "precision",
        measure,
        sections,
        add_arguments,
        {**ONNXRUNTIME, "openvino": "OpenVINO", "nncf": "NNCF"},
        merge=merge,
        problems=problems,
    ),
)
