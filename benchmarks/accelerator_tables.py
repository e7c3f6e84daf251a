"""The page and the chart about accelerators: a record of plans in, Markdown and a picture out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.harness import Json, Record
from benchmarks.pages import heading, paragraph, table, text_table
from graft.cli.report import counted, seconds_text

PAGE = Path("docs/accelerators.md")
CHART = Path("docs/images/accelerators.png")
_PROVEN = 1e-6
_INK = "#333333"
_SHARES = {"execution": "#1b7f4b", "transfers": "#d3a77e", "launches": "#5b7c9d"}

_INTRO = (
    "Quantised networks on four accelerators, each by itself and all in one plan, by prices that"
    " vendors' tools and cycle models declare. **No accelerator was there**: emulators and"
    " reference models prove what regions compute, never how fast, and no time of theirs is on"
    " this page. What each backend takes, and how it was checked, is on [its own"
    " page](backends/README.md)."
)
_TOOLS = (
    "A price is what the tool says that a region takes on the chip, at the stated clock. Prices of"
    " the four are of different kinds: a roofline and a processor that never stalls are lower"
    " bounds, Vela estimates, and the array's cycles are exact for a memory that never waits. A"
    " plan over several of them is the best at these prices, and no comparison of vendors."
)
_COLUMNS = (
    "*Greedy* gives accelerators all that they take, in regions as large as possible, the first"
    " named before the next; *plan* is Graft's exact choice. Nodes and MACs are the shares that are"
    " off the host. Transfers (rearranging tensors at the border of regions) and launches are"
    " shares of the predicted time. The gap is what the prover leaves between the plan and the"
    " best that there may be."
)
_TOGETHER = (
    "What each backend has of the plans over several accelerators; regions of these plans were"
    " compiled, run on their emulators and compared with the host. A region that differs by more"
    " than its tolerance is cut in two and tried again, so that more may hold than were planned,"
    " each with a launch that the predicted times above do not have; what fails as a single unit"
    " goes back to the host."
)
_OTHERS = (
    "ONNX Runtime gives its QNN provider all that this takes. A Q/DQ model of which it makes four"
    " regions, and the exact choice two, is on [that backend's page](backends/qnn.md#partitioning)."
)
_UNITS = (
    "Networks are quantised by `graft quantize --data random --precision int8`, which quantises a"
    " residual sum and the layer before it in one step. Every one of these backends takes both as"
    " one unit: `ethosu`, `hexagon` and `fpga` add in 32 bits, `qnn` in 16, at twice the price of"
    " the layer. Layers whose results stay floats, as the heads of SSD-512 do, are no such units,"
    " and the host runs them."
)
_UNREACHED = (
    "Not reached: plans whose chips work at the same time (regions run one"
    " after the other), and transfers over a bus: these backends share the host's memory, as on"
    " one system on a chip, and what is counted is the rearranging of tensors on the host. Calls"
    " from the host to the chip are counted as far as the backends declare them: 100 µs for"
    " `qnn` and 10 µs for `fpga`, both assumed, nothing for the others, and for each region"
    " what it takes to wake a sleeping thread (`graft backends --machine`: about 20 µs)."
)


def report_lines(record: Record) -> list[str]:
    """The whole page."""
    rows, tools = record.data["rows"], record.data["tools"]
    prices = ((f"`{name}`", tool) for name, tool in tools.items())
    lines = ["# Accelerators in one plan", "", *paragraph(_INTRO), ""]
    lines += [f"![predicted time beside the host's]({CHART.relative_to('docs')})"]
    lines += [*heading("Prices"), *text_table(["backend", "prices are"], prices), ""]
    lines += paragraph(_TOOLS)
    for slower, group in _by(rows, "slower"):
        lines += [*heading(f"Beside {_host(slower)}"), *paragraph(_about(slower)), ""]
        lines += _plans(group)
    lines += ["", *paragraph(_COLUMNS), *heading("Who has what"), *paragraph(_TOGETHER), ""]
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
    return "this machine" if slower == 1 else f"a host {slower:g} times slower"


def _about(slower: float) -> str:
    if slower == 1:
        return (
            "The host's prices are measured, when a network is first placed: what its integer"
            " kernels take within a run of the network on a server's processor, which none of these"
            " chips would stand beside."
        )
    return (
        f"The same prices of the host times {slower:g}, its memory's included. The factor is"
        " assumed: it stands for the processor of a small board, beside which such chips are built."
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
        *(seconds_text(one) for one in (row["host_only"], greedy["seconds"], exact["seconds"])),
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
            seconds_text(part["seconds"]),
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
        where = f"{row['network']} on {' + '.join(row['targets'])} beside {_host(row['slower'])}"
        back = f"; {len(row['demotions'])} went back to the host: " if row["demotions"] else ""
        reasons = "; ".join(dict.fromkeys(row["demotions"]))
        planned, held = counted(row["exact"]["regions"], "region"), row["checked"]
        yield from paragraph(f"{where}: {planned} planned, {held} held{back}{reasons}.")
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
    """A panel for each network: plans beside the slower host, greedy ones as marks."""
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
        axes.set_title(f"{network}, beside {_host(slower)}", fontsize=11, loc="left", color=_INK)
        axes.tick_params(length=0, colors=_INK)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_ylim(bottom=0)  # of all panels, and only now: it ends their scaling
    panels[0].set_ylabel("predicted time, host alone = 1", color=_INK)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=150)
