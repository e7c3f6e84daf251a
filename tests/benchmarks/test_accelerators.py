"""The page about accelerators, from a record that was made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.accelerator_tables import bars, report_lines
from benchmarks.harness import Made, Record
from tests.byoc.fakes import Fake, conv_relu

from benchmarks import accelerators
from graft.byoc.contract import HOST_BACKEND, Cost, Source
from graft.byoc.discover import own_backend
from graft.byoc.partition import PartitionOptions, partition
from graft.byoc.price import Pricing
from graft.rewrite.pattern import is_op, wildcard

MADE = Made("2026-01-01", "a machine", None, 2, {"Graft": "0"}, "python -m benchmarks accelerators")


def scheme(regions: int, seconds: float) -> dict[str, Any]:
    shares = {"nodes": 0.75, "macs": 0.5, "transfers": 0.125, "launches": 0.25}
    return {"regions": regions, "seconds": seconds, **shares}


def row(*targets: str, slower: float = 1.0, **others: Any) -> dict[str, Any]:
    part = {"backend": "a", "nodes": 3, "macs": 0.5, "regions": 2, "seconds": 0.001}
    fields = {"network": "net", "targets": targets, "slower": slower, "nodes": 4}
    fields |= {"host_only": 0.008, "greedy": scheme(5, 0.016), "exact": scheme(2, 0.004)}
    fields |= {"gap": 0.0, "parts": [part], "checked": None, "demotions": []}
    return {**fields, **others}


def record(*rows: dict[str, Any]) -> Record:
    tools = {"a": "a tool at 500 MHz", "b": "a model at 1 GHz"}
    return Record(MADE, {"tools": tools, "backends": "name  available", "rows": list(rows)})


def test_the_page_has_all_that_was_recorded() -> None:
    demoted = {"checked": 3, "demotions": ["b: it differs", "b: it differs"], "gap": 0.02}
    lines = report_lines(record(row("a"), row("a", "b", slower=30.0, **demoted)))
    text = " ".join(lines)
    assert "| `a` | a tool at 500 MHz |" in lines
    one = "| net | a | 8 ms | 16 ms | 4 ms | 5, 2 | 75%, 75% | 50%, 50% |"
    assert f"{one} 12.5%, 12.5% | 25.0%, 25.0% | proven |" in lines
    assert any("| net | a + b | 8 ms |" in line and line.endswith("| 2.00% |") for line in lines)
    assert "| net | a + b | 30 times slower | a | 2 | 3 of 4 | 50.0% | 1 ms |" in lines
    assert "2 regions planned, 3 passed; 2 demoted to the host: b: it differs." in text
    assert "net on a beside" not in text  # plans over one are not checked
    assert "name  available" in lines
    assert "No accelerator was available" in text


def test_bars_add_up_to_the_time_beside_the_hosts() -> None:
    parts = bars([row("a")])
    assert parts["transfers"] == [pytest.approx(0.0625)]
    assert sum(one for (one,) in parts.values()) == pytest.approx(0.5)


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    accelerators.draw(record(row("a"), row("a", "b")), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_networks_that_were_not_placed_stay() -> None:
    old = record(row("a", network="resnet18"), row("b", network="mobilenet_v2")).data
    new = record(row("c", network="mobilenet_v2")).data
    merged = accelerators.merge(old, new)["rows"]
    assert [one["targets"] for one in merged] == [("a",), ("c",)]


def test_a_scheme_of_a_placement() -> None:
    host = own_backend(HOST_BACKEND)
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    layer = is_op("nn.relu")(is_op("nn.bias_add")(conv, wildcard()))
    backend = Fake(patterns=[("layer", layer)], price=lambda _region: Cost(1e-9))
    times = {"relu": Cost(1.0, Source.MEASURED)}
    found = partition(conv_relu(), [backend], Pricing(host, times), PartitionOptions())
    scheme_ = accelerators.scheme_of(found, found.choice)
    assert 0 < scheme_.launches < 1
    assert scheme_.regions == 1
    assert scheme_.macs == 1.0
