"""What a node calls: an operator with a schema, or a function of ONNX's or the model's own.

In goes a node; it is checked against what it calls, or out come the nodes to lower in its stead. A
graph among a call's attributes reads names of the caller, which the function may use for something
else: such graphs get names of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx

from graft.base.errors import Location, ModelError, UnsupportedError, UserError
from graft.frontends.onnx.leniency import Leniency
from graft.frontends.onnx.types import type_to_onnx
from graft.ir.graph import Value

# Before a name: it belongs to the function's caller. One mark for each level of calls. ONNX reads
# some function bodies from text, so that it has to be possible in a name there.
_CALLERS = "__callers__"

# A model may always come to so many nodes when its functions are inlined, and a large one to more.
_MOST_NODES = 1_000_000
_MOST_GROWTH = 10

# ONNX counts versions in 32 bits when it looks for a schema.
_LARGEST_VERSION = 2**31 - 1

# Domains whose operators are there without being imported, as in ONNX Runtime, and their version.
_IMPLIED = {"com.microsoft": 1}

# Operators that ONNX Runtime's optimiser writes into models of older opsets than they are in, and
# the first that has them.
_WRITTEN_EARLY = {"LayerNormalization": 17}

# Operators that were experimental, with attributes that no schema speaks of, until this opset.
_EXPERIMENTAL_UNTIL = {"MeanVarianceNormalization": 9, "ThresholdedRelu": 10}

# What becomes of an attribute that an operator or function does not have.
IGNORED = "it is ignored"

# What a schema gives as the largest number of operands where there is none.
_ANY_NUMBER = 2**31 - 1

# Local functions by domain, name and overload.
FunctionKey = tuple[str, str, str]
Functions = Mapping[FunctionKey, onnx.FunctionProto]


def plain_domain(domain: str) -> str:
    """The domain with the main one, which has two names, as the empty string."""
    return "" if domain == "ai.onnx" else domain


def called(node: onnx.NodeProto) -> FunctionKey:
    """The local function that the node calls, if there is one."""
    return plain_domain(node.domain), node.op_type, node.overload


def local_functions(model: onnx.ModelProto, source: str) -> dict[FunctionKey, onnx.FunctionProto]:
    """The model's own functions."""
    result: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (plain_domain(function.domain), function.name, function.overload)
        if key in result:
            location = Location(source, function.name, "function")
            raise ModelError(f"there are two functions '{_full_name(function)}'", location)
        result[key] = function
    return result


def _full_name(function: onnx.FunctionProto) -> str:
    name = f"{function.domain}.{function.name}" if function.domain else function.name
    return f"{name}:{function.overload}" if function.overload else name


def opset_versions(
    imports: Iterable[onnx.OperatorSetIdProto], location: Location, leniency: Leniency
) -> dict[str, int]:
    """Opset versions by domain; `ai.onnx` is the empty domain."""
    result: dict[str, int] = {}
    for entry in imports:
        domain, version = plain_domain(entry.domain), entry.version
        if result.setdefault(domain, version) != version:
            both = f"opsets {result[domain]} and {version}{_of(domain)} are both imported"
            leniency.allow(ModelError(both, location), "the latter counts")
        result[domain] = version
    for domain, version in result.items():
        of = _of(domain)
        newest = onnx.defs.C.schema_version_map().get(domain, (1, version))[1]
        if not 1 <= version <= _LARGEST_VERSION:
            raise ModelError(f"there is no opset {version}{of}", location)
        if version > newest:
            message = f"opset {version}{of} is newer than onnx knows ({newest})"
            raise UnsupportedError(message, location, "upgrade the onnx package")
    return result


def _of(domain: str) -> str:
    return f" of '{domain}'" if domain else ""


def opset_of(domain: str, opsets: Mapping[str, int], leniency: Leniency, location: Location) -> int:
    """The version in which a domain's operators are meant; the newest where it is not imported."""
    version = opsets.get(domain, _IMPLIED.get(domain))
    if version is not None:
        return version
    error = ModelError(f"the model imports no opset of domain '{domain}'", location)
    if domain not in onnx.defs.C.schema_version_map():
        raise error
    newest = int(onnx.defs.C.schema_version_map()[domain][1])
    leniency.allow(error, f"opset {newest} is taken")
    return newest


