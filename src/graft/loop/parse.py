"""Text -> loop IR: reads what `graft.loop.print` writes (grammar in docs/loop.md)."""

from __future__ import annotations

import json
import math
import re

from graft.base.dtypes import DType
from graft.base.lexer import Cursor
from graft.loop.ir import (
    INDEX,
    Allocate,
    AtomicAdd,
    Barrier,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
    While,
)
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
_COMPARISONS = {kind.value for kind in CompareKind}
_LOOP_KINDS = {kind.value for kind in LoopKind if kind is not LoopKind.SERIAL}
_KEYWORDS = ("let", "allocate", "if", "while", "atomic", "prefetch", "barrier", "{")
_SPECIAL = {"inf": math.inf, "nan": math.nan}
MAX_NESTING = 200  # deeper text is refused rather than overflow Python's stack


def from_text(text: str) -> Function:
    """The function that the text describes."""
    parser = _Parser(text)
    function = parser.function()
    parser.expect_kind("end", "the end")
    return function


class _Expressions(Cursor):
    """Expressions: precedence climbing over what is in scope."""

    def __init__(self, text: str) -> None:
        super().__init__(text, _LANGUAGE)
        self.buffers: dict[str, Buffer] = {}
        self.variables: dict[str, Var] = {}
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

    def expression(self, lowest: int = 1) -> Expr:
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
                Compare(CompareKind(mark), left, right)
                if compares
                else Binary(BinaryKind(mark), left, right)
            )
        self._depth -= 1
        return left

    def _primary(self) -> Expr:
        if self.accept("("):
            inner = self.expression()
            self.expect(")")
            return inner
        if self.ahead.kind == "number" or self.ahead.text in ("-", "inf", "nan", "true", "false"):
            return self._constant()
        return self._named()

    def _constant(self) -> Const:
        negative = self.accept("-")
        text = self.next().text
        value: int | float | bool
        if text in ("true", "false"):
            value, dtype = text == "true", DType.BOOL
        elif text in _SPECIAL:
            value, dtype = _SPECIAL[text], DType.FLOAT32
        elif text.isdigit():
            value, dtype = int(text), INDEX
        elif text[:1].isdigit():
            value, dtype = float(text), DType.FLOAT32
        else:
            raise self.error("expected a number")
        lanes = 1
        if self.accept(":"):
            dtype, lanes = self.type()
        return Const(-value if negative else value, dtype, lanes)

    def _named(self) -> Expr:
        word = self.ahead.text
        if word in _DTYPES:
            self.next()
            (value,) = self._arguments(1)
            return Cast(DType(word), value)
        if word in RESERVED:
            return self._built_in(self.next().text)
        name = self.expect_kind("name", "an expression").text
        if self.ahead.text in ("(", ":"):
            return self._call(name)
        if self.ahead.text == "[":
            return Load(self.buffer(name), self.indices())
        if name not in self.variables and not self.forward:
            raise self.error(f"'{name}' is not in scope")
        return self.variables.get(name, Var(name))

    def _built_in(self, word: str) -> Expr:
        match word:
            case "min" | "max":
                return Binary(BinaryKind(word), *self._arguments(2))
            case "select":
                return Select(*self._arguments(3))
            case "ramp":
                self.expect("(")
                base = self.expression()
                self.expect(",")
                stride = self.integer()
                self.expect(",")
                return Ramp(base, stride, self._last_integer())
            case "broadcast":
                self.expect("(")
                value = self.expression()
                self.expect(",")
                return Broadcast(value, self._last_integer())
            case _:
                raise self.error(f"'{word}' is no expression")

    def _last_integer(self) -> int:
        value = self.integer()
        self.expect(")")
        return value

    def _call(self, name: str) -> Call:
        dtype = self.type()[0] if self.accept(":") else None
        arguments = self._arguments(None)
        if dtype is None and not arguments:
            raise self.error(f"'{name}' needs its dtype: {name}:float32()")
        return Call(name, arguments, dtype or arguments[0].dtype)

    def _arguments(self, count: int | None) -> tuple[Expr, ...]:
        self.expect("(")
        arguments = self._separated(")")
        if count is not None and len(arguments) != count:
            raise self.error(f"expected {count} arguments, found {len(arguments)}")
        return arguments

    def indices(self) -> tuple[Expr, ...]:
        self.expect("[")
        return self._separated("]")

    def _separated(self, closing: str) -> tuple[Expr, ...]:
        return tuple(self.separated(self.expression, closing))

    def buffer(self, name: str) -> Buffer:
        if name not in self.buffers:
            raise self.error(f"no buffer '{name}' is in scope")
        return self.buffers[name]


