"""Text -> loop IR: reads what `graft.loop.print` writes (grammar in docs/loop.md)."""

from __future__ import annotations

import json
import math
import re

from graft.base.dtypes import DType
from graft.base.lexer import Cursor
from graft.loop import ir
from graft.loop.print import COMPARISON, PRECEDENCE, RESERVED

_LANGUAGE = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:
        (?P<number>[0-9]+\.[0-9]*(?:e[-+]?[0-9]+)?|[0-9]+e[-+]?[0-9]+|[0-9]+)
       |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
       |(?P<string>"(?:[^"\\]|\\.)*")
       |(?P<mark>\+:|\+=|//|<<|>>|[=!<>]=|[-+*/%&|^<>=(){}\[\],:])
       |(?P<end>\Z)
       |(?P<stray>.))""",
    re.VERBOSE,
)
_TYPE = re.compile(r"(.+?)(?:x([0-9]+))?")
_DTYPES = {dtype.value for dtype in DType}
_COMPARISONS = {kind.value for kind in ir.CompareKind}
_LOOP_KINDS = {kind.value for kind in ir.LoopKind if kind is not ir.LoopKind.SERIAL}
_KEYWORDS = ("let", "allocate", "if", "while", "atomic", "prefetch", "barrier", "{")
_SPECIAL = {"inf": math.inf, "nan": math.nan}
MAX_NESTING = 200  # deeper text is refused rather than overflow Python's stack


def from_text(text: str) -> ir.Function:
    """The function that the text describes."""
    parser = _Parser(text)
    function = parser.function()
    parser.expect_kind("end", "the end")
    return function


class _Expressions(Cursor):
    """Expressions: precedence climbing over what is in scope."""

    def __init__(self, text: str) -> None:
        super().__init__(text, _LANGUAGE)
        self.buffers: dict[str, ir.Buffer] = {}
        self.variables: dict[str, ir.Var] = {}
        self.forward = False  # whether an unknown name is a scalar declared further on
        self._depth = 0

    def new_name(self) -> str:
        if self.ahead.text in RESERVED:
            raise self.error(f"'{self.ahead.text}' is a reserved word")
        return self.expect_kind("name", "a name").text

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.expect_kind("number", "an integer").text)

    def type(self) -> tuple[DType, int]:
        match = _TYPE.fullmatch(self.ahead.text)
        if match is None or match[1] not in _DTYPES:
            raise self.expected("a dtype")
        self.next()
        return DType(match[1]), int(match[2] or 1)

    def expression(self, lowest: int = 1) -> ir.Expr:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self.error("the expression is nested too deeply to be read")
        left = self._primary()
        while (mark := self.ahead.text) and self.ahead.kind == "mark":
            level = COMPARISON if mark in _COMPARISONS else PRECEDENCE.get(mark, 0)
            if level < lowest:
                break
            self.next()
            right = self.expression(level + 1)
            compares = level == COMPARISON
            left = (
                ir.Compare(ir.CompareKind(mark), left, right)
                if compares
                else ir.Binary(ir.BinaryKind(mark), left, right)
            )
        self._depth -= 1
        return left

    def _primary(self) -> ir.Expr:
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if self.ahead.kind == "number" or self.ahead.text in ("-", "inf", "nan", "true", "false"):
            return self._constant()
        return self._named()

    def _constant(self) -> ir.Const:
        negative = self.accept("-")
        text = self.next().text
        value: int | float | bool
        if text in ("true", "false"):
            value, dtype = text == "true", DType.BOOL
        elif text in _SPECIAL:
            value, dtype = _SPECIAL[text], DType.FLOAT32
        elif text.isdigit():
            value, dtype = int(text), ir.INDEX
        elif text[:1].isdigit():
            value, dtype = float(text), DType.FLOAT32
        else:
            raise self.error("expected a number")
        lanes = 1
        if self.accept(":"):
            dtype, lanes = self.type()
        return ir.Const(-value if negative else value, dtype, lanes)

    def _named(self) -> ir.Expr:
        word = self.ahead.text
        if word in _DTYPES:
            self.next()
            (value,) = self._arguments(1)
            return ir.Cast(DType(word), value)
        if word in RESERVED:
            return self._built_in(self.next().text)
        name = self.expect_kind("name", "an expression").text
        if self.ahead.text in ("(", ":"):
            return self._call(name)
        if self.ahead.text == "[":
            return ir.Load(self.buffer(name), self.indices())
        if name not in self.variables and not self.forward:
            raise self.error(f"'{name}' is not in scope")
        return self.variables.get(name, ir.Var(name))

    def _built_in(self, word: str) -> ir.Expr:
        match word:
            case "min" | "max":
                return ir.Binary(ir.BinaryKind(word), *self._arguments(2))
            case "select":
                return ir.Select(*self._arguments(3))
            case "ramp":
                self.expect("(")
                base = self.expression()
                self.expect(",")
                stride = self.integer()
                self.expect(",")
                return ir.Ramp(base, stride, self._last_integer())
            case "broadcast":
                self.expect("(")
                value = self.expression()
                self.expect(",")
                return ir.Broadcast(value, self._last_integer())
            case _:
                raise self.error(f"'{word}' is no expression")

    def _last_integer(self) -> int:
        value = self.integer()
        self.expect(")")
        return value

    def _call(self, name: str) -> ir.Call:
        dtype = self.type()[0] if self.accept(":") else None
        arguments = self._arguments(None)
        if dtype is None and not arguments:
            raise self.error(f"'{name}' needs its dtype: {name}:float32()")
        return ir.Call(name, arguments, dtype or arguments[0].dtype)

    def _arguments(self, count: int | None) -> tuple[ir.Expr, ...]:
        self.expect("(")
        arguments = self._separated(")")
        if count is not None and len(arguments) != count:
            raise self.error(f"expected {count} arguments, found {len(arguments)}")
        return arguments

    def indices(self) -> tuple[ir.Expr, ...]:
        self.expect("[")
        return self._separated("]")

    def _separated(self, closing: str) -> tuple[ir.Expr, ...]:
        return tuple(self.separated(self.expression, closing))

    def buffer(self, name: str) -> ir.Buffer:
        if name not in self.buffers:
            raise self.error(f"no buffer '{name}' is in scope")
        return self.buffers[name]


class _Parser(_Expressions):
    """Statements and the function around them."""

    def function(self) -> ir.Function:
        self.expect("kernel")
        name = self.expect_kind("name", "a name").text
        self.expect("(")
        self.forward = True
        parameters = self.separated(self._parameter, ")")
        self.forward = False
        self.expect("{")
        notes = []
        while self.accept("note"):
            notes.append(json.loads(self.expect_kind("string", "a string").text))
        return ir.Function(name, tuple(parameters), self._rest_of_body(), tuple(notes))

    def _parameter(self) -> ir.Buffer | ir.Var:
        name = self.new_name()
        self.expect(":")
        dtype, lanes = self.type()
        if self.ahead.text == "[":
            return self._declare(name, dtype, ir.Scope.ARGUMENT)
        self.variables[name] = ir.Var(name, dtype, lanes)
        return self.variables[name]

    def _declare(self, name: str, dtype: DType, scope: ir.Scope | None) -> ir.Buffer:
        extents = self.indices()
        alignment = self.integer() if self.accept("align") else 64
        if scope is None:
            self.expect("in")
            word = self.next().text
            if word not in (ir.Scope.HEAP.value, ir.Scope.SHARED.value, ir.Scope.REGISTER.value):
                raise self.error("expected 'heap', 'shared' or 'register'")
            scope = ir.Scope(word)
        self.buffers[name] = ir.Buffer(name, dtype, extents, scope, alignment)
        return self.buffers[name]

    def _body(self) -> ir.Stmt:
        self.expect("{")
        return self._rest_of_body()

    def _rest_of_body(self) -> ir.Stmt:
        body = self._statements()
        return body[0] if len(body) == 1 else ir.Block(body)

    def _statements(self) -> tuple[ir.Stmt, ...]:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self.error("the statements are nested too deeply to be read")
        body = []
        while not self.accept("}"):
            body.append(self._statement())
        self._depth -= 1
        return tuple(body)

    def _statement(self) -> ir.Stmt:
        word = self.ahead.text
        if word == "for" or word in _LOOP_KINDS:
            return self._loop()
        if word in _KEYWORDS:
            return self._keyword(self.next().text)
        buffer, indices = self._access()
        self.expect("=")
        value = self.expression()
        return ir.Store(buffer, indices, value, self.expression() if self.accept("where") else None)

    def _access(self) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        name = self.expect_kind("name", "a statement").text
        return self.buffer(name), self.indices()

    def _keyword(self, word: str) -> ir.Stmt:
        match word:
            case "{":
                return ir.Block(self._statements())
            case "let":
                return self._let()
            case "allocate":
                name = self.new_name()
                self.expect(":")
                buffer = self._declare(name, self.type()[0], None)
                return ir.Allocate(buffer, self._body())
            case "if":
                condition, then = self.expression(), self._body()
                return ir.If(condition, then, self._body() if self.accept("else") else None)
            case "while":
                return ir.While(self.expression(), self._body())
            case "atomic":
                buffer, indices = self._access()
                self.expect("+=")
                return ir.AtomicAdd(buffer, indices, self.expression())
            case "prefetch":
                return ir.Prefetch(*self._access(), self.integer() if self.accept("in") else 1)
            case _:
                return ir.Barrier()

    def _let(self) -> ir.Let:
        name = self.new_name()
        self.expect(":")
        var = ir.Var(name, *self.type())
        self.expect("=")
        value = self.expression()
        self.variables[name] = var
        return ir.Let(var, value, self._body())

    def _loop(self) -> ir.For:
        word = self.next().text
        kind = ir.LoopKind.SERIAL
        if word != "for":
            kind = ir.LoopKind(word)
            self.expect("for")
        name = self.new_name()
        var = ir.Var(name, self.type()[0] if self.accept(":") else ir.INDEX)
        self.expect("in")
        start = self.expression()
        self.expect("+:")
        extent = self.expression()
        self.variables[name] = var
        return ir.For(var, start, extent, self._body(), kind)
