"""Times a decoder of words beside ONNX Runtime: sizes in; milliseconds per word out.

Four layers, 384 numbers wide, as decoders are that run on CPUs. A word and the keys and values of
all words before it go in; the next word and longer keys and values come out, so that every run has
sizes that were not there before. The model is written as exporters do, with drawn weights, in
float32 and with the 8-bit weights of ONNX Runtime's dynamic quantiser. The contenders alternate,
each in a process of its own.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.encoder import OPSET, Network
from benchmarks.harness import ONNXRUNTIME, Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from graft import compile
from graft.byoc.measure import WATCH
from graft.cli.options import positive

LAYERS, WIDTH, HEADS, WORDS = 4, 384, 6, 16_000
STEPS = 100
# After which threads of ONNX Runtime's that wait for work have gone to sleep.
REST = 0.1
HEADER = ("decoder", "Graft", "ONNX Runtime", "Graft is faster by")

Run = Callable[[None, Mapping[str, Any]], Sequence[Any]]
Session = Any  # a module, or ONNX Runtime's session: both have `run` and `get_inputs`


@dataclass
class Decoder(Network):
    """An encoder's parts, put together to a decoder with a cache."""

    present: list[str] = field(default_factory=list)

    def recalling(self, data: str, layer: int) -> str:
        """Attention to all words so far."""
        query, key, value = (
            self.apart(self.linear(data, self.width, self.width)) for _ in range(3)
        )
        key = self("Concat", f"past_key{layer}", key, axis=2)
        value = self("Concat", f"past_value{layer}", value, axis=2)
        self.present += [key, value]
        scores = self("MatMul", query, self("Transpose", key, perm=[0, 1, 3, 2]))
        factor = self.constant(np.float32(1 / math.sqrt(self.width // self.heads)))
        chances = self("Softmax", self("Mul", scores, factor), axis=-1)
        together = self("Transpose", self("MatMul", chances, value), perm=[0, 2, 1, 3])
        flat = self("Reshape", together, self.constant(np.array([0, 0, self.width])))
        return self.linear(flat, self.width, self.width)

    def step(self, data: str, layer: int) -> str:
        data = self("Add", self.recalling(self.normal(data), layer), data)
        wide = self.gelu(self.linear(self.normal(data), self.width, 4 * self.width))
        return self("Add", self.linear(wide, 4 * self.width, self.width), data)


def decoder() -> onnx.ModelProto:
    """The model: any batch, any number of words before."""
    network = Decoder(WIDTH, HEADS)
    data = network("Gather", network.drawn(WORDS, WIDTH, scale=0.05), "word")
    for layer in range(LAYERS):
        data = network.step(data, layer)
    last = network.drawn(WIDTH, WORDS, scale=0.05)
    chances = network("MatMul", network.normal(data), last)
    describe, each = helper.make_tensor_value_info, WIDTH // HEADS
    inputs = [describe("word", TensorProto.INT64, ["batch", 1])]
    inputs += [
        describe(f"past_{kind}{layer}", TensorProto.FLOAT, ["batch", HEADS, "past", each])
        for layer in range(LAYERS)
        for kind in ("key", "value")
    ]
    outputs = [describe(chances, TensorProto.FLOAT, ["batch", 1, WORDS])]
    outputs += [
        describe(name, TensorProto.FLOAT, ["batch", HEADS, "past + 1", each])
        for name in network.present
    ]
    graph = helper.make_graph(network.nodes, "decoder", inputs, outputs, network.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def written(run: Run, names: Sequence[str], other: Run | None = None) -> float:
    """Write `STEPS` words, from an empty cache; by how much another one's numbers
    differ on the way, beside the largest of them."""
    cache = [np.zeros((1, HEADS, 0, WIDTH // HEADS), np.float32)] * (2 * LAYERS)
    word, error = np.array([[1]]), 0.0
    for _ in range(STEPS):
        feeds = dict(zip(names, [word, *cache], strict=True))
        chances, *cache = run(None, feeds)
        if other is not None:
            apart = np.abs(chances - other(None, feeds)[0]).max()
            error = max(error, float(apart / np.abs(chances).max()))
        word = chances[:, -1:].argmax(-1)
    return error


def load_graft(path: Path, threads: int) -> Session:
    return compile(path, threads=threads, strict=True)


def load_onnxruntime(path: Path, threads: int) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


LOADERS = (load_graft, load_onnxruntime)


def difference(path: Path, threads: int) -> float:
    """How far the contenders' numbers are apart."""
    own, peer = (load(path, threads) for load in LOADERS)
    return written(peer.run, input_names(own), own.run)


def input_names(session: Session) -> list[str]:
    return [one.name for one in session.get_inputs()]


def serve(pipe: Connection, load: Callable[[Path, int], Session], path: Path, threads: int) -> None:
    """Send the seconds per word whenever they are asked for."""
    session = load(path, threads)
    names = input_names(session)
    written(session.run, names)
    WATCH.wait()
    pipe.send(0.0)
    while pipe.recv():
        start = time.perf_counter()
        written(session.run, names)
        pipe.send((time.perf_counter() - start) / STEPS)


def timed(path: Path, threads: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Seconds per word and round, of Graft and of ONNX Runtime, and how far they are apart."""
    context, pipes = get_context("spawn"), list[Connection]()
    for load in LOADERS:
        own, other = context.Pipe()
        context.Process(target=serve, args=(other, load, path, threads), daemon=True).start()
        own.recv()  # it is ready
        pipes.append(own)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for pipe, seconds in zip(pipes, times, strict=True):
            time.sleep(REST)
            pipe.send(True)
            seconds.append(pipe.recv())
    for pipe in pipes:
        pipe.send(False)
    return *times, difference(path, threads)


def compared(own: Sequence[float], other: Sequence[float], error: float) -> Json:
    """Medians of the rounds, and of their ratios, with the least and the greatest of these."""
    ratios = np.divide(other, own)
    return {
        "rounds": len(own),
        "graft": float(np.median(own)),
        "onnxruntime": float(np.median(other)),
        "speedup": [float(one) for one in (ratios.min(), np.median(ratios), ratios.max())],
        "error": error,
    }


def row(name: str, result: Json) -> list[str]:
    times = [f"{result[contender] * 1e3:.2f} ms" for contender in ("graft", "onnxruntime")]
    least, middle, greatest = result["speedup"]
    return [name, *times, f"{middle:.2f} × ({least:.2f} to {greatest:.2f})"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", metavar="N", type=positive, default=9, help="(default 9)")


def measure(options: argparse.Namespace) -> Json:
    """By decoder, seconds per word, and how far the results are apart."""
    logging.getLogger().setLevel(logging.ERROR)  # the quantiser gives advice
    rounds = 1 if options.quick else options.rounds
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        plain, narrow = Path(folder) / "decoder.onnx", Path(folder) / "decoder8.onnx"
        onnx.save(decoder(), plain)
        quantize_dynamic(plain, narrow, weight_type=QuantType.QInt8)
        for name, path in (("float32", plain), ("8-bit weights", narrow)):
            results[name] = compared(*timed(path, options.threads, rounds))
            print(*table(HEADER, [row(name, results[name])])[2:], flush=True)
    return results


def sections(record: Record) -> Iterator[Section]:
    rows = [row(name, result) for name, result in record.data.items()]
    rounds = min(result["rounds"] for result in record.data.values())
    errors = [
        f"numbers differ by at most {result['error']:.0e} of the largest ({name})"
        for name, result in record.data.items()
    ]
    where = (
        f"Medians of {rounds} rounds of {STEPS} words, least and greatest ratio;"
        f" {'; '.join(errors)}. {record.made}"
    )
    yield Section(DOCUMENT, "decoder", [*table(HEADER, rows), "", *paragraph(where)])


BENCHMARKS = (Benchmark("decoder", measure, sections, add_arguments, ONNXRUNTIME),)
