"""Where measured numbers go: a page's name, a marker and text in; the page with that text out.

A page has pairs of comments, `<!-- marker: start -->` and `<!-- marker: end -->`, between which
everything is generated. Without `--write` the project's pages stay as they are, and copies of them
in build/bench/ are changed instead.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graft.cli.usage import positive

ROOT = Path(__file__).resolve().parent.parent
PREVIEW = ROOT / "build" / "bench"
MODELS = ROOT / "models"
DOCUMENT = Path("docs/benchmarks.md")
README = Path("README.md")
CHART = Path("docs/images/benchmarks.png")

NETWORKS = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    "vit_b_16",
)
# Their sizes depend on their data, and images come one by one.
DETECTORS = ("ssd512_mobilenet1.0", "ssd300_resnet34", "faster_rcnn_resnet50")
QUICK_NETWORKS = ("resnet18", "mobilenet_v2")
WIDTH = 100


class PageError(Exception):
    """A page that lacks the place for what is to be written."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The project's pages, or copies of them."""

    folder: Path

    def path(self, name: Path) -> Path:
        """Where a file of the project is, or its copy."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def replace(self, name: Path, marker: str, lines: Iterable[str]) -> None:
        """Put lines between a page's markers."""
        path = self.path(name)
        if not path.exists():
            shutil.copyfile(ROOT / name, path)
        text = replaced(path.read_text(encoding="utf-8"), marker, "\n".join(lines))
        path.write_text(text, encoding="utf-8")


def replaced(text: str, marker: str, new: str) -> str:
    """A page's text with something new between the markers."""
    start, end = (f"<!-- {marker}: {which} -->" for which in ("start", "end"))
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise PageError(f"the page lacks a single pair of {start} and {end}")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{new.strip()}\n{end}{rest.partition(end)[2]}"


def chosen_pages(write: bool) -> Pages:
    """The project's pages if they are to be written, else a place for copies."""
    if write:
        return Pages(ROOT)
    print(f"without --write the pages go to {PREVIEW.relative_to(ROOT)}/")
    return Pages(PREVIEW)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def paragraph(text: str) -> list[str]:
    """Text in lines of a width to read."""
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> list[str]:
    """The same as an item of a list."""
    return textwrap.wrap(
        f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def add_writing_arguments(parser: argparse.ArgumentParser) -> None:
    """What all of these tools take."""
    parser.add_argument("--threads", metavar="N", type=positive, default=2, help="(default 2)")
    parser.add_argument("--write", action="store_true", help="change the project's own pages")


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The same, and what those take that can be told which networks are meant."""
    add_writing_arguments(parser)
    parser.add_argument(
        "--networks",
        metavar="NAMES",
        type=_networks,
        help=f"of {', '.join((*NETWORKS, *DETECTORS))}, separated by commas",
    )
    parser.add_argument(
        "--quick", action="store_true", help="only see whether it works: few runs, few networks"
    )


def parsed(
    parser: argparse.ArgumentParser, networks: tuple[str, ...] = NETWORKS
) -> argparse.Namespace:
    """The options, with the networks that are meant; `networks` are those by default."""
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("numbers of --quick are not worth writing")
    if options.networks is None:
        options.networks = QUICK_NETWORKS if options.quick else networks
    return options


def _networks(names: str) -> tuple[str, ...]:
    chosen = tuple(name.strip() for name in names.split(","))
    for name in chosen:
        if name not in (*NETWORKS, *DETECTORS):
            known = ", ".join((*NETWORKS, *DETECTORS))
            raise argparse.ArgumentTypeError(f"there is no network '{name}'; there are {known}")
    return chosen