class _Parser(_Expressions):
    """Statements and the function around them."""

    def function(self) -> Function:
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
        return Function(name, tuple(parameters), self._rest_of_body(), tuple(notes))

    def _parameter(self) -> Buffer | Var:
        name = self.new_name()
        self.expect(":")
        dtype, lanes = self.type()
        if self.ahead.text == "[":
            return self._declare(name, dtype, Scope.ARGUMENT)
        self.variables[name] = Var(name, dtype, lanes)
        return self.variables[name]

    def _declare(self, name: str, dtype: DType, scope: Scope | None) -> Buffer:
        extents = self.indices()
        alignment = self.integer() if self.accept("align") else 64
        if scope is None:
            self.expect("in")
            word = self.next().text
            if word not in (Scope.HEAP.value, Scope.REGISTER.value):
                raise self.error("expected 'heap' or 'register'")
            scope = Scope(word)
        self.buffers[name] = Buffer(name, dtype, extents, scope, alignment)
        return self.buffers[name]

    def _body(self) -> Stmt:
        self.expect("{")
        return self._rest_of_body()

    def _rest_of_body(self) -> Stmt:
        body = self._statements()
        return body[0] if len(body) == 1 else Block(body)

    def _statements(self) -> tuple[Stmt, ...]:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self.error("the statements are nested too deeply to be read")
        body = []
        while not self.accept("}"):
            body.append(self._statement())
        self._depth -= 1
        return tuple(body)

    def _statement(self) -> Stmt:
        word = self.ahead.text
        if word == "for" or word in _LOOP_KINDS:
            return self._loop()
        if word in _KEYWORDS:
            return self._keyword(self.next().text)
        buffer, indices = self._access()
        self.expect("=")
        value = self.expression()
        return Store(buffer, indices, value, self.expression() if self.accept("where") else None)

    def _access(self) -> tuple[Buffer, tuple[Expr, ...]]:
        name = self.expect_kind("name", "a statement").text
        return self.buffer(name), self.indices()

    def _keyword(self, word: str) -> Stmt:
        match word:
            case "{":
                return Block(self._statements())
            case "let":
                return self._let()
            case "allocate":
                name = self.new_name()
                self.expect(":")
                buffer = self._declare(name, self.type()[0], None)
                return Allocate(buffer, self._body())
            case "if":
                condition, then = self.expression(), self._body()
                return If(condition, then, self._body() if self.accept("else") else None)
            case "while":
                return While(self.expression(), self._body())
            case "atomic":
                buffer, indices = self._access()
                self.expect("+=")
                return AtomicAdd(buffer, indices, self.expression())
            case "prefetch":
                return Prefetch(*self._access(), self.integer() if self.accept("in") else 1)
            case _:
                return Barrier()

    def _let(self) -> Let:
        name = self.new_name()
        self.expect(":")
        var = Var(name, *self.type())
        self.expect("=")
        value = self.expression()
        self.variables[name] = var
        return Let(var, value, self._body())

    def _loop(self) -> For:
        word = self.next().text
        kind = LoopKind.SERIAL
        if word != "for":
            kind = LoopKind(word)
            self.expect("for")
        name = self.new_name()
        var = Var(name, self.type()[0] if self.accept(":") else INDEX)
        self.expect("in")
        start = self.expression()
        self.expect("+:")
        extent = self.expression()
        self.variables[name] = var
        return For(var, start, extent, self._body(), kind)
