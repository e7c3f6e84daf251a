"""The `csource` backend: an example of code generation that a person can read.

Each operator becomes a few nested loops over row-major float32 arrays. Values that stay inside the
region live in a workspace, those that enter or leave it in memory of the caller's.
"""

from __future__ import annotations

import math

from graft.backends.csource.loops import emit, extents, operators, why_not
from graft.base.dtypes import Array
from graft.base.names import comment
from graft.byoc.contract import Match, PatternTable
from graft.byoc.formats.c_source import CSourceBackend, Source
from graft.byoc.formats.operands import unfit
from graft.ir.graph import Graph, Value
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal

_HEADER = """#include <math.h>
#include <string.h>
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
"""
_ALIGNED = 64


class CSource(CSourceBackend):
    """Writes loops in C for float32 tensors with static shapes."""

    name = "csource"
    version = "1"

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in operators()]

    def supports(self, match: Match) -> Refusal | None:
        values = (*match.inputs, *match.outputs, *match.constants)
        reasons = (unfit(values, empty=True), *(why_not(node) for node in match.nodes))
        return next((Refusal(reason) for reason in reasons if reason), None)

    def source(self, region: Graph) -> Source:
        writer = _Writer(region)
        return Source(writer.text(), writer.constants, writer.workspace)


class _Writer:
    """Writes one region."""

    def __init__(self, region: Graph) -> None:
        self.region = region
        self.constants: list[Array] = []
        self.workspace = 0
        self._names: dict[Value, str] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        for number, value in enumerate(self.region.inputs):
            self._declare(value, f"inputs[{number}]", "const float")
        for number, value in enumerate(self.region.outputs):
            if value not in self._names:
                self._declare(value, f"outputs[{number}]", "float")
        for node in self.region.nodes:
            if node.op.name == "constant":
                self._declare(node.output, f"constants[{len(self.constants)}]", "const float")
                self.constants.append(node.attrs.value.array)
                continue
            if node.output not in self._names:
                self._declare(node.output, f"(char *)work + {self.workspace}", "float")
                size = 4 * math.prod(extents(node.output))
                self.workspace += -(-size // _ALIGNED) * _ALIGNED
            names = [self._names[value] for value in node.args]
            self._lines.append(f"/* {node.op.name} {comment(node.output.name)} */")
            self._lines.append(emit(node, names, self._names[node.output]))
        body = "\n".join(self._lines)
        head = "const void **inputs, void **outputs, const void **constants, void *work"
        return f"{_HEADER}void graft_region({head}) {{\n{body}\n}}\n"

    def _declare(self, value: Value, where: str, kind: str) -> None:
        name = f"v{len(self._names)}"
        self._names[value] = name
        cast = "const void *" if kind.startswith("const") else "void *"
        self._lines.append(f"{kind} *{name} = ({cast})({where});")
