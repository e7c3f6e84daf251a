"""ONNX model -> Graph.

Reads the model, makes its inputs typed values and its initialisers constants, and lowers node by
node. What comes out is a verified-by-construction graph whose nodes remember their ONNX names.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial

import onnx

from graft.base.dims import AnyDim, bare_symbol, parse_dim, symbols_of
from graft.base.dtypes import Array, dtype_of
from graft.base.errors import Location, ModelError, ParseError, UnsupportedError
from graft.frontends.onnx import lower  # noqa: F401  (registers the lowerings)
from graft.frontends.onnx.functions import inlined_size, local_functions, opset_versions
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.scope import Budget, Scope, nodes_of
from graft.frontends.onnx.types import type_from_onnx
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames
from graft.ir.types import TensorType, Type, compatible, join, map_dims

# How often a node may be lowered on average, since loops import their bodies again and again.
_PATIENCE = 100
_LEAST = 2_000


def import_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, strict: bool = False
) -> Graph:
    """Import a model from a path, bytes or a `ModelProto`.

    `strict` refuses what breaks ONNX's rules; else what ONNX Runtime puts up with is imported, with
    a warning."""
    return import_source(read_model(source, strict=strict))


def import_source(source: Source) -> Graph:
    """Import a model that has been read, as strictly as its `leniency` is."""
    try:
        return _imported(source)
    finally:  # also where it fails: what was put up with may be the reason
        source.leniency.warn()


def _imported(source: Source) -> Graph:
    model, location = source.model, Location(source.name)
    opsets = opset_versions(model.opset_import, location, source.leniency)
    if not opsets:
        raise ModelError("the model does not say which opset it uses", location)
    functions = local_functions(model, source.name)
    size = inlined_size(model, functions, source.name)
    builder = Builder(model.graph.name or "main")
    scope = Scope(source, builder, opsets, functions, Budget(_LEAST + _PATIENCE * size))
    scope.initializers.update(source.initializers())
    scope.declared.update((info.name, info.type) for info in model.graph.value_info)
    _declare_inputs(scope, builder, source)
    scope.lower_all(nodes_of(scope, model.graph))
    outputs = [scope.output(info.name) for info in model.graph.output]
    for info, value in zip(model.graph.output, outputs, strict=True):
        _check_output(info, value, source)
    return builder.build(*outputs, names=_output_names(source))


def _output_names(source: Source) -> list[str]:
    """The names of the outputs; one that is listed again gets another, and keeps its position."""
    fresh = FreshNames()
    names = []
    for info in source.model.graph.output:
        names.append(fresh(info.name))
        if names[-1] != info.name:
            location = Location(source.name, info.name, "output")
            error = ModelError(f"the output '{info.name}' is listed twice", location)
            source.leniency.allow(error, f"the second one is called '{names[-1]}'")
    return names


def _declare_inputs(scope: Scope, builder: Builder, source: Source) -> None:
    """Inputs that have an initialiser are constants; old models declare all of them so."""
    names: set[str] = set()
    free = [i for i in source.model.graph.input if i.name not in scope.initializers]
    symbols = {dim.dim_param for info in free for dim in info.type.tensor_type.shape.dim}
    for info in source.model.graph.input:
        if info.name in names:
            raise ModelError(f"the input '{info.name}' is declared twice", Location(source.name))
        names.add(info.name)
        default, location = (
            scope.initializers.get(info.name),
            Location(source.name, info.name, "input"),
        )
        if default is None:
            type_ = map_dims(_declared(info, location), partial(_in_symbols, symbols=symbols))
            scope.values[info.name] = builder.input(info.name, type_)
        elif info.type.WhichOneof("value"):
            array = default.array if isinstance(default, Literal) else default
            _check_default(_declared(info, location), array, location)


def _in_symbols(dim: AnyDim, symbols: Collection[str]) -> AnyDim:
    """A dim, or its name parsed as arithmetic on other symbols: "past + length" is their sum.

    Exporters write such names for extents that they know; as symbols of their own, they would be
    different from the sums that are computed.
    """
    name = bare_symbol(dim)
    try:
        parsed = dim if name is None else parse_dim(name)
    except ParseError:
        return dim
    return parsed if symbols_of(parsed) and symbols_of(parsed) <= set(symbols) else dim


def _check_default(declared: Type, array: Array, location: Location) -> None:
    actual = TensorType(dtype_of(array.dtype), array.shape)
    if not compatible(declared, actual):
        raise ModelError(f"declared {declared}, but its initialiser is {actual}", location)


def _declared(info: onnx.ValueInfoProto, location: Location) -> Type:
    try:
        return type_from_onnx(info.type)
    except (ModelError, UnsupportedError) as error:
        raise error.at(location) from None


def _check_output(info: onnx.ValueInfoProto, value: Value, source: Source) -> None:
    if not info.type.WhichOneof("value"):
        return
    location = Location(source.name, info.name, "output")
    declared = _declared(info, location)
    if compatible(_without_mere_names(declared, value.type), value.type):
        return
    error = ModelError(f"declared {declared}, but computed as {value.type}", location)
    if join(declared, value.type) is not None:  # only the shapes differ
        source.leniency.allow(error, "the computed one counts")
    else:
        raise error


def _without_mere_names(declared: Type, computed: Type) -> Type:
    """A declared type, less a shape of another rank in which no extent is a number.

    Exporters that lose track of a shape in a branch declare one axis and make its name up."""
    if not isinstance(declared, TensorType) or not isinstance(computed, TensorType):
        return declared
    if declared.rank in (0, computed.rank) or any(isinstance(d, int) for d in declared.shape or ()):
        return declared
    return TensorType(declared.dtype, None)
