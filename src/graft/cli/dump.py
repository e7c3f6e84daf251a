"""`graft run --dump`: a model, names and inputs in; a folder of intermediate tensors out.

The named values become outputs of the model before it is compiled again, so the files contain what
the compiled model computes, at any size and on any backend. Values that fusion or passes would
remove are computed only for the dump: the index marks these, and says how much the model's own
results change by it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from graft.base.errors import UserError
from graft.base.names import file_stem
from graft.base.quantities import counted
from graft.cli.arrays import file_names, is_storable, save_data
from graft.cli.compare import Tolerance, compare
from graft.cli.model_parts import NamedNode, bodies, named_nodes, with_outputs
from graft.cli.options import ACCURACIES, asked
from graft.cli.placement import compiled_as_asked, same_placement
from graft.cli.report import error_text
from graft.cli.terminal import spoken_warnings, status
from graft.frontends.onnx.importer import import_source
from graft.frontends.onnx.reader import Source, read_model
from graft.ir.evaluate import Data
from graft.ir.graph import Graph, Node
from graft.module import Module, Placement
from graft.program.program import Value
from graft.stages import Imported, optimize

ALL = "all"
INDEX = "index.json"
_CONTROL_FLOW = ("if", "loop", "scan")
_EXACTLY = Tolerance(0.0, 0.0, literally=True)


@dataclass(frozen=True, slots=True)
class Dump:
    """The folder that was written, and its index."""

    folder: Path
    index: Mapping[str, Any]

    def lines(self) -> Iterator[str]:
        """A summary as text."""
        tensors = self.index["tensors"]
        changed = [tensor for tensor in tensors if tensor["changed_fusion"]]
        yield f"{counted(len(tensors), 'value')} in {self.folder}, listed in {INDEX}"
        if changed:
            yield (
                f"{counted(len(changed), 'value')} of them exist in the model only where they are"
                " asked for: fusion and passes do away with them"
            )
        largest = self.index["largest_output_difference"]
        if largest is None:
            yield "the model's outputs are others than without the dump"
        else:
            moved = (
                f"moved by up to {error_text(largest)}" if largest else "are bit for bit the same"
            )
            yield f"the model's outputs {moved}"
        yield from (f"not {one['name']}: {one['reason']}" for one in self.index["skipped"])


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value of the main graph, and its node; inputs have none."""

    name: str
    node: str = ""
    operator: str = ""


def default_folder(model: Path) -> Path:
    """The default folder of dumps."""
    return Path(f"{file_stem(model.stem, 'model')}-dump")


@dataclass(frozen=True, slots=True)
class Request:
    """The values to write, which exist, and the folder."""

    source: Source
    nodes: Sequence[NamedNode]
    values: Sequence[ValueRef]
    folder: Path
    everything: bool


def request(options: argparse.Namespace) -> Request:
    """The request of the options; a wrong name is an error before anything takes time."""
    source = read_model(options.model, strict=options.strict_import)
    nodes = named_nodes(source)
    values = select_values(options.dump, nodes, source.model)
    folder = options.dump_to or default_folder(options.model)
    folder.mkdir(parents=True, exist_ok=True)
    return Request(source, nodes, values, folder, ALL in options.dump)


