"""Times small models, whose kernels take less than the way to them, beside ONNX Runtime.

Each contender has a process of its own for each model and round, with one thread; processes follow
one another. A figure is the median over all blocks of runs in all rounds, in microseconds per run:
of `module.run(None, feeds)`, of what `module.bind(feeds)` returns, and of ONNX Runtime's
`session.run(None, feeds)`. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graft
from benchmarks.harness import ONNXRUNTIME, Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, ROOT, paragraph, table
from graft.base.dtypes import Array
from graft.cli.options import positive

CONTENDERS = ("graft", "onnxruntime")
ROUNDS, BLOCKS, BLOCK_SECONDS = 3, 15, 0.02
TIMED = ("graft", "bound", "onnxruntime")
HEADER = ("model", "`run`, µs", "bound, µs", "ONNX Runtime, µs", "`run` against it")
RANDOM = np.random.default_rng(0)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]
Argument = tuple[str, int, Shape]


@dataclass(frozen=True, slots=True)
class Small:
    """A model and what it is fed with."""

    model: onnx.ModelProto
    feeds: dict[str, Array]


def _numbers(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _small(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    weights: dict[str, Array],
    feeds: dict[str, Array],
) -> Small:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*output) for output in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return Small(helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds)


def _ml(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, domain="ai.onnx.ml", **attributes)


def add() -> Small:
    return _small(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", FLOAT, [4])],
        [("y", FLOAT, [4])],
        {"w": _numbers(4)},
        {"x": _numbers(4)},
    )


def scaler() -> Small:
    offset, scale = _numbers(2, 8).tolist()
    return _small(
        [_ml("Scaler", ["x"], ["y"], offset=offset, scale=scale)],
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, ["batch", 8])],
        {},
        {"x": _numbers(1, 8)},
    )


def linear_regression() -> Small:
    coefficients = _numbers(10).tolist()
    return _small(
        [_ml("LinearRegressor", ["x"], ["y"], coefficients=coefficients, intercepts=[0.5])],
        [("x", FLOAT, ["batch", 10])],
        [("y", FLOAT, ["batch", 1])],
        {},
        {"x": _numbers(1, 10)},
    )


def logistic_regression() -> Small:
    classifier = _ml(
        "LinearClassifier",
        ["x"],
        ["label", "scores"],
        coefficients=_numbers(12).tolist(),
        intercepts=_numbers(3).tolist(),
        classlabels_ints=[0, 1, 2],
        post_transform="LOGISTIC",
    )
    return _small(
        [classifier, _ml("Normalizer", ["scores"], ["probabilities"], norm="L1")],
        [("x", FLOAT, ["batch", 4])],
        [("label", INT64, ["batch"]), ("probabilities", FLOAT, ["batch", 3])],
        {},
        {"x": _numbers(1, 4)},
    )


def trees(count: int = 10, depth: int = 4, features: int = 8) -> Small:
    """Complete trees, nodes numbered level by level."""
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    leaves = range(inner, total)
    nodes = [(tree, node) for tree in range(count) for node in range(total)]
    ends = [(tree, node) for tree in range(count) for node in leaves]
    node = _ml(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        n_targets=1,
        nodes_treeids=[tree for tree, _ in nodes],
        nodes_nodeids=[node for _, node in nodes],
        nodes_featureids=RANDOM.integers(0, features, len(nodes)).tolist(),
        nodes_values=_numbers(len(nodes)).tolist(),
        nodes_modes=["BRANCH_LEQ" if node < inner else "LEAF" for _, node in nodes],
        nodes_truenodeids=[2 * node + 1 if node < inner else 0 for _, node in nodes],
        nodes_falsenodeids=[2 * node + 2 if node < inner else 0 for _, node in nodes],
        target_treeids=[tree for tree, _ in ends],
        target_nodeids=[node for _, node in ends],
        target_ids=[0] * len(ends),
        target_weights=_numbers(len(ends)).tolist(),
    )
    return _small(
        [node],
        [("x", FLOAT, ["batch", features])],
        [("y", FLOAT, ["batch", 1])],
        {},
        {"x": _numbers(1, features)},
    )


def mlp() -> Small:
    return _small(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["a"]),
            helper.make_node("Gemm", ["a", "w2", "b2"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 32])],
        [("y", FLOAT, ["batch", 32])],
        {"w1": _numbers(32, 32), "b1": _numbers(32), "w2": _numbers(32, 32), "b2": _numbers(32)},
        {"x": _numbers(1, 32)},
    )


def convolution() -> Small:
    return _small(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["a"]),
            helper.make_node("GlobalAveragePool", ["a"], ["y"]),
        ],
        [("x", FLOAT, [1, 3, 8, 8])],
        [("y", FLOAT, [1, 8, 1, 1])],
        {"w": _numbers(8, 3, 3, 3), "b": _numbers(8)},
        {"x": _numbers(1, 3, 8, 8)},
    )


def softmax() -> Small:
    return _small(
        [helper.make_node("Softmax", ["x"], ["y"])],
        [("x", FLOAT, [1, 100])],
        [("y", FLOAT, [1, 100])],
        {},
        {"x": _numbers(1, 100)},
    )


def lstm_step() -> Small:
    states: list[Argument] = [(name, FLOAT, [1, 1, 32]) for name in ("h", "c")]
    after: list[Argument] = [(name, FLOAT, [1, 1, 32]) for name in ("h_after", "c_after")]
    return _small(
        [
            helper.make_node(
                "LSTM",
                ["x", "w", "r", "b", "", "h", "c"],
                ["", "h_after", "c_after"],
                hidden_size=32,
            )
        ],
        [("x", FLOAT, [1, 1, 16]), *states],
        after,
        {"w": _numbers(1, 128, 16), "r": _numbers(1, 128, 32), "b": _numbers(1, 256)},
        {"x": _numbers(1, 1, 16), "h": _numbers(1, 1, 32), "c": _numbers(1, 1, 32)},
    )


def embedding() -> Small:
    return _small(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [("ids", INT64, ["length"])],
        [("y", FLOAT, ["length", 16])],
        {"table": _numbers(1000, 16)},
        {"ids": np.array([3, 999, 0, 41])},
    )


MODELS: dict[str, Callable[[], Small]] = {
    one.__name__: one
    for one in (
        add,
        scaler,
        linear_regression,
        logistic_regression,
        trees,
        mlp,
        convolution,
        softmax,
        lstm_step,
        embedding,
    )
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=1)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME")
    parser.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N")


def measure(options: argparse.Namespace) -> Json:
    """By model, microseconds by what was timed."""
    figures = {}
    for name in options.models:
        figures[name] = _figures(name, 1 if options.quick else options.rounds)
        print("  ".join(_row(name, figures[name])), flush=True)
    return figures


def sections(record: Record) -> Iterator[Section]:
    ratios = [one["onnxruntime"] / one["graft"] for one in record.data.values()]
    rows = [_row(name, figures) for name, figures in record.data.items()]
    where = f"Geometric mean: {geometric_mean(ratios):.1f} ×. {record.made}"
    yield Section(DOCUMENT, "small-models", [*table(HEADER, rows), "", *paragraph(where)])


def _row(name: str, figures: dict[str, float]) -> list[str]:
    micros = [f"{figures[one]:.1f}" for one in TIMED]
    ratio = figures["onnxruntime"] / figures["graft"]
    return [name.replace("_", " "), *micros, f"{ratio:.1f} ×"]


def _figures(name: str, rounds: int) -> dict[str, float]:
    """Medians over all rounds, by what was timed."""
    figures, results = measured(["benchmarks.small_models", name], rounds)
    for own, peer in zip(results["graft"], results["onnxruntime"], strict=True):
        np.testing.assert_allclose(own, peer, rtol=1e-4, atol=1e-5, err_msg=name)
    return figures


def measured(
    module: Sequence[str], rounds: int
) -> tuple[dict[str, float], dict[str, Sequence[Any]]]:
    """Microseconds per run by what was timed, and results by contender: medians over all rounds of
    a module that prints what `process` gives, called with its arguments and a contender."""
    blocks: dict[str, list[float]] = {}
    results: dict[str, Sequence[Any]] = {}
    for _ in range(rounds):
        for contender in CONTENDERS:
            command = [sys.executable, "-m", *module, contender]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            answer = json.loads(done.stdout)
            results[contender] = answer.pop("results")
            for timed, seconds in answer.items():
                blocks.setdefault(timed, []).extend(seconds)
    return {timed: median(seconds) * 1e6 for timed, seconds in blocks.items()}, results


def process(contender: str, small: Small) -> dict[str, Any]:
    """What a process of its own measures: seconds per run in each block, and the results."""
    feeds = small.feeds
    if contender == "graft":
        module = graft.compile(small.model, threads=1)
        results = module.run(None, feeds)
        seconds = {
            "graft": _blocks(lambda: module.run(None, feeds)),
            "bound": _blocks(module.bind(feeds)),
        }
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            small.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, feeds)
        seconds = {"onnxruntime": _blocks(lambda: session.run(None, feeds))}
    return {**seconds, "results": [np.asarray(result).tolist() for result in results]}


def _blocks(run: Callable[[], object]) -> list[float]:
    """Seconds per run, block by block; the first block, which is not counted, tells how many."""
    count, seconds = 1, 0.0
    while seconds < BLOCK_SECONDS:
        count *= 2
        seconds = _block(run, count)
    return [_block(run, count) / count for _ in range(BLOCKS)]


def _block(run: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - begin


BENCHMARKS = (Benchmark("small-models", measure, sections, add_arguments, ONNXRUNTIME),)

if __name__ == "__main__":  # a process of its own
    print(json.dumps(process(sys.argv[2], MODELS[sys.argv[1]]())))
