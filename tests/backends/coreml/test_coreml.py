"""ML programs: what a package holds, read back by coremltools, means what the region means.

Core ML runs on macOS alone: nothing here has been run by it."""

from __future__ import annotations

import gc
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from tests.backends.coreml import mil

import graft
from graft.backends.coreml import runtime
from graft.backends.coreml.backend import CoreMl
from graft.backends.coreml.operators import EMITTERS
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.byoc.candidates import find_candidates, placeable
from graft.byoc.contract import Cost, Runner
from graft.byoc.discover import Discovery, backend_named
from graft.byoc.kit.conformance import broken_promises, conformance
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.synthesize import UnbuildableError, synthesize
from graft.byoc.probe import evaluate_nearby, probes, samples
from graft.byoc.tolerance import difference
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.passes.pipeline import optimize
from graft.rewrite.pattern import is_op
from graft.runtime import loaders
from graft.runtime.regions import RegionWarning

if find_spec("coremltools") is None:
    pytest.skip("pip install 'graft-compiler[coreml]'", allow_module_level=True)


class Interpreted(CoreMl):
    """Regions are run by what `mil` says that their packages mean."""

    def missing(self) -> str:
        return ""

    def price(self, region: Graph) -> Cost:
        return Cost(1e-9)

    def load(self, blob: bytes) -> Runner:
        program = mil.read_back(blob)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            with np.errstate(all="ignore"):
                results, _ = mil.evaluate(program, inputs)
            for output, result in zip(outputs, results, strict=True):
                output[...] = result

        return run


COREML = CoreMl()
KINDS = {"fp32": "float32", "fp16": "float16"}


def accepted(graph: Graph) -> bool:
    """Whether the backend takes all of a graph of one node."""
    candidates = find_candidates(graph, [COREML]).candidates
    return any(one.backend == "coreml" for one in candidates)


def check(graph: Graph) -> set[str]:
    """Compare a package with its region; gives the operators that only `mil` knows."""
    program = mil.read_back(COREML.code(graph))
    operations = mil.operations(program)
    nodes = placeable(graph)
    assert len(operations) == len(nodes) + len(graph.outputs)  # an identity names each output
    for op, node in zip(operations, nodes, strict=False):
        (result,) = op.outputs
        assert tuple(result.shape) == node.output.shape
        assert KINDS[result.dtype.__name__] == node.output.dtype
    check_weights(graph, program)
    own: set[str] = set()
    for probe in probes(graph):
        with np.errstate(all="ignore"):
            exact = [np.asarray(item) for item in evaluate(graph, probe.inputs)]
            nearby = evaluate_nearby(graph, probe, exact)
            results, own = mil.evaluate(program, probe.inputs)
        results = [a.astype(b.dtype) for a, b in zip(results, exact, strict=True)]
        assert difference(graph, results, exact, nearby, "the reference's") == ""
    return own


def check_weights(graph: Graph, program: Any) -> None:
    """Every constant of the region is in the package, bit for bit."""
    constants = [op.outputs[0].val for op in program.functions["main"].operations if not op.inputs]
    stored = {np.asarray(value).tobytes() for value in constants if value is not None}
    spread = {value for node in graph.nodes if "layer_norm" in node.op.name for value in node.args}
    for value, array in graph.constants.items():
        assert value in spread or array.array.tobytes() in stored


def examples(name: str, count: int) -> list[Graph]:
    """Graphs of one operator that the backend accepts, of those that the author's kit makes up."""
    graphs: list[Graph] = []
    for number in range(80 * count):
        dtype = DType.FLOAT16 if number % 4 == 3 else None
        try:
            graph = synthesize([is_op(name)], Draw(f"{name} {number}", number % 2 == 0, dtype))
        except UnbuildableError:
            continue
        if accepted(graph):
            graphs.append(graph)
        if len(graphs) == count:
            break
    return graphs


def try_examples(name: str, count: int) -> None:
    graphs = examples(name, count)
    assert len(graphs) == count
    for graph in graphs:
        check(graph)


@pytest.mark.parametrize("name", sorted(EMITTERS))
def test_packages_mean_what_regions_mean(name: str) -> None:
    try_examples(name, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(EMITTERS))
def test_many_packages_mean_what_regions_mean(name: str) -> None:
    try_examples(name, 8)  # a second each; the kit draws others


def test_a_network_as_one_package(models_dir: Path) -> None:
    graph = optimize(import_model(models_dir / "resnet18.onnx"))
    program = mil.read_back(COREML.code(graph))
    check_weights(graph, program)
    data = samples(graph, 1)
    results, own = mil.evaluate(program, data)
    assert own == {"conv", "linear", "max_pool", "reduce_mean"}
    exact = [np.asarray(item) for item in evaluate(graph, data)]
    assert difference(graph, results, exact) == ""


@pytest.mark.parametrize("bounds", [(-1e6, None), (0.5, 1e6), (None, 1e6)])
def test_bounds_beyond_halves(bounds: tuple[float | None, float | None]) -> None:
    """As infinity, and without a warning."""
    build = Builder()
    x = build.input("x", tensor("float16", 3, 5))
    check(build.build(build("clip", x, a_min=bounds[0], a_max=bounds[1])))