def dump(
    wish: Request,
    options: argparse.Namespace,
    plain: Module,
    feeds: Mapping[str, Data],
    outputs: Sequence[tuple[str, Data]],
) -> Dump:
    """Compile the model with the values as outputs, run it on the same inputs, and write them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plain model's import has shown them
        marked = import_source(with_outputs(wish.source, [value.name for value in wish.values]))
    module, optimized = _compiled(marked, options, plain), optimize(Imported(marked)).graph
    with status(f"running {options.model.name} with all of that as outputs"), spoken_warnings():
        results = dict(zip(module.program.output_names, module.run(None, feeds), strict=True))
    values = dict(zip(module.program.output_names, module.program.outputs, strict=True))
    pairs = [(value.name, results[value.name]) for value in wish.values]
    files, skipped = _written(wish.folder, pairs)
    execution, before = _Execution(module, optimized), _Execution(plain, optimized)
    tensors = [
        {
            "file": files[value.name].name,
            "name": value.name,
            **_described(results[value.name]),
            "node": value.node or None,
            "operator": value.operator or None,
            "where": execution.of(values[value.name]),
            "changed_fusion": before.lacks(values[value.name]),
        }
        for value in wish.values
        if value.name in files
    ]
    index = {
        "model": str(options.model),
        "largest_output_difference": _largest_difference(outputs, results),
        "kernels": len(plain.kernels),
        "kernels_with_dump": len(module.kernels),
        "tensors": tensors,
        "skipped": [*skipped, *(_in_bodies(wish.nodes) if wish.everything else ())],
    }
    text = json.dumps(index, indent=1, allow_nan=False)
    (wish.folder / INDEX).write_text(text, encoding="utf-8")
    return Dump(wish.folder, index)


def select_values(
    asks: Sequence[str], nodes: Sequence[NamedNode], model: onnx.ModelProto
) -> list[ValueRef]:
    """The named values, in the order in which the model computes them."""
    node_results = [
        ValueRef(name, node.name, node.proto.op_type) for node in nodes for name in node.results
    ]
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [ValueRef(one.name) for one in model.graph.input if one.name not in constants]
    if ALL in asks:
        return node_results
    all_names = {one.name for one in (*inputs, *node_results)} | {node.name for node in nodes}
    names: set[str] = set()
    for ask in asks:
        # A name may have commas itself.
        names |= {ask} if ask in all_names else {part.strip() for part in ask.split(",")}
    for name in sorted(names - all_names):
        raise _unknown(name, all_names, nodes, model)
    return [one for one in (*inputs, *node_results) if one.name in names or one.node in names]


def _unknown(
    name: str, all_names: set[str], nodes: Sequence[NamedNode], model: onnx.ModelProto
) -> UserError:
    for node in nodes:
        if any(name in _names_in(body) for body in bodies(node.proto)):
            kind = "a branch" if node.proto.op_type == "If" else "the body"
            return UserError(
                f"'{name}' lies in {kind} of '{node.name}' ({node.proto.op_type}), where a value"
                " has one tensor per iteration, or none",
                hint=f"the results of '{node.name}' can be dumped",
            )
    if any(tensor.name == name for tensor in model.graph.initializer):
        return UserError(f"'{name}' is a weight, which the model file holds as it is")
    for function in model.functions:
        if name in _names_in(function):
            return UserError(
                f"'{name}' lies in the function '{function.name}', which may be called many times",
                hint="the results of a node that calls it can be dumped",
            )
    close = difflib.get_close_matches(name, all_names, n=3)
    listed = " or ".join(f"'{one}'" for one in close)
    hint = f"did you mean {listed}?" if close else "`graft inspect MODEL` lists the nodes"
    return UserError(f"there is no node or value '{name}'", hint=hint)


def _names_in(graph: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    result: set[str] = set()
    for node in graph.node:
        result |= {node.name, *node.output} - {""}
        for body in bodies(node):
            result |= _names_in(body)
    return result


def _in_bodies(nodes: Sequence[NamedNode]) -> Iterator[dict[str, str]]:
    """Nodes that `all` leaves out."""
    for node in nodes:
        inside = sum(len(body.node) for body in bodies(node.proto))
        if inside:
            reason = f"{counted(inside, 'node')} inside of it, once per iteration or branch"
            yield {"name": node.name, "reason": reason}


def _compiled(graph: Graph, options: argparse.Namespace, plain: Module) -> Module:
    """The module with more outputs; the same nodes are offloaded again."""
    wishes = same_placement(asked(options), plain.placement.regions, graph)
    settings = {"threads": options.threads, "accuracy": options.accuracy or ACCURACIES[0]}
    title = f"compiling {options.model.name} with more outputs"
    return compiled_as_asked(graph, title, wishes, None, **settings)


def _written(
    folder: Path, tensors: Sequence[tuple[str, Data]]
) -> tuple[dict[str, Path], list[dict[str, str]]]:
    """The files by name, and the values that no file can hold."""
    fitting = [(name, data) for name, data in tensors if is_storable(data)]
    stems = file_names([name for name, _ in fitting])
    files = {name: save_data(folder / stems[name], data) for name, data in fitting}
    reason = "no array file can hold a map, or nothing"
    return files, [{"name": name, "reason": reason} for name, _ in tensors if name not in files]


def _described(data: Data) -> dict[str, Any]:
    """Dtype and shape; of a sequence, those of each item."""
    if isinstance(data, list):
        return {"dtype": "sequence", "shape": None, "items": [_described(item) for item in data]}
    return {"dtype": _dtype(data), "shape": list(data.shape)}


def _dtype(data: Any) -> str:
    return "string" if data.dtype == object else str(data.dtype)


def _largest_difference(
    outputs: Sequence[tuple[str, Data]], results: Mapping[str, Data]
) -> float | None:
    """The largest difference of the model's results from those without a dump; None if it is no
    number."""
    result = [compare(results[name], data, _EXACTLY) for name, data in outputs]
    if any(one.problem or (one.mismatches and not one.max_absolute) for one in result):
        return None
    largest = max((one.max_absolute for one in result), default=0.0)
    return largest if np.isfinite(largest) else None


class _Execution:
    """Where a module computes values."""

    def __init__(self, module: Module, optimized: Graph) -> None:
        assert isinstance(module.placement, Placement)
        self._placement = module.placement
        self._kernels = module.kernels
        self._inputs = {value.name for value in module.program.inputs}
        self._results = {value.name for value in module.program.outputs}
        self._makers = {value.name: node for node in optimized.nodes for value in node.outputs}
        self._regions = {
            name: region for region in module.placement.regions for name in region.nodes
        }

    def lacks(self, value: Value) -> bool | None:
        """Whether a module computes a value only for the dump; None if only its backend knows."""
        location = self.of(value)
        if location is None or location["kind"] != "region":
            return location is None
        own = value.name in self._kernels or value.name in self._results
        return False if own else None

    def of(self, value: Value) -> dict[str, str] | None:
        """How a module computes a value of the optimised graph; None if it does not."""
        maker = self._makers.get(value.name)
        if value.name in self._inputs:
            return {"kind": "input"}
        if maker is None or maker.op.name == "constant":
            return {"kind": "constant", "detail": "computed at compile time"}
        name = maker.output.name
        if name in self._placement.reasons:
            return {"kind": "evaluator", "detail": self._placement.reasons[name]}
        if name in self._placement.python:
            return {"kind": "python", "detail": self._placement.python[name]}
        if name in self._regions:
            region = self._regions[name]
            return {"kind": "region", "backend": region.backend, "detail": region.label}
        if value.name in self._kernels or name in self._kernels:
            label = self._kernels.get(value.name) or self._kernels[name]
            return {"kind": "host kernel", "detail": label}
        if value.name in self._results:
            return {"kind": "host", "detail": _doing(maker)}
        return None


def _doing(node: Node) -> str:
    return "control flow" if node.op.name in _CONTROL_FLOW else node.op.name
