#!/usr/bin/env python3
"""Times build, verify, print, parse, import and every pass on generated graphs that grow tenfold.

    python tools/scaling.py [--write]

Prints a table of seconds; `--write` puts it into docs/benchmarks.md between its markers. The graphs
mix what real ones have: convolutions with batch norm, elementwise chains, shape arithmetic,
transposes that cancel, dead code and repeated subexpressions.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from graft.frontends.onnx.importer import import_model
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.verify import verify
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import optimize

SIZES = (1_000, 10_000, 100_000)
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
START, END = "<!-- scaling: start -->", "<!-- scaling: end -->"


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


def timed(table: dict[str, float], name: str, action: Callable[[], Graph]) -> Graph:
    """Run an action and add its seconds to the table."""
    gc.collect()
    start = time.perf_counter()
    result = action()
    table[name] = table.get(name, 0.0) + time.perf_counter() - start
    return result


def measure(nodes: int) -> dict[str, float]:
    """Seconds per stage for a model of so many nodes."""
    model = generated_model(nodes)
    table: dict[str, float] = {"nodes": len(model.graph.node)}
    graph = timed(table, "import", lambda: import_model(model))
    timed(table, "verify", lambda: verify(graph))
    text = to_text(graph)
    timed(table, "print", lambda: to_text(graph) and graph)
    timed(table, "parse", lambda: from_text(text.text, text.constants))

    def add(report: object, _graph: Graph) -> None:
        name, seconds = getattr(report, "name"), getattr(report, "seconds")  # noqa: B009
        table[name] = table.get(name, 0.0) + seconds

    optimized = optimize(graph, add)
    timed(table, "group_fusion", lambda: group_fusion(optimized))
    return table


def formatted(tables: list[dict[str, float]]) -> str:
    """A Markdown table: one row per stage, one column per size, and microseconds per node."""
    sizes = [int(table["nodes"]) for table in tables]
    lines = [
        "| stage | " + " | ".join(f"{n:,} nodes" for n in sizes) + " | µs per node |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for stage in [name for name in tables[0] if name != "nodes"]:
        seconds = [table[stage] for table in tables]
        per_node = ", ".join(f"{s / n * 1e6:.1f}" for s, n in zip(seconds, sizes, strict=True))
        lines.append(
            f"| {stage} | " + " | ".join(f"{s:.3f} s" for s in seconds) + f" | {per_node} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    arguments = parser.parse_args()
    measure(200)  # warm up
    table = formatted([measure(size) for size in SIZES])
    print(table)
    if arguments.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(START)
        _, _, after = rest.partition(END)
        DOCUMENT.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
