"""Clicks through the page of `graft explain` in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Page, browser, executable
from tests.byoc.explained import STRANGE, explained
from tests.byoc.test_explain_bodies import CONV
from tests.byoc.test_explain_bodies import explained as explained_bodies

from graft.base.names import printable
from graft.byoc.explain import Explanation
from graft.byoc.explain_html import to_html

PROGRAM = executable()

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on the PATH"),
]


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explained()


@pytest.fixture(scope="module")
def page(found: Explanation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(to_html(found), encoding="utf-8")
    assert PROGRAM is not None
    with browser(PROGRAM) as one:
        one.open(file.as_uri())
        yield one
        assert one.problems == []


def test_every_node_and_edge_is_drawn(page: Page, found: Explanation) -> None:
    assert page.value("document.querySelectorAll('.node').length") == len(found.nodes)
    assert page.value("document.querySelectorAll('.edge').length") >= len(found.nodes) - 1
    assert "(simulated)" in page.text("#summary")


def test_a_click_on_a_node_shows_its_prices_and_refusals(page: Page, found: Explanation) -> None:
    for number, node in enumerate(found.nodes):
        page.click(f".node[data-node='{number}']")
        told = page.text("#selection")
        assert printable(node.name) in told
        assert f"runs on {node.backend}" in told
        for refused in node.refusals:
            assert refused.reason in told
        assert told.count("(simulated)") >= sum(
            option.backend == "simnpu" for option in node.alternatives
        )


def test_a_click_on_a_region_highlights_its_nodes(page: Page, found: Explanation) -> None:
    region = found.regions[0]
    page.click(f"[data-region='{region.label}']")
    assert region.label in page.text("#selection")
    assert "launch" in page.text("#selection")
    lit = page.value("[...document.querySelectorAll('.node.lit title')].map(t => t.textContent)")
    assert len(lit) == len(region.nodes)
    assert all(line.endswith(" on simnpu") for line in lit)


def test_names_are_text_whatever_they_hold(page: Page, found: Explanation) -> None:
    number = next(n for n, node in enumerate(found.nodes) if node.name == STRANGE)
    page.click(f".node[data-node='{number}']")
    assert printable(STRANGE) in page.text("#selection")
    assert page.value("document.querySelectorAll('b.injected').length") == 0
    assert page.value("window.injected === undefined")


def test_the_graph_zooms_and_comes_back(page: Page) -> None:
    page.click("#fit")
    before = page.value("document.getElementById('view').getAttribute('transform')")
    page.click("#in")
    assert page.value("document.getElementById('view').getAttribute('transform')") != before
    page.click("#fit")
    assert page.value("document.getElementById('view').getAttribute('transform')") == before


def test_a_search_lights_what_it_finds(page: Page, found: Explanation) -> None:
    page.value(
        "(() => { const box = document.getElementById('search'); box.value = 'RELU';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    count = page.value("document.querySelectorAll('.node.lit').length")
    assert count == sum("relu" in f"{n.name} {n.op}".lower() for n in found.nodes) > 0


@pytest.mark.parametrize("width", [360, 500, 1280])
def test_the_page_fits_its_window(page: Page, found: Explanation, width: int) -> None:
    """Nothing is cut off and the page does not scroll sideways, whatever is selected; tables that
    are wider than their box scroll within it."""
    sizes = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.ask("Emulation.setDeviceMetricsOverride", **sizes)
    root = "document.documentElement"
    for number in range(len(found.nodes)):
        page.value(f"selectNode({number})")
        assert page.value(f"{root}.scrollWidth <= {root}.clientWidth")
        assert page.value(
            "[...document.querySelectorAll('body *')].every(one => one.closest('svg, .scroll')"
            " || one.getBoundingClientRect().right <= innerWidth + 1)"
        )
    assert page.value("document.querySelectorAll('.scroll table').length") == 1
    assert page.value("document.getElementById('summary').getBoundingClientRect().width") > 200
    graph = page.value("document.getElementById('view').getBoundingClientRect().width")
    assert 0 < graph <= width
    page.ask("Emulation.clearDeviceMetricsOverride")


def test_light_and_dark(page: Page) -> None:
    before = page.value("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.value("getComputedStyle(document.body).backgroundColor") != before


def test_nothing_is_fetched_from_elsewhere(page: Page, found: Explanation) -> None:
    assert page.value("performance.getEntriesByType('resource').length") == 0
    text = to_html(found)
    assert "http://www.w3.org/2000/svg" in text
    assert text.count("http") == 1


def test_a_link_to_a_node_opens_it(page: Page, found: Explanation, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(to_html(found), encoding="utf-8")
    page.open(f"{file.as_uri()}#region={found.regions[0].label}")
    assert found.regions[0].label in page.text("#selection")


def test_a_click_on_a_body_highlights_its_nodes(page: Page, tmp_path: Path) -> None:
    found = explained_bodies(CONV, "v=simnpu", "v0=host")
    file = tmp_path / "bodies.html"
    file.write_text(to_html(found), encoding="utf-8")
    page.open(file.as_uri())
    inside = [number for number, node in enumerate(found.nodes) if node.body]
    assert page.value("document.querySelectorAll('.node.inner').length") == len(inside)
    page.click("#bodies .pick")
    assert page.value("document.querySelectorAll('.node.lit').length") == len(inside)
    page.click(f".node[data-node='{inside[0]}']")
    assert "in Loop_1/body, 5 times (known)" in page.text("#selection")
    page.click("[data-region='simnpu_0']")
    assert "5 times (known); times are for all" in page.text("#selection")