def inlined_size(model: onnx.ModelProto, functions: Functions, source: str) -> int:
    """How many nodes the model has when its functions are inlined; too many is an error."""
    own, calls = _contents(model.graph.node, functions)
    inside = {key: _contents(function.node, functions) for key, function in functions.items()}
    stored = own + sum(count for count, _ in inside.values())
    limit = max(_MOST_NODES, _MOST_GROWTH * stored)
    sizes: dict[FunctionKey, int] = {}
    try:
        for key in TopologicalSorter({key: c for key, (_, c) in inside.items()}).static_order():
            count, within = inside[key]
            # What is too large stays so; exact numbers could have any number of digits.
            sizes[key] = min(count + sum(within[c] * sizes[c] for c in within), limit + 1)
    except CycleError:
        return stored  # the scope says which function calls itself, if it is ever called
    total = own + sum(calls[key] * sizes[key] for key in calls)
    if total > limit:
        name = max(calls, key=lambda key: calls[key] * sizes[key])[1]
        message = f"with the function '{name}' inlined there are more than {limit} nodes"
        raise ModelError(message, Location(source, name, "function"))
    return total


def _contents(
    nodes: Iterable[onnx.NodeProto], functions: Functions
) -> tuple[int, Counter[FunctionKey]]:
    """How many nodes there are, those of nested graphs included, and the calls among them."""
    count = 0
    calls: Counter[FunctionKey] = Counter()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        count += 1
        if called(node) in functions:
            calls[called(node)] += 1
        for graph in _graphs_of(node):
            waiting.extend(graph.node)
    return count, calls


def plain_name(name: str) -> str:
    """A name as the model has it, without marks."""
    return name.replace(_CALLERS, "")


def callers_name(name: str) -> str | None:
    """What the function's caller calls the value, if the name is one of the caller's."""
    return name[len(_CALLERS) :] if name.startswith(_CALLERS) else None


def entered(function: onnx.FunctionProto, inlined: tuple[str, ...]) -> tuple[str, ...]:
    """The functions that one is within, inside of this one; recursion is an error."""
    name = _full_name(function)
    within = (*inlined, name)
    if name in inlined:
        raise ModelError(f"the function '{function.name}' calls itself: {' -> '.join(within)}")
    return within


def unknown_operator(node: onnx.NodeProto, opset: int, location: Location) -> UserError:
    """The error for an operator that nothing lowers."""
    if node.overload:
        name, overload = node.op_type, node.overload
        return ModelError(f"the function '{name}' has no overload '{overload}'", location)
    if node.domain in ("", "ai.onnx", "ai.onnx.ml"):
        return UnsupportedError(
            f"operator {node.op_type} of opset {opset} is not known",
            location,
            "check the spelling, or convert the model to a newer opset",
        )
    return UnsupportedError(
        f"operator {node.op_type} belongs to the foreign domain '{node.domain}'",
        location,
        "define it by a local function, export without it, or register a lowering in Python",
    )


def check_attributes(node: onnx.NodeProto) -> None:
    """Refuse attributes that are given twice, or that refer to a function where there is none."""
    names: set[str] = set()
    for attribute in node.attribute:
        name, reference = attribute.name, attribute.ref_attr_name
        if name in names:
            raise ModelError(f"attribute '{name}' of {node.op_type} is given twice")
        if reference:
            message = f"attribute '{name}' of {node.op_type} refers to '{reference}' of a function"
            raise ModelError(f"{message}, but is in none")
        names.add(name)


def check_call(
    function: onnx.FunctionProto, node: onnx.NodeProto, leniency: Leniency, location: Location
) -> None:
    """Refuse a call of a local function with too many operands, or unknown attributes.

    Where unknown attributes are put up with, nothing of the body refers to them.
    """
    check_attributes(node)
    declared = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
    for attribute in node.attribute:
        if attribute.name not in declared:
            message = f"the function '{function.name}' has no '{attribute.name}'"
            leniency.allow(ModelError(message, location), IGNORED)


def check_against_schema(
    node: onnx.NodeProto, domain: str, opset: int, leniency: Leniency, location: Location
) -> onnx.NodeProto:
    """Refuse wrong operand counts and attributes that the operator does not have.

    Gives the node, less attributes that are put up with. An operator that no schema speaks of, at
    any version, is what its lowering takes it for.
    """
    check_attributes(node)
    if not domain and opset < _EXPERIMENTAL_UNTIL.get(node.op_type, 0):
        return node
    first = 1 if domain else _WRITTEN_EARLY.get(node.op_type, 1)
    schema = find_schema(node.op_type, domain, max(opset, first))
    if schema is None:
        if onnx.defs.has(node.op_type, domain):
            raise ModelError(f"{node.op_type} does not exist in opset {opset}")
        return node
    if not schema.min_input <= len(node.input) <= schema.max_input and node.input:
        expected = _operand_count(schema.min_input, schema.max_input)
        raise ModelError(f"{node.op_type} takes {expected}, has {len(node.input)}")
    unknown = [a.name for a in node.attribute if a.name not in schema.attributes]
    for name in unknown:
        message = f"{node.op_type} of opset {opset} has no '{name}'"
        leniency.allow(ModelError(message, location), IGNORED)
    return _with_typed_attributes(without_attributes(node, unknown), schema, leniency, location)


