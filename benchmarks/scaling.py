"""Times import, verify, print, parse and every pass on generated graphs that grow tenfold.

The graphs mix what real ones have: convolutions with batch norm, elementwise chains, shape
arithmetic, transposes that cancel, dead code and repeated subexpressions.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize

SIZES = (1_000, 10_000, 100_000)


def generated_model(nodes: int) -> onnx.ModelProto:
    """A model of about so many ONNX nodes: blocks of twenty, one after the other."""
    weights = {
        "w": np.full((8, 8, 1, 1), 0.1, np.float32),
        "scale": np.ones(8, np.float32),
        "zero": np.zeros(8, np.float32),
        "half": np.array(0.5, np.float32),
        "first": np.array([0], np.int64),
        "rest": np.array([-1, 8, 4, 4], np.int64),
        "axis": np.array(1, np.int64),
    }
    made: list[onnx.NodeProto] = []
    current = "x"
    for block in range(max(1, nodes // 20)):
        current = _block(made, current, block)
    graph = helper.make_graph(
        made,
        "generated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 4, 4])],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, [1, 8, 4, 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _block(made: list[onnx.NodeProto], source: str, block: int) -> str:
    def node(kind: str, inputs: list[str], result: str, **attributes: object) -> str:
        name = f"b{block}/{result}"
        made.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    conv = node("Conv", [source, "w"], "conv")
    norm = node("BatchNormalization", [conv, "scale", "zero", "zero", "scale"], "norm")
    relu = node("Relu", [norm], "relu")
    shape = node("Shape", [relu], "shape")
    channels = node("Gather", [shape, "axis"], "channels", axis=0)
    wide = node("Unsqueeze", [channels, "first"], "wide")
    target = node("Concat", [wide, wide], "target", axis=0)
    node("Cast", [target], "dead", to=TensorProto.FLOAT)
    turned = node("Transpose", [relu], "turned", perm=[0, 2, 3, 1])
    bounded = node("Tanh", [turned], "bounded")
    back = node("Transpose", [bounded], "back", perm=[0, 3, 1, 2])
    once = node("Mul", [back, "half"], "once")
    again = node("Mul", [back, "half"], "again")
    total = node("Add", [once, again], "total")
    flat = node("Reshape", [total, "rest"], "flat")
    same = node("Identity", [flat], "same")
    negative = node("Neg", [same], "negative")
    positive = node("Neg", [negative], "positive")
    soft = node("Sigmoid", [positive], "soft")
    return node("Add", [soft, source], "sum")


def timed(seconds: dict[str, float], name: str, action: Callable[[], Graph]) -> Graph:
    """Run an action and add its seconds to those of its name."""
    gc.collect()
    start = time.perf_counter()
    result = action()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    return result


def stage_seconds(nodes: int) -> dict[str, float]:
    """Seconds per stage for a model of so many nodes."""
    model = generated_model(nodes)
    seconds: dict[str, float] = {"nodes": len(model.graph.node)}
    graph = timed(seconds, "import", lambda: import_model(model))
    timed(seconds, "verify", lambda: verify(graph))
    text = to_text(graph)
    timed(seconds, "print", lambda: to_text(graph) and graph)
    timed(seconds, "parse", lambda: from_text(text.text, text.constants))

    def add(report: object, _graph: Graph) -> None:
        name, spent = getattr(report, "name"), getattr(report, "seconds")  # noqa: B009
        seconds[name] = seconds.get(name, 0.0) + spent

    optimized = optimize(graph, add)
    timed(seconds, "group_fusion", lambda: group_fusion(optimized))
    return seconds


def measure(options: argparse.Namespace) -> Json:
    """Seconds per stage, by size."""
    stage_seconds(200)  # warm up
    return [stage_seconds(size) for size in (SIZES[:1] if options.quick else SIZES)]


def sections(record: Record) -> Iterator[Section]:
    lines = [*stage_table(record.data), "", *paragraph(str(record.made))]
    yield Section(DOCUMENT, "scaling", lines)


def stage_table(columns: Sequence[Mapping[str, float]]) -> list[str]:
    """One row per stage, one column per size, and microseconds per node."""
    sizes = [int(column["nodes"]) for column in columns]
    rows = []
    for stage in [name for name in columns[0] if name != "nodes"]:
        seconds = [column[stage] for column in columns]
        per_node = [f"{one / n * 1e6:.1f}" for one, n in zip(seconds, sizes, strict=True)]
        rows.append([stage, *(f"{second:.3f} s" for second in seconds), ", ".join(per_node)])
    return table(["stage", *(f"{n:,} nodes" for n in sizes), "µs per node"], rows)


BENCHMARKS = (Benchmark("scaling", measure, sections),)
