"""The stages of compilation: each made from the one before, each printable."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import onnx
import pytest
from onnx import parser

import graft
from graft.byoc.contract import Backend, PatternTable
from graft.byoc.discover import find_backends, own_backend
from graft.byoc.executable import Accuracy, Settings
from graft.byoc.plan import parse_plan
from graft.compiler import compile_options
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.rewrite.pattern import is_op
from graft.stages import Imported, import_graph, link, lower, optimize, place

X = np.float32([[-1, 2, 3, -4], [5, -6, 7, 8]])


def model(rows: str = "2") -> onnx.ModelProto:
    return parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[{rows}, 4] x) => (float[{rows}, 4] y) {{
            unused = Sqrt (x)
            r = Relu (x)
            y = Exp (r)
        }}
    """)


@pytest.mark.parametrize("target", ["host", "reference"])
@pytest.mark.parametrize("rows", ["2", "n"])
def test_from_a_model_to_a_program(target: str, rows: str) -> None:
    options = compile_options(target)
    imported = import_graph(model(rows))
    optimized = optimize(imported)
    placed = place(optimized, options)
    lowered = lower(placed, options)
    linked = link(lowered)
    for stage in (imported, optimized, placed, lowered):
        from_text(str(stage), {})
    assert len(optimized.graph.nodes) == 2
    assert [one.name for one in optimized.passes if one.changed]
    (result,) = linked.executable([X])
    np.testing.assert_allclose(np.asarray(result), np.exp(X.clip(0)), rtol=1e-6)
    assert bool(linked.executable.reference_nodes) == (target == "reference")
    assert bool(lowered.lowering.kernels("loops")) == ("segment" in str(linked))
    assert ("segment" in str(linked)) == (target == "host")
    with pytest.raises(FrozenInstanceError):
        placed.plan = None  # type: ignore[misc]


def test_placed_graphs_print_their_plan() -> None:
    options = compile_options(["simnpu", "host"], pins=["r=simnpu"])
    placed = place(optimize(import_graph(model())), options)
    assert placed.plan is not None
    assert parse_plan(str(placed)).regions == placed.plan.regions
    assert [name for name, _ in placed.regions] == ["simnpu"]
    assert to_text(placed.outlined).text.count("= region(") == 1
    lowered = lower(placed, options)
    assert lowered.offloaded is not None
    assert [one.label for one in link(lowered).compiled] == ["simnpu_0"]


def test_compiling_goes_on_from_any_early_stage() -> None:
    imported = import_graph(model())
    for stage in (imported, imported.graph, optimize(imported)):
        (result,) = graft.compile(stage).run(None, {"x": X})
        np.testing.assert_allclose(result, np.exp(X.clip(0)), rtol=1e-6)


def test_sizes_can_be_bound() -> None:
    bound = optimize(import_graph(model("n"))).bind({"n": 3})
    assert bound.graph.inputs[0].shape == (3, 4)


def test_settings_reach_the_host() -> None:
    settings = Settings(1, "aarch64", Accuracy.STRICT)
    host = compile_options("host", settings).host
    assert dict(host.options) == {"accuracy": "strict", "machine": "aarch64"}
    with pytest.raises(graft.UserError, match="machine='aarch64' is for native code"):
        compile_options("reference", settings)


class Small(Backend):
    """All that a backend needs, if it does not load."""

    name = "small"

    def patterns(self) -> PatternTable:
        return [("relu", is_op("nn.relu"))]


def test_most_backends_build_no_programs() -> None:
    backend, graph = Small(), optimize(import_graph(model())).graph
    assert backend.configured(Settings(threads=2)) is backend
    assert backend.time_groups(graph, [X]) == {}
    assert backend.machine_key == "cpu"
    with pytest.raises(graft.UserError, match="'small' runs regions, and builds no programs"):
        backend.lower(graph)
    host = own_backend("host")
    executable = host.lower(graph).build()
    with pytest.raises(graft.UserError, match="'small' has no variants"):
        backend.specialize(executable, ["n"], {(2,): executable})


def test_own_backends_are_found_as_all_others_are() -> None:
    known = find_backends().backends
    for name in ("host", "reference", "simnpu"):
        assert type(own_backend(name)) is type(known[name])


def test_the_stages_of_a_graph_begin_with_it() -> None:
    graph = import_graph(model()).graph
    assert import_graph(graph).graph is Imported(graph).graph is graph
