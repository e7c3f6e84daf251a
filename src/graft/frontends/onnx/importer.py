"""ONNX model -> Graph: the way in.

Reads the model, makes its inputs typed values and its initialisers constants, and lowers node by
node. What comes out is a verified-by-construction graph whose nodes remember their ONNX names.
"""

from __future__ import annotations

import os

import onnx

from graft import ops  # noqa: F401  (registers the operators)
from graft.base.errors import ModelError, Place, UnsupportedError
from graft.frontends.onnx import lower  # noqa: F401  (registers the lowerings)
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.scope import Scope, opset_versions, sorted_nodes
from graft.frontends.onnx.types import type_from_onnx
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import Type, compatible


def import_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Graph:
    """Import a model from a path, bytes or a `ModelProto`."""
    return import_source(read_model(source))


def import_source(source: Source) -> Graph:
    """Import a model that has been read."""
    model = source.model
    opsets = opset_versions(model.opset_import)
    _check_opsets(opsets, source)
    builder = Builder(model.graph.name or "main")
    functions = {(f.domain, f.name): f for f in model.functions}
    scope = Scope(source, builder, opsets, functions)
    scope.initializers.update(source.initializers())
    for info in model.graph.input:
        if info.name not in scope.initializers:
            if info.name in scope.values:
                raise ModelError(f"the input '{info.name}' is declared twice", Place(source.name))
            scope.values[info.name] = builder.input(info.name, _declared(info, source))
    scope.lower_all(sorted_nodes(model.graph, source.name))
    outputs = [scope.output(info.name) for info in model.graph.output]
    for info, value in zip(model.graph.output, outputs, strict=True):
        _check_output(info, value, source)
    return builder.build(*outputs, names=[info.name for info in model.graph.output])


def _check_opsets(opsets: dict[str, int], source: Source) -> None:
    place = Place(source.name)
    if not opsets:
        raise ModelError("the model does not say which opset it uses", place)
    version = opsets.get("", 1)
    newest = onnx.defs.onnx_opset_version()
    if version < 1:
        raise ModelError(f"there is no opset {version}", place)
    if version > newest:
        hint = "upgrade the onnx package"
        raise UnsupportedError(f"opset {version} is newer than onnx knows ({newest})", place, hint)


def _declared(info: onnx.ValueInfoProto, source: Source) -> Type:
    try:
        return type_from_onnx(info.type)
    except (ModelError, UnsupportedError) as error:
        raise error.at(Place(source.name, info.name, "input")) from None


def _check_output(info: onnx.ValueInfoProto, value: Value, source: Source) -> None:
    if not info.type.WhichOneof("value"):
        return
    declared = type_from_onnx(info.type)
    if not compatible(declared, value.type):
        place = Place(source.name, info.name, "output")
        raise ModelError(f"declared {declared}, but computed as {value.type}", place)
