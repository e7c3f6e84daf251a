"""Models whose every name is an attack: what a stranger may write into an ONNX file."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MARK = "INJECTED"  # begins a line of the output only where a name broke the line
MARK_FILE = "injected-by-a-name"  # made only where a name is executed

_TOUCH = f"touch {MARK_FILE}"

# One attack each, by what it would take.
NAMES = {
    "comment": f'y */ int system(const char *); system("{_TOUCH}"); /*',
    "function": f'y */ }} __attribute__((constructor)) void f(void) {{ system("{_TOUCH}"); /*',
    "line comment": f'y\\\n{MARK}(); system("{_TOUCH}");',
    "trigraph": "y ??/",
    "quotes": "\"; ' `" + _TOUCH + "` $(" + _TOUCH + ") '; \"",
    "newline": f"y\n{MARK}: all is well\n  {MARK}\r{MARK}",
    "llvm": f"y\n{MARK} = call i32 @system()\n; ",
    "asm": f"y\n.{MARK}\n{MARK}: ; #",
    "plan": f"y\nregion csource 1 measured\n  {MARK}",
    "ansi": "y\x1b[31m\x1b]0;title\x07\x1b[2J\x9b31m\x7f\x08\x08",
    "script": f"</script><script>{MARK}()</script><img src=x onerror='{MARK}()'>",
    "path": "../../../outside",
    "absolute": "/tmp/../tmp/outside/..",
    "hidden": "..",
    "option": "-rf *",
    "nul": f"y\0{MARK}",
    "long": "long_" * 20_000,
    "bidi": "y\u202e\u2066kcatta\u2069\u200f\u2028\u2029\u00ad\ufeff\U000e0041",
    "format": "%s%n{0}{x!r}{{}}@DATA@@TITLE@${HOME}",
    "markdown": "| y | [x](javascript:alert(1)) `|",
    "python": f"__import__('os').system('{_TOUCH}')",
}


def static_model(path: Path) -> Path:
    """Rows in, rows out: operators that `csource` and the host both take, in a graph with as many
    values as there are names, every other text of the model hostile, too."""
    names = cycle(NAMES.values())
    x, y, weight, *values = (next(names) for _ in NAMES)
    nodes = [helper.make_node("Add", [x, y], [values[0]], name=next(names))]
    kinds = ("Relu", "Neg", "Tanh", "Exp", "Sigmoid", "Abs")
    for number, value in enumerate(values[1:-2]):
        kind = kinds[number % len(kinds)]
        nodes.append(helper.make_node(kind, [values[number]], [value], name=next(names)))
    last, results = values[-3], values[-2:]
    nodes.append(helper.make_node("MatMul", [last, weight], [results[0]], name=next(names)))
    nodes.append(helper.make_node("Softmax", [last], [results[1]], name=next(names), axis=-1))
    files = [NAMES[kind] for kind in ("path", "absolute", "hidden", "option", "nul", "long")]
    info, row = helper.make_tensor_value_info, [3, 7]
    graph = helper.make_graph(
        nodes,
        NAMES["comment"],
        [info(name, TensorProto.FLOAT, row) for name in (x, y)],
        [
            info(results[0], TensorProto.FLOAT, [3, 5]),
            *(info(name, TensorProto.FLOAT, row) for name in (results[1], *files)),
        ],
        [numpy_helper.from_array(np.full((7, 5), 0.25, np.float32), weight)],
        doc_string=NAMES["newline"],
    )
    return _saved(graph, path)


def dynamic_model(path: Path) -> Path:
    """Extents with hostile names, of which one is found by the data."""
    names = list(NAMES.values())
    shape = [NAMES["comment"], NAMES["newline"], NAMES["ansi"], NAMES["bidi"]]
    x, product, total, places = names[9], names[5], names[0], names[10]
    nodes = [
        helper.make_node("Mul", [x, x], [product], name=names[3]),
        helper.make_node("ReduceMean", [product], [total], name=names[6], axes=[1], keepdims=0),
        helper.make_node("NonZero", [product], [places], name=names[5]),
    ]
    info = helper.make_tensor_value_info
    outputs = [
        info(total, TensorProto.FLOAT, [shape[0], *shape[2:]]),
        info(places, TensorProto.INT64, [4, NAMES["script"]]),
    ]
    inputs = [info(x, TensorProto.FLOAT, shape)]
    return _saved(helper.make_graph(nodes, NAMES["path"], inputs, outputs), path)


def broken_models(folder: Path) -> list[Path]:
    """Models that are refused, each with a message that names something in it."""
    nodes = []
    for name in NAMES.values():
        nodes += [
            helper.make_node(name, ["x"], ["z"], name=name),
            helper.make_node("Op", ["x"], ["z"], name=name, domain=name),
            helper.make_node("Abs", [name], ["z"]),  # which nothing makes
            helper.make_node("Reshape", ["x", "x"], ["z"], name=name),  # by floats
            helper.make_node("Einsum", ["x"], ["z"], equation=name),
        ]
    info, shape, paths = helper.make_tensor_value_info, [2, 3], []
    for number, node in enumerate(nodes):
        borders = [[info(name, TensorProto.FLOAT, shape)] for name in ("x", "z")]
        graph = helper.make_graph([node], "g", *borders)
        paths.append(_saved(graph, folder / f"broken{number}.onnx"))
    for number, name in enumerate(NAMES.values()):
        paths.append(_with_external_data(folder / f"external{number}.onnx", name))
    return paths


def _with_external_data(path: Path, location: str) -> Path:
    """A model whose weight lies in a file of that name."""
    weight = numpy_helper.from_array(np.zeros((2, 3), np.float32), location)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", location], ["z"])],
        "g",
        [info("x", TensorProto.FLOAT, [2, 3])],
        [info("z", TensorProto.FLOAT, [2, 3])],
        [weight],
    )
    return _saved(graph, path)


def _saved(graph: onnx.GraphProto, path: Path) -> Path:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NAMES["newline"], 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model.producer_name, model.producer_version = NAMES["ansi"], NAMES["newline"]
    model.doc_string, model.domain = NAMES["script"], NAMES["bidi"]
    for name in ("newline", "ansi"):
        model.metadata_props.add(key=NAMES[name], value=NAMES[name])
    path.write_bytes(model.SerializeToString())
    return path
