"""Text -> Graph: reads what `graft.ir.printer` writes (grammar in `docs/ir.md`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, parse_dim
from graft.base.dtypes import Array, DType, integer_info
from graft.base.errors import GraftError, Location, ParseError
from graft.base.lexer import Cursor, Token
from graft.ir.attrs import make_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.op import get_op
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, Type

_LANGUAGE = re.compile(
    r"""
    (?:\s+|//[^\n]*)*
    (?: (?P<value>%(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
      | (?P<reference>@(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<dim>`(?:[^`"]|"(?:[^"\\]|\\.)*")*`)
      | (?P<tensor>[a-z][a-z0-9_]*\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])
      | (?P<number>-?(?:inf|nan)\b|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>[()\[\]{}<>,=:])
      | (?P<end>\Z)
      | (?P<stray>[\s\S])
    )
    """,
    re.VERBOSE,
)
# What matters to splitting a list of dims: a quoted symbol is one mark, whatever is in it.
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[(),]')
# Nested graphs deeper than this are refused rather than overflow the interpreter's stack.
MAX_NESTING = 64


def from_text(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """Parse a graph; `constants` holds the arrays that the text refers to by name."""
    parser = _Parser(text, constants or {})
    try:
        graph = parser.graph(0)
    except RecursionError:
        raise parser.error("types or lists are nested too deeply to be read") from None
    parser.expect_kind("end", "the end")
    return graph


@lru_cache(maxsize=1 << 14)
def _tensor_type(text: str) -> TensorType:
    name, _, dims = text[:-1].partition("[")
    dtype = DType(name)
    if dims.strip() == "*":
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_dim(part) for part in _split(dims)))


def _dim(text: str) -> AnyDim:
    if text.strip() == "?":
        return UNKNOWN
    dim = parse_dim(text)
    if isinstance(dim, int) and dim < 0:
        raise ParseError(f"the extent {dim} is negative")
    return dim


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses and quotes."""
    if not text.strip():
        return []
    if "(" not in text and '"' not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for mark in _MARK.finditer(text):
        depth += (mark[0] == "(") - (mark[0] == ")")
        if mark[0] == "," and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
    return [*parts, text[start:]]


class _Parser(Cursor):
    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        super().__init__(text, _LANGUAGE)
        self.constants = constants
        self.source = ""  # of nodes that do not name their own

    def graph(self, depth: int) -> Graph:
        if depth > MAX_NESTING:
            raise self.error(f"graphs are nested more than {MAX_NESTING} deep")
        self.expect("graph")
        name = self.name(self.expect_kind("reference", "the graph's name, @name"))
        scope: dict[str, Value] = {}
        self.expect("(")
        inputs = self.separated(lambda: self.definition(scope), ")")
        if self.accept("in"):
            self.source = self.string("a file name")
        self.expect("{")
        nodes: list[Node] = []
        while not self.accept("return"):
            nodes.append(self.node(scope, depth))
        outputs, names = self.returned(scope)
        self.expect("}")
        return Graph(name, tuple(inputs), tuple(nodes), outputs, names)

    def definition(self, scope: dict[str, Value]) -> Value:
        token = self.expect_kind("value", "a value, %name")
        name = self.name(token)
        if name in scope:
            raise self.error(f"%{name} is defined twice", token)
        self.expect(":")
        value = scope[name] = Value(name, self.type())
        return value

    def returned(self, scope: dict[str, Value]) -> tuple[tuple[Value, ...], tuple[str, ...]]:
        values: list[Value] = []
        names: list[str] = []
        while self.ahead.text != "}":
            if values:
                self.expect(",")
            values.append(self.use(scope))
            names.append(self.string("a name") if self.accept("as") else values[-1].name)
        return tuple(values), tuple(names)

    def use(self, scope: dict[str, Value]) -> Value:
        token = self.expect_kind("value", "a value, %name")
        value = scope.get(self.name(token))
        if value is None:
            raise self.error(f"{token.text} is not defined before its use", token)
        return value

    def operand(self, scope: dict[str, Value]) -> Value | None:
        return None if self.accept("none") else self.use(scope)

    def node(self, scope: dict[str, Value], depth: int) -> Node:
        results: dict[str, Value] = {}
        while self.ahead.text != "=":
            if results:
                self.expect(",")
            self.definition(results)
        self.expect("=")
        token = self.expect_kind("word", "an operator's name")
        self.expect("(")
        operands = self.separated(lambda: self.operand(scope), ")")
        attributes = self.attributes(depth) if self.accept("{") else {}
        location = self.location() if self.accept("at") else None
        for name in results:
            if name in scope:
                raise self.error(f"%{name} is defined twice", token)
        scope.update(results)
        try:
            op = get_op(token.text)
            attrs = make_attrs(op.attrs, attributes)
        except GraftError as error:
            raise self.error(f"{token.text}: {error.message}", token, error.lines[1:]) from None
        return Node(op, tuple(operands), attrs, tuple(results.values()), location)

    def attributes(self, depth: int) -> dict[str, Any]:
        attrs: dict[str, Any] = {}

        def attribute() -> None:
            token = self.expect_kind("word", "an attribute's name")
            if token.text in attrs:
                raise self.error(f"attribute '{token.text}' is given twice", token)
            self.expect("=")
            attrs[token.text] = self.value(depth)

        self.separated(attribute, "}")
        return attrs

    def value(self, depth: int) -> Any:
        token = self.ahead
        if token.text == "graph":
            return self.graph(depth + 1)
        if token.text == "[":
            self.next()
            return tuple(self.separated(lambda: self.value(depth), "]"))
        if token.text == "dense":
            return self.literal()
        if token.kind == "tensor" or token.text in ("sequence", "optional", "map"):
            return self.type()
        return self.scalar(self.next())

    def scalar(self, token: Token) -> Any:
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "string":
            return self.unquoted(token.text, token)
        if token.kind == "dim":
            return self.guarded(lambda: parse_dim(token.text[1:-1]), token)
        if token.text in _WORDS:
            return _WORDS[token.text]
        raise self.expected("a value", token)

    def literal(self) -> Literal:
        start = self.next()
        self.expect("<")
        type_ = self.type()
        if not isinstance(type_, TensorType) or not type_.is_static:
            raise self.error("a constant wants a tensor type with plain extents", start)
        if self.ahead.kind == "reference":
            array = self.referred(type_)
        else:
            array = self.guarded(lambda: _array(type_, self.elements()), start)
        self.expect(">")
        return Literal(array)

    def referred(self, type_: TensorType) -> Array:
        token = self.next()
        name = self.name(token)
        if name not in self.constants:
            raise self.error(f"the constant {token.text} was not given", token)
        array = self.constants[name]
        actual = Literal(array).type
        if actual != type_:
            raise self.error(f"the constant {token.text} is {actual}, not {type_}", token)
        return array

    def elements(self) -> list[Any]:
        elements: list[Any] = []
        if self.accept(":"):
            elements.append(self.scalar(self.next()))
            while self.accept(","):
                elements.append(self.scalar(self.next()))
        return elements

    def type(self) -> Type:
        token = self.next()
        if token.kind == "tensor":
            return self.guarded(lambda: _tensor_type(token.text), token)
        if token.text not in ("sequence", "optional", "map"):
            raise self.expected("a type", token)
        self.expect("<")
        result: Type
        if token.text == "map":
            key = self.guarded(lambda: DType(self.next().text), token)
            self.expect(",")
            result = MapType(key, self.type())
        else:
            result = (SequenceType if token.text == "sequence" else OptionalType)(self.type())
        self.expect(">")
        return result

    def location(self) -> Location:
        kind = "" if self.ahead.kind == "string" else self.next().text
        node = self.string("the node's name")
        if self.ahead.kind == "string":  # a kind that is no plain word
            kind, node = node, self.string("the node's name")
        source = self.string("a file name") if self.accept("in") else self.source
        return Location(source, node, kind)

    def name(self, token: Token) -> str:
        """What a value or a reference is called."""
        text = token.text[1:]
        return self.unquoted(text, token) if text[0] == '"' else text

    def string(self, what: str) -> str:
        """Step over a string and return its content."""
        token = self.expect_kind("string", what)
        return self.unquoted(token.text, token)

    def unquoted(self, text: str, token: Token) -> str:
        try:
            return str(json.loads(text))
        except ValueError:
            raise self.error(f"{text} is not a string as JSON has them", token) from None


_WORDS = {"none": None, "true": True, "false": False}


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _holds(dtype: DType, item: Any) -> bool:
    """Whether an element of a constant fits its dtype; floats are rounded."""
    if dtype is DType.STRING:
        return isinstance(item, str)
    if dtype is DType.BOOL or isinstance(item, bool):
        return dtype is DType.BOOL and isinstance(item, bool)
    if not dtype.is_integer:
        return isinstance(item, (int, float))
    limits = integer_info(dtype.numpy)
    return isinstance(item, int) and limits.min <= item <= limits.max


def _array(type_: TensorType, items: list[Any]) -> Array:
    shape = tuple(int(dim) for dim in type_.shape or () if isinstance(dim, int))
    if len(items) != int(np.prod(shape, dtype=object)):
        raise ParseError(f"{len(items)} elements do not fill {type_}")
    for item in items:
        if not _holds(type_.dtype, item):
            raise ParseError(f"{item!r} is not of dtype {type_.dtype}")
    if type_.dtype is DType.STRING:
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array.reshape(shape)
    with np.errstate(all="ignore"):
        return np.array(items, _widest(type_.dtype)).astype(type_.dtype.numpy).reshape(shape)


def _widest(dtype: DType) -> type[Any]:
    """The NumPy type that holds every element of such dtypes."""
    if dtype is DType.BOOL:
        return np.bool
    if dtype.is_integer:
        return np.uint64 if dtype.is_unsigned_integer else np.int64
    return np.complex128 if dtype.is_complex else np.float64
