"""The operator reference, docs/operators.md, from the registry of operators.

    python -m benchmarks.operators [--write]

Type rules are those in words or by an example (`operator_examples.py`), whose result is inferred
here. Which ONNX operators become an operator is read out of the lowerings' code: those whose
lowering names it, the ones that name nothing else first.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import FunctionType
from typing import Any

import graft.frontends.onnx.importer  # noqa: F401  (registers the lowerings)
from benchmarks.operator_examples import EXAMPLES, Example
from graft.frontends.onnx.registry import LOWERINGS
from graft.ir.attrs import make_attrs
from graft.ir.op import Op, Operand
from graft.ir.parser import from_text
from graft.ir.printer import scalar_text
from graft.ir.types import Type
from graft.ops import OPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
MOST_SOURCES = 6
LOWERED_IN = ("graft.frontends.onnx.lower", "graft.frontends.onnx.registry")
_EMITS = ("op", "ops")  # methods of a lowering's `call` that name operators of Graft
FAMILIES = {
    "": "Tensors",
    "nn": "Layers",
    "qnn": "Quantised layers",
    "mixed": "Layers of 16-bit floats",
    "image": "Image files",
    "vision": "Vision",
    "random": "Random numbers",
    "sequence": "Sequences",
    "optional": "Optional values",
    "string": "Strings",
    "nlp": "Text",
    "ml": "Classical models",
}
HEAD = """\
# Operators

All operators of the [graph IR](ir.md), by family: operands (`?`: may be left out, `*`: any number),
attributes with their types and defaults, the type rule in words or by an example, and the ONNX
operators that become one, alone or with others; where there are none, passes make it. An optional
operand that has the name of an attribute is that attribute where its value is known before the run.
A pattern such as `is_op("nn.relu")` names one of them.

This page is written by `python -m benchmarks.operators --write`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    text = page()
    if parser.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def page() -> str:
    """The whole page."""
    sources = onnx_sources()
    parts = [HEAD]
    for prefix, title in FAMILIES.items():
        names = [name for name in OPS if family(name) == prefix]
        parts.append(f"## {title}\n")
        parts += [described(OPS.get(name), sources.get(name, [])) for name in names]
    return "\n".join(parts)


def family(name: str) -> str:
    return name.partition(".")[0] if "." in name else ""


def described(op: Op, sources: list[str]) -> str:
    """One operator."""
    call = ", ".join(_operand(operand) for operand in op.operands)
    lines = [f"### `{op.name}({call})`", "", _sentence(op.summary), ""]
    attributes = [_attribute(field) for field in fields(op.attrs)]
    if attributes:
        lines.append(f"- attributes: {', '.join(attributes)}")
    rule = type_rule(op)
    if rule:
        lines.append(f"- type: {rule}")
    left = len(sources) - MOST_SOURCES
    more = f" and {left} more" if left > 0 else ""
    lines.append(f"- from ONNX: {', '.join(sources[:MOST_SOURCES]) or 'none'}{more}")
    return "\n".join([*lines, ""])


def _sentence(text: str) -> str:
    """A summary as a sentence; an operator's name at its beginning stays as it is."""
    first, _, rest = text.partition(" ")
    return f"`{first}` {rest}." if first in OPS else f"{text[0].upper()}{text[1:]}."


def _operand(operand: Operand) -> str:
    return f"{'*' * operand.variadic}{operand.name}{'?' * operand.optional}"


def _attribute(field: Field[Any]) -> str:
    kind = field.type.__name__ if field.type in (int, str, bool, float) else str(field.type)
    kind = kind.replace("tuple[int | graft.base.dims.IndexExpr, ...]", "Dims")
    kind = kind.replace("tuple[int, ...]", "Ints")
    return f"`{field.name}: {kind}{_default(field)}`"


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return ""
    value = field.default
    shown = str(value) if isinstance(value, tuple) else scalar_text(value)
    return f" = {shown}"


def type_rule(op: Op) -> str:
    """In words where the rule has some, else by an example; empty where there is neither."""
    words = (op.infer.__doc__ or "").partition("\n")[0]
    if words.startswith("Type rule: "):
        operands = "" if op.dtypes is None else f"; the operands are {op.dtypes.adjective}"
        return words.removeprefix("Type rule: ").rstrip(".") + operands
    return _by_example(op, EXAMPLES[op.name]) if op.name in EXAMPLES else ""


def _by_example(op: Op, example: Example) -> str:
    texts, attrs = example
    types = tuple(_type(text) if text else None for text in texts)
    results = op.result_types(make_attrs(op.attrs, attrs), types)
    shown = ", ".join(text or "none" for text in texts)
    given = ", ".join(f"{name}={_plain(value)}" for name, value in attrs.items())
    made = ", ".join(map(str, results))
    return f"`({shown})`{f' with `{given}`' if given else ''} → `{made}`"


def _plain(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else scalar_text(value)


def _type(text: str) -> Type:
    return from_text(f"graph @g(%x: {text}) {{ return %x }}").inputs[0].type


def onnx_sources() -> dict[str, list[str]]:
    """By operator the ONNX operators whose lowering names it, those that name no other first."""
    result: dict[str, list[tuple[int, str]]] = {}
    for key in LOWERINGS:
        named = _Mentions(key).of(LOWERINGS.get(key))
        for name in named:
            rank = 0 if len(named) == 1 else 1 if "::" not in key else 2
            result.setdefault(name, []).append((rank, key.replace("::", ".")))
    return {name: [key for _, key in sorted(keys)] for name, keys in result.items()}


class _Mentions:
    """Operators that the code of a lowering names, its helpers included."""

    def __init__(self, key: str) -> None:
        self._kind = key.rpartition("::")[2]
        self._seen: set[FunctionType] = set()

    def of(self, function: object) -> set[str]:
        if not isinstance(function, FunctionType) or function in self._seen:
            return set()
        self._seen.add(function)
        if not function.__module__.startswith(LOWERED_IN):
            return set()
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        result = {
            name for text in _patterns(tree, self._kind) for name in OPS if re.fullmatch(text, name)
        }
        for cell in function.__closure__ or ():
            held = cell.cell_contents
            result |= {held} & set(OPS) if isinstance(held, str) else self.of(held)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                held = function.__globals__.get(node.id)
                result |= self._table(held) if isinstance(held, Mapping) else self.of(held)
        return result

    def _table(self, table: Mapping[Any, Any]) -> set[str]:
        """What a table has for this ONNX operator."""
        entry = table.get(self._kind, ())
        items = entry if isinstance(entry, tuple) else (entry,)
        return {item for item in items if isinstance(item, str)} & set(OPS)


def _patterns(tree: ast.AST, kind: str) -> Iterator[str]:
    """Strings of a program as regular expressions; words put into one may be any."""
    attributes = {id(argument) for call in ast.walk(tree) for argument in _attribute_names(call)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in attributes:
                yield re.escape(text)
            case ast.JoinedStr(values=[ast.Constant(value=str(head)), *rest]) if "." in head:
                parts = [
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z0-9]+"
                    for part in rest
                ]
                yield re.escape(head) + "".join(parts)
            case ast.Attribute(attr="constant"):
                yield "constant"
            case ast.Attribute(attr="lower"):
                yield re.escape(kind.lower())


def _attribute_names(node: ast.AST) -> list[ast.expr]:
    """What a call that asks for an attribute of an ONNX node is given, as `call.int("axis")`."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="call"), attr=attr)) if (
            attr not in _EMITS
        ):
            return node.args
    return []


if __name__ == "__main__":
    raise SystemExit(main())
