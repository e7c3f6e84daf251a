"""Loop IR -> text, as `graft.loop.parse` reads it back (grammar in docs/loop.md)."""

from __future__ import annotations

import math

from graft.base.dtypes import DType
from graft.base.names import quoted
from graft.loop import ir

# How tightly an operator binds; equal ones group to the left, comparisons not at all.
PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<<": 5, ">>": 5, "+": 6, "-": 6}
PRECEDENCE |= {"*": 7, "/": 7, "//": 7, "%": 7}
COMPARISON = 4
_CALLED = (ir.BinaryKind.MINIMUM, ir.BinaryKind.MAXIMUM)
_INDENT = "  "


def to_text(function: ir.Function) -> str:
    """The function as text."""
    parameters = ", ".join(_parameter(parameter) for parameter in function.parameters)
    notes = [f"{_INDENT}note {quoted(note)}" for note in function.notes]
    lines = [f"kernel {function.name}({parameters}) {{", *notes, *_body(function.body, 1), "}"]
    return "\n".join(lines) + "\n"


def statement_text(stmt: ir.Stmt) -> str:
    """A statement as text, for messages and tests."""
    return "\n".join(_statement(stmt, 0)) + "\n"


def type_text(dtype: DType, lanes: int) -> str:
    """`float32`, or `float32x8` with lanes."""
    return f"{dtype}x{lanes}" if lanes != 1 else str(dtype)


def _parameter(parameter: ir.Buffer | ir.Var) -> str:
    if isinstance(parameter, ir.Buffer):
        return _buffer(parameter)
    return f"{parameter.name}: {type_text(parameter.dtype, parameter.lanes)}"


def _buffer(buffer: ir.Buffer) -> str:
    alignment = f" align {buffer.alignment}" if buffer.alignment != 64 else ""
    return f"{buffer.name}: {buffer.dtype}{_list(buffer.extents)}{alignment}"


def _list(indices: tuple[ir.Expr, ...]) -> str:
    return f"[{', '.join(map(expression_text, indices))}]"


def _body(stmt: ir.Stmt, depth: int) -> list[str]:
    """The lines between a statement's braces."""
    if isinstance(stmt, ir.Block) and len(stmt.statements) != 1:
        return [line for inner in stmt.statements for line in _statement(inner, depth)]
    return _statement(stmt, depth)


def _in_braces(head: str, body: ir.Stmt, depth: int) -> list[str]:
    indent = _INDENT * depth
    return [f"{indent}{head}{{", *_body(body, depth + 1), f"{indent}}}"]


def _statement(stmt: ir.Stmt, depth: int) -> list[str]:
    indent = _INDENT * depth
    match stmt:
        case ir.Block():
            inner = [line for one in stmt.statements for line in _statement(one, depth + 1)]
            return [f"{indent}{{", *inner, f"{indent}}}"]
        case ir.For():
            return _in_braces(_loop_head(stmt), stmt.body, depth)
        case ir.If():
            lines = _in_braces(f"if {expression_text(stmt.condition)} ", stmt.then, depth)
            if stmt.otherwise is not None:
                lines[-1:] = _in_braces("} else ", stmt.otherwise, depth)
            return lines
        case ir.While():
            return _in_braces(f"while {expression_text(stmt.condition)} ", stmt.body, depth)
        case ir.Let():
            kind = type_text(stmt.var.dtype, stmt.var.lanes)
            head = f"let {stmt.var.name}: {kind} = {expression_text(stmt.value)} "
            return _in_braces(head, stmt.body, depth)
        case ir.Allocate():
            head = f"allocate {_buffer(stmt.buffer)} in {stmt.buffer.scope.value} "
            return _in_braces(head, stmt.body, depth)
        case ir.Store():
            condition = f" where {expression_text(stmt.condition)}" if stmt.condition else ""
            value = expression_text(stmt.value)
            return [f"{indent}{stmt.buffer.name}{_list(stmt.indices)} = {value}{condition}"]
        case ir.AtomicAdd():
            value = expression_text(stmt.value)
            return [f"{indent}atomic {stmt.buffer.name}{_list(stmt.indices)} += {value}"]
        case ir.Prefetch():
            level = f" in {stmt.level}" if stmt.level != 1 else ""
            return [f"{indent}prefetch {stmt.buffer.name}{_list(stmt.indices)}{level}"]
        case ir.Barrier():
            return [f"{indent}barrier"]


def _loop_head(loop: ir.For) -> str:
    kind = f"{loop.kind.value} " if loop.kind is not ir.LoopKind.SERIAL else ""
    dtype = f": {loop.var.dtype}" if loop.var.dtype is not ir.INDEX else ""
    span = f"{expression_text(loop.start)} +: {expression_text(loop.extent)}"
    return f"{kind}for {loop.var.name}{dtype} in {span} "


def expression_text(expr: ir.Expr) -> str:
    """An expression as text."""
    return _expression(expr, 0)


def _expression(expr: ir.Expr, outer: int) -> str:
    """Text that may stand where operators binding weaker than `outer` may not."""
    match expr:
        case ir.Const():
            return _constant(expr)
        case ir.Var():
            return expr.name
        case ir.Binary() if expr.kind in _CALLED:
            return f"{expr.kind}({_arguments(expr.left, expr.right)})"
        case ir.Binary():
            level = PRECEDENCE[expr.kind]
            left, right = _expression(expr.left, level), _expression(expr.right, level + 1)
            return _grouped(f"{left} {expr.kind} {right}", level < outer)
        case ir.Compare():
            left = _expression(expr.left, COMPARISON + 1)
            right = _expression(expr.right, COMPARISON + 1)
            return _grouped(f"{left} {expr.kind} {right}", outer > COMPARISON)
        case ir.Select():
            return f"select({_arguments(expr.condition, expr.yes, expr.no)})"
        case ir.Cast():
            return f"{expr.dtype}({_arguments(expr.value)})"
        case ir.Call():
            first = expr.arguments[0].dtype if expr.arguments else None
            suffix = f":{expr.dtype}" if expr.dtype is not first else ""
            return f"{expr.name}{suffix}({_arguments(*expr.arguments)})"
        case ir.Ramp():
            return f"ramp({expression_text(expr.base)}, {expr.stride}, {expr.lanes})"
        case ir.Broadcast():
            return f"broadcast({expression_text(expr.value)}, {expr.lanes})"
        case ir.Load():
            return f"{expr.buffer.name}{_list(expr.indices)}"


def _grouped(text: str, parentheses: bool) -> str:
    return f"({text})" if parentheses else text


def _arguments(*arguments: ir.Expr) -> str:
    return ", ".join(map(expression_text, arguments))


def _constant(const: ir.Const) -> str:
    value = const.value
    if isinstance(value, bool):
        text, plain = str(value).lower(), DType.BOOL
    elif isinstance(value, int):
        text, plain = str(value), ir.INDEX
    else:
        text = "nan" if math.isnan(value) else repr(value)
        plain = DType.FLOAT32
    if const.dtype is plain and const.lanes == 1:
        return text
    return f"{text}:{type_text(const.dtype, const.lanes)}"


RESERVED = {kind.value for kind in ir.LoopKind} | {scope.value for scope in ir.Scope}
RESERVED |= {"kernel", "note", "for", "in", "if", "else", "while", "let", "allocate", "align"}
RESERVED |= {"atomic", "prefetch", "where", "barrier", "select", "ramp", "broadcast", "min", "max"}
RESERVED |= {"true", "false", "inf", "nan", *(dtype.value for dtype in DType)}
