"""Pages that are generated in part, and the options and records of all benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.__main__ import MODULES, benchmark_named, main
from benchmarks.harness import DETECTORS, NETWORKS, QUICK_NETWORKS, Record, chosen_networks
from benchmarks.pages import (
    DOCUMENT,
    RESULTS,
    ROOT,
    PageError,
    Pages,
    between,
    item,
    replaced,
    table,
)

PAGE = "a\n<!-- x: start -->\nold\n<!-- x: end -->\nb\n<!-- y: start -->\n<!-- y: end -->\n"


def test_text_goes_between_its_own_markers() -> None:
    once = replaced(PAGE, "x", "new\nlines\n\n")
    assert once == PAGE.replace("old", "new\nlines")
    assert replaced(once, "x", "old") == PAGE
    assert "<!-- y: start -->\n1\n<!-- y: end -->" in replaced(PAGE, "y", "1")


@pytest.mark.parametrize(
    "page",
    ["", "<!-- x: start -->", "<!-- x: end --><!-- x: start -->", PAGE + PAGE],
)
def test_a_page_without_a_place_is_an_error(page: str) -> None:
    with pytest.raises(PageError, match="a single pair of <!-- x: start -->"):
        replaced(page, "x", "new")


RECORDED = [name for name in MODULES if (ROOT / RESULTS / f"{name}.json").exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_pages_are_what_their_records_render(name: str) -> None:
    record = Record.from_json((ROOT / RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for section in benchmark_named(name).sections(record):
        page = (ROOT / section.page).read_text(encoding="utf-8")
        written = between(page, section.marker) if section.marker else page.strip()
        rendered = "\n".join(section.lines).strip()
        assert written == rendered, f"run `python -m benchmarks {name} --pages-only`"


def test_every_record_has_its_benchmark() -> None:
    assert {path.stem for path in (ROOT / RESULTS).iterdir()} <= MODULES.keys()


def test_records_last() -> None:
    text = (ROOT / RESULTS / f"{RECORDED[0]}.json").read_text(encoding="utf-8")
    assert Record.from_json(text).to_json() == text


def test_a_copy_of_a_page(tmp_path: Path) -> None:
    before = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    Pages(tmp_path).replace(DOCUMENT, "networks", ["one", "two"])
    copied = (tmp_path / DOCUMENT).read_text(encoding="utf-8")
    assert between(copied, "networks") == "one\ntwo"
    assert (ROOT / DOCUMENT).read_text(encoding="utf-8") == before


def test_a_copy_of_an_older_page_is_copied_again(tmp_path: Path) -> None:
    copy = Pages(tmp_path).path(DOCUMENT)
    copy.write_text("a page without markers\n")
    os.utime(copy, (0, 0))
    Pages(tmp_path).replace(DOCUMENT, "networks", ["one"])
    Pages(tmp_path).replace(DOCUMENT, "loc", ["two"])
    text = copy.read_text(encoding="utf-8")
    assert (between(text, "networks"), between(text, "loc")) == ("one", "two")


def test_table_and_item() -> None:
    assert table(["a", "b"], [["x|y", "1"]]) == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]
    lines = item("word " * 40)
    assert lines[0].startswith("- word")
    assert lines[1].startswith("  word")


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_has_options(name: str) -> None:
    options = benchmark_named(name).options(["--quick"])
    assert options.threads >= 1


def test_which_networks_are_meant() -> None:
    benchmark = benchmark_named("networks")
    assert chosen_networks(benchmark.options([])) == NETWORKS
    assert chosen_networks(benchmark.options(["--quick"])) == list(QUICK_NETWORKS)
    named = benchmark.options(["--networks", "vgg19, resnet18"])
    assert chosen_networks(named) == ("vgg19", "resnet18")
    for network in (*NETWORKS, *DETECTORS):
        assert (ROOT / "models" / f"{network}.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["networks", "--networks", "alexnet"], "there is no network 'alexnet'"),
        (["networks", "--quick", "--write"], "numbers of --quick are not worth writing"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_unknown_benchmarks_are_refused() -> None:
    with pytest.raises(SystemExit, match="there is no benchmark 'nothing'"):
        main(["nothing"])