def test_a_border_without_a_value_is_of_zeros() -> None:
    build = Builder()
    x = build.input("x", tensor("float16", 3, 5))
    graph = build.build(build("nn.pad", x, pad_width=(0, 1, 2, 0)))
    assert accepted(graph)
    check(graph)


@pytest.mark.parametrize("axes", [None, (0,)])
def test_a_scalar_is_no_result(axes: tuple[int, ...] | None) -> None:
    build = Builder()
    graph = build.build(build("sum", build.input("x", tensor("float32", 3, 5)), axes=axes))
    assert accepted(graph) == (axes is not None)


@pytest.mark.parametrize("columns", [0, 2])
def test_an_empty_constant_is_refused(columns: int) -> None:
    build = Builder()
    x, more = build.input("x", tensor("float32", 3, 5)), np.ones((3, columns), np.float32)
    graph = build.build(build("concatenate", x, build.constant(more), axis=1))
    assert accepted(graph) == bool(columns)


@pytest.mark.parametrize("dilation", [1, 2])
def test_weights_that_are_not_constant(dilation: int) -> None:
    """MIL has convolutions by such, but dilates none of them."""
    build = Builder()
    shapes = (1, 2, 9), (3, 2, 2)
    x, weight = (build.input(f"x{n}", tensor("float32", *one)) for n, one in enumerate(shapes))
    graph = build.build(build("nn.conv1d", x, weight, dilation=(dilation,)))
    assert accepted(graph) == (dilation == 1)
    if dilation == 1:
        check(graph)


@pytest.mark.parametrize("padding", [(0, 0), (1, 0)])
def test_a_result_of_another_shape_is_refused(padding: tuple[int, int]) -> None:
    """MIL has no padding of results, and its operator would leave it out."""
    build = Builder()
    x = build.input("x", tensor("float32", 1, 2, 4, 4))
    weight = build.constant(np.ones((2, 3, 2, 2), np.float32))
    options = {"strides": (2, 2), "output_padding": padding}
    graph = build.build(build("nn.conv2d_transpose", x, weight, **options))
    assert accepted(graph) == (padding == (0, 0))


def test_equal_regions_have_equal_packages(models_dir: Path) -> None:
    (graph,) = examples("nn.conv2d", 1)
    first, second = (zipfile.ZipFile(BytesIO(COREML.code(graph))) for _ in range(2))
    weights = "region.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    assert first.namelist() == second.namelist()
    assert weights not in first.namelist() or first.read(weights) == second.read(weights)


def test_the_backend_keeps_its_promises() -> None:
    assert broken_promises(COREML) == []


@pytest.mark.full
def test_the_authors_kit() -> None:
    conformance(Interpreted()).assert_ok()


@pytest.mark.skipif(sys.platform == "darwin", reason="it runs here")
def test_artifacts_hold_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which say, where they cannot run, that they cannot, and the host stands in if it may."""
    monkeypatch.setattr(CoreMl, "missing", Interpreted.missing)
    monkeypatch.setattr(CoreMl, "price", Interpreted.price)
    monkeypatch.setattr(CoreMl, "load", Interpreted.load)
    text = """
        <ir_version: 10, opset_import: ["": 20]>
        net (float[1, 3, 9, 9] x, float[4, 3, 3, 3] w) => (float[1, 4, 7, 7] y) {
          c = Conv (x, w)
          y = Relu (c)
        }
    """
    model, path = parser.parse_model(text), tmp_path / "net.graft"
    feeds = {"x": np.ones((1, 3, 9, 9), np.float32), "w": np.ones((4, 3, 3, 3), np.float32)}
    options: dict[str, Any] = {"target": "coreml", "pins": ["*=coreml"]}
    graft.compile(model, fallback="error", **options).save(path)
    assert b"region.mlpackage/Data/com.apple.CoreML/model.mlmodel" in path.read_bytes()
    with pytest.raises(UserError, match="cannot run here: Core ML runs on macOS"):
        graft.load(path)
    module = graft.compile(model, **options)
    module.save(path)
    with pytest.warns(RegionWarning, match="'coreml_0' runs on the host: .* on macOS alone"):
        again = graft.load(path)
    np.testing.assert_allclose(again.run(None, feeds)[0], module.run(None, feeds)[0])


@pytest.mark.skipif(sys.platform == "darwin", reason="it runs here")
def test_it_says_that_it_does_not_run_here() -> None:
    with pytest.raises(UserError, match="'coreml' cannot run here: Core ML runs on macOS alone"):
        backend_named("coreml", Discovery({"coreml": COREML}, {"coreml": "a test"}))
    with pytest.raises(UserError, match="Core ML runs on macOS alone"):
        loaders.check_loader(runtime.load, "9.0")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "find_spec", lambda _name: None)
    assert "pip install 'graft-compiler[coreml]'" in COREML.missing()


def test_packages_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """coremltools keeps packages in the folder for temporary files until Python exits, unless it is
    told where to write them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (graph,) = examples("nn.conv2d", 1)
    assert COREML.code(graph)
    gc.collect()  # folders of weights go with the objects that hold them
    assert list(tmp_path.iterdir()) == []
