from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench_pages import (
    DETECTORS,
    DOCUMENT,
    NETWORKS,
    QUICK_NETWORKS,
    README,
    ROOT,
    PageError,
    Pages,
    add_common_arguments,
    item,
    parsed,
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


@pytest.mark.parametrize(
    ("page", "marker"),
    [
        (README, "networks"),
        (README, "networks-strict"),
        (DOCUMENT, "networks"),
        (DOCUMENT, "networks-strict"),
        (DOCUMENT, "networks-one-thread"),
        (DOCUMENT, "networks-batch"),
        (DOCUMENT, "footprint"),
        (DOCUMENT, "profiles"),
    ],
)
def test_pages_have_their_markers(page: Path, marker: str, tmp_path: Path) -> None:
    before = (ROOT / page).read_text(encoding="utf-8")
    Pages(tmp_path).replace(page, marker, ["one", "two"])
    assert f"<!-- {marker}: start -->\none\ntwo\n<!-- {marker}: end -->" in (
        tmp_path / page
    ).read_text(encoding="utf-8")
    assert (ROOT / page).read_text(encoding="utf-8") == before


def test_table_and_item() -> None:
    assert table(["a", "b"], [["x|y", "1"]]) == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]
    lines = item("word " * 40)
    assert lines[0].startswith("- word")
    assert lines[1].startswith("  word")


def options(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr("sys.argv", ["tool", *arguments])
    parser = argparse.ArgumentParser()
    add_common_arguments(parser)
    return parsed(parser)


def test_which_networks_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options([], monkeypatch).networks == NETWORKS
    assert options(["--quick"], monkeypatch).networks == QUICK_NETWORKS
    assert options(["--networks", "vgg19, resnet18"], monkeypatch).networks == (
        "vgg19",
        "resnet18",
    )
    detectors = options(["--networks", ",".join(DETECTORS)], monkeypatch).networks
    assert detectors == DETECTORS
    for network in (*NETWORKS, *DETECTORS):
        assert (ROOT / "models" / f"{network}.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--networks", "alexnet"], "there is no network 'alexnet'"),
        (["--quick", "--write"], "numbers of --quick are not worth writing"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        options(arguments, monkeypatch)
    assert message in capsys.readouterr().err
