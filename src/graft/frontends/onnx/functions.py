"""Function bodies: those of the model's own local functions and those of ONNX's schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from graft.frontends.onnx.types import type_to_onnx
from graft.ir.graph import Value


def function_body(
    node: onnx.NodeProto, operands: Sequence[Value | None], opset: int
) -> onnx.FunctionProto | None:
    """The body by which ONNX defines the node's operator, or None where it has none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    body: onnx.FunctionProto | None = None
    if schema.has_context_dependent_function:
        named = onnx.NodeProto()
        named.CopyFrom(node)
        del named.input[:]
        named.input.extend("" if v is None else f"in{i}" for i, v in enumerate(operands))
        types = [type_to_onnx(v.type).SerializeToString() if v else b"" for v in operands]
        versions = schema.context_dependent_function_opset_versions
        version = max((v for v in versions if v <= opset), default=min(versions))
        data = schema.get_context_dependent_function_with_opset_version(
            version, named.SerializeToString(), types
        )
        body = onnx.FunctionProto.FromString(data) if data else None
    elif schema.has_function:
        body = schema.function_body
    if body is not None and not body.opset_import:
        body.opset_import.append(onnx.helper.make_opsetid("", opset))
    return body


def instantiate(function: onnx.FunctionProto, call: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The function's nodes with references to its attributes filled in from the call."""
    given = {attribute.name: attribute for attribute in function.attribute_proto}
    given.update((attribute.name, attribute) for attribute in call.attribute)
    for node in function.node:
        yield _filled(node, given)


def _filled(node: onnx.NodeProto, given: dict[str, onnx.AttributeProto]) -> onnx.NodeProto:
    needs = any(a.ref_attr_name or a.type in _GRAPHS for a in node.attribute)
    if not needs:
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        added = copy.attribute.add()
        added.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        added.name = attribute.name
        for graph in (added.g, *added.graphs) if added.type in _GRAPHS else ():
            inner = [_filled(n, given) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return copy


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