def _with_typed_attributes(
    node: onnx.NodeProto, schema: onnx.defs.OpSchema, leniency: Leniency, location: Location
) -> onnx.NodeProto:
    """Refuse attributes of other types than the schema's, except a Constant's, which is renamed."""
    declared: Mapping[str, Any] = schema.attributes
    kinds = {name: int(attribute.type.value) for name, attribute in declared.items()}
    for attribute in node.attribute:
        if not attribute.type or kinds[attribute.name] == attribute.type:
            continue
        error = ModelError(
            f"attribute '{attribute.name}' of {node.op_type} has a wrong type", location
        )
        candidates = [name for name, kind in kinds.items() if kind == attribute.type]
        if node.op_type != "Constant" or len(candidates) != 1 or len(node.attribute) != 1:
            raise error
        leniency.allow(error, f"it is read as '{candidates[0]}'")
        return _with_renamed_attribute(node, candidates[0])
    return node


def _with_renamed_attribute(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    """The node, with another name for its only attribute."""
    copy = _copy(node)
    copy.attribute[0].name = name
    return copy


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def without_attributes(node: onnx.NodeProto, names: Collection[str]) -> onnx.NodeProto:
    """The node, less these attributes."""
    if not names:
        return node
    copy = _copy(node)
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if a.name not in names)
    return copy


def _operand_count(least: int, most: int) -> str:
    if least == most:
        return f"{least} operand{'' if least == 1 else 's'}"
    bound = f"at least {least}" if most == _ANY_NUMBER else f"{least} to {most}"
    return f"{bound} operands"


@lru_cache(maxsize=4096)
def find_schema(op_type: str, domain: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of an operator at an opset version, or None where ONNX has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def function_body(
    node: onnx.NodeProto, operands: Sequence[Value | None], opset: int
) -> onnx.FunctionProto | None:
    """The body by which ONNX defines the node's operator, or None where it has none."""
    schema: Any = find_schema(node.op_type, plain_domain(node.domain), opset)
    if schema is None:
        return None
    body: onnx.FunctionProto | None = None
    if schema.has_context_dependent_function:
        named = _copy(node)
        del named.input[:]
        named.input.extend("" if v is None else f"in{i}" for i, v in enumerate(operands))
        types = [type_to_onnx(v.type).SerializeToString() if v else b"" for v in operands]
        versions = schema.context_dependent_function_opset_versions
        version = max((v for v in versions if v <= opset), default=min(versions))
        try:
            data = schema.get_context_dependent_function_with_opset_version(
                version, named.SerializeToString(), types
            )
        except (RuntimeError, ValueError) as error:
            detail = str(error).splitlines()[0]
            message = f"ONNX cannot tell the body of this {node.op_type}: {detail}"
            raise UnsupportedError(message) from error
        body = onnx.FunctionProto.FromString(data) if data else None
    elif schema.has_function:
        body = schema.function_body
    if body is not None and not body.opset_import:
        body.opset_import.append(onnx.helper.make_opsetid("", opset))
    return body


def instantiate(function: onnx.FunctionProto, call: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The function's nodes with references to its attributes filled in from the call."""
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    defaults.update((attribute.name, attribute) for attribute in call.attribute)
    for node in function.node:
        yield _filled(node, defaults)


def with_own_names(call: onnx.NodeProto) -> onnx.NodeProto:
    """The call with every name in its graphs marked as the caller's."""
    if not any(attribute.type in _GRAPHS for attribute in call.attribute):
        return call
    copy = _copy(call)
    _mark_graphs(copy)
    return copy


def _mark_graphs(node: onnx.NodeProto) -> None:
    for graph in _graphs_of(node):
        for named in (*graph.input, *graph.output, *graph.initializer):
            named.name = _CALLERS + named.name
        for sparse in graph.sparse_initializer:
            sparse.values.name = _CALLERS + sparse.values.name
        for inner in graph.node:
            for names in (inner.input, inner.output):
                names[:] = [name and _CALLERS + name for name in names]
            _mark_graphs(inner)


def _graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type in _GRAPHS:
            yield from (attribute.g, *attribute.graphs)


def _filled(node: onnx.NodeProto, defaults: dict[str, onnx.AttributeProto]) -> onnx.NodeProto:
    needs = any(a.ref_attr_name or a.type in _GRAPHS for a in node.attribute)
    if not needs:
        return node
    copy = _copy(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in defaults:
            continue
        added = copy.attribute.add()
        added.CopyFrom(defaults[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        added.name = attribute.name
        for graph in (added.g, *added.graphs) if added.type in _GRAPHS else ():
            inner = [_filled(n, defaults) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return copy


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
