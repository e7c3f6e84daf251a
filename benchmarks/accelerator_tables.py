"""The page and the chart about accelerators: a record of plans in, Markdown and a picture out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.harness import Json, Record
from benchmarks.pages import heading, paragraph, table, text_table
from graft.base.quantities import counted, time_text

PAGE = Path("docs/accelerators.md")
CHART = Path("docs/images/accelerators.png")
_PROVEN = 1e-6
_INK = "#333333"
_SHARES = {"execution": "#1b7f4b", "transfers": "#d3a77e", "launches": "#5b7c9d"}

_INTRO = (
    "See how Graft places quantised networks on four accelerators, separately and together, by"
    " prices that vendors' tools and cycle models declare. **No accelerator was available**:"
    " emulators and reference models validate results, not speed, and this page contains none of"
    " their times. Supported operators and validation are on [the backends'"
    " pages](backends/README.md)."
)
_TOOLS = (
    "A price is the tool's estimate of a region's time on the chip, at the stated clock. The"
    " four differ in kind: a roofline and a processor that never stalls are lower bounds, Vela"
    " estimates, and the array's cycles are exact for a memory that never stalls. A plan over"
    " several of them is optimal at these prices, and no comparison of vendors."
)
_COLUMNS = (
    "*Greedy* offloads every supported node, in regions as large as possible, in the order of the"
    " targets; *plan* is Graft's exact choice. Nodes and MACs are the offloaded shares."
    " Transfers (layout conversions at the border of regions) and launches are"
    " shares of the predicted time. The gap is the solver's bound on the distance to the optimum."
)
_TOGETHER = (
    "The share of each backend in the plans over several accelerators. Regions of these plans were"
    " compiled, run on their emulators and compared with the host. A region that differs by more"
    " than its tolerance is split in two and tried again, so that more regions may pass than were"
    " planned, each with a launch that the predicted times above do not include; a single unit that"
    " fails is demoted to the host."
)
_OTHERS = (
    "ONNX Runtime gives its QNN provider every node that it supports;"
    " [the `qnn` page](backends/qnn.md#partitioning) compares that with the exact choice."
)
_UNITS = (
    "Networks are quantised by `graft quantize --data random --precision int8`, which quantises a"
    " residual sum and the layer before it in one step. Each of these backends runs both as"
    " one unit: `ethosu`, `hexagon` and `fpga` add in 32 bits, `qnn` in 16, at twice the price of"
    " the layer. Layers with float results, such as the heads of SSD-512, are no such units,"
    " and run on the host."
)
_UNREACHED = (
    "Not modelled: concurrent accelerators (regions run one"
    " after the other), and transfers over a bus: these backends share the host's memory, as on"
    " one system on a chip, and only layout conversions on the host are counted. Launches"
    " are counted as far as the backends declare them: 100 µs for"
    " `qnn` and 10 µs for `fpga`, both assumed, nothing for the others, and for each region"
    " the time to wake a sleeping thread (`graft backends --machine`: about 20 µs)."
)


def report_lines(record: Record) -> list[str]:
    """The whole page."""
    rows, tools = record.data["rows"], record.data["tools"]
    prices = ((f"`{name}`", tool) for name, tool in tools.items())
    lines = ["# Accelerators in one plan", "", *paragraph(_INTRO), ""]
    lines += [f"![predicted time with and without accelerators]({CHART.relative_to('docs')})"]
    lines += [*heading("Prices"), *text_table(["backend", "source of prices"], prices), ""]
    lines += paragraph(_TOOLS)
    for slower, group in _by(rows, "slower"):
        lines += [*heading(f"Plans with {_host(slower)}"), *paragraph(_about(slower)), ""]
        lines += _plans(group)
    lines += [
        "",
        *paragraph(_COLUMNS),
        *heading("Placement and validation"),
        *paragraph(_TOGETHER),
        "",
    ]
    together = [row for row in rows if len(row["targets"]) > 1]
    lines += _shares(together)
    lines += ["", *_verdicts(together), *paragraph(_UNITS), "", *paragraph(_OTHERS), ""]
    lines += paragraph(_UNREACHED)
    lines += [*heading("Backends"), "```text"]
    lines += [*record.data["backends"].splitlines(), "```", ""]
    return [*lines, *paragraph(str(record.made))]


def _by(rows: Sequence[Json], field: str) -> Iterator[tuple[float, list[Json]]]:
    ordered = sorted(rows, key=lambda row: float(row[field]))
    for value, group in groupby(ordered, key=lambda row: float(row[field])):
        yield value, list(group)


def _host(slower: float) -> str:
    return "this host" if slower == 1 else f"a host {slower:g} times slower"


def _about(slower: float) -> str:
    if slower == 1:
        return (
            "The host's prices are the measured times of its integer kernels within a run of the"
            " network, on a server's processor, with which none of these chips would be combined."
        )
    return (
        f"The same prices of the host times {slower:g}, memory included. The factor is"
        " assumed: it represents the processor of a small board with such a chip."
    )


def _plans(rows: Sequence[Json]) -> list[str]:
    header = ["network", "on", "host alone", "greedy", "plan", "regions: greedy, plan"]
    header += ["nodes: greedy, plan", "MACs: greedy, plan", "transfers", "launches", "gap"]
    return table(header, map(_plan, rows))


def _plan(row: Json) -> tuple[str, ...]:
    greedy, exact = row["greedy"], row["exact"]

    def both(key: str, form: str) -> str:
        return f"{greedy[key]:{form}}, {exact[key]:{form}}"

    return (
        row["network"],
        " + ".join(row["targets"]),
        *(time_text(one) for one in (row["host_only"], greedy["seconds"], exact["seconds"])),
        both("regions", "d"),
        both("nodes", ".0%"),
        both("macs", ".0%"),
        both("transfers", ".1%"),
        both("launches", ".1%"),
        "proven" if row["gap"] <= _PROVEN else f"{row['gap']:.2%}",
    )


def _shares(rows: Sequence[Json]) -> list[str]:
    header = ["network", "on", "host", "backend", "regions", "nodes", "MACs", "execution"]
    shown = (
        (
            row["network"],
            " + ".join(row["targets"]),
            "measured" if row["slower"] == 1 else f"{row['slower']:g} times slower",
            part["backend"],
            "-" if part["backend"] == "host" else str(part["regions"]),
            f"{part['nodes']} of {row['nodes']}",
            f"{part['macs']:.1%}",
            time_text(part["seconds"]),
        )
        for row in rows
        for part in row["parts"]
    )
    return table(header, shown)


def _verdicts(rows: Sequence[Json]) -> Iterator[str]:
    """How the regions of plans fared when they were checked."""
    for row in rows:
        if not row["exact"]["regions"]:
            continue
        where = f"{row['network']} on {' + '.join(row['targets'])} with {_host(row['slower'])}"
        back = f"; {len(row['demotions'])} demoted to the host: " if row["demotions"] else ""
        reasons = "; ".join(dict.fromkeys(row["demotions"]))
        planned, held = counted(row["exact"]["regions"], "region"), row["checked"]
        yield from paragraph(f"{where}: {planned} planned, {held} passed{back}{reasons}.")
        yield ""


def bars(rows: Sequence[Json]) -> Mapping[str, list[float]]:
    """Of each plan the parts of its predicted time, the host alone being 1."""
    relative = [row["exact"]["seconds"] / row["host_only"] for row in rows]
    result = {
        key: [one * row["exact"][key] for one, row in zip(relative, rows, strict=True)]
        for key in ("transfers", "launches")
    }
    rest = zip(relative, result["transfers"], result["launches"], strict=True)
    return {"execution": [total - sum(others) for total, *others in rest], **result}


def draw(record: Record, path: Path) -> None:
    """A panel for each network: plans with the slower host, greedy ones as marks."""
    from matplotlib.figure import Figure

    slower = max(row["slower"] for row in record.data["rows"])
    rows = [row for row in record.data["rows"] if row["slower"] == slower]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(figsize=(6 * len(networks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(networks), squeeze=False, sharey=True)[0]
    for axes, network in zip(panels, networks, strict=True):
        own = [row for row in rows if row["network"] == network]
        places, bottom = range(len(own)), [0.0] * len(own)
        for name, heights in bars(own).items():
            axes.bar(places, heights, 0.6, bottom, color=_SHARES[name], label=f"plan: {name}")
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        greedy = [row["greedy"]["seconds"] / row["host_only"] for row in own]
        axes.plot(places, greedy, "_", markersize=30, color="#b03030", label="greedy")
        axes.axhline(1.0, color=_INK, linewidth=0.8, linestyle="--")
        labels = ["\n".join(row["targets"]) for row in own]
        axes.set_xticks(places, labels, fontsize=8)
        axes.set_title(f"{network}, with {_host(slower)}", fontsize=11, loc="left", color=_INK)
        axes.tick_params(length=0, colors=_INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_ylim(bottom=0)  # of all panels, and only now: it ends their scaling
    panels[0].set_ylabel("predicted time, host alone = 1", color=_INK)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=150)
