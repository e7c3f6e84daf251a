"""What a well-formed function is: checks one and returns it, or says what is wrong with it.

Names are unique and in scope, operands agree in dtype and lanes, accesses have one index per
dimension, those that are vectors with equal lanes, and no access that surely happens is surely
outside its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graft.base.dtypes import DType
from graft.loop import ir
from graft.loop.errors import LoopError
from graft.loop.intrinsics import INTRINSICS
from graft.loop.print import expression_text, statement_text
from graft.loop.ranges import NATURAL, Context
from graft.loop.traverse import expressions, statements, walk_expr, walk_stmt

_INTEGERS_ONLY = {ir.BinaryKind.FLOOR_DIVIDE, ir.BinaryKind.FLOOR_MODULO}
_INTEGERS_ONLY |= {ir.BinaryKind.SHIFT_LEFT, ir.BinaryKind.SHIFT_RIGHT}
_BITS = {ir.BinaryKind.AND, ir.BinaryKind.OR, ir.BinaryKind.XOR}


def verify(function: ir.Function) -> ir.Function:
    """The function, if it is well formed; else a LoopError."""
    try:
        _unique(function)
        _Scope(function).check()
    except LoopError as error:
        raise LoopError(f"{function.name}: {error.message}", hint=error.hint) from None
    return function


def _declared(function: ir.Function) -> Iterator[str]:
    yield from (parameter.name for parameter in function.parameters)
    for stmt in walk_stmt(function.body):
        if isinstance(stmt, (ir.For, ir.Let)):
            yield stmt.var.name
        elif isinstance(stmt, ir.Allocate):
            yield stmt.buffer.name


def _unique(function: ir.Function) -> None:
    names: set[str] = set()
    for name in _declared(function):
        if name in names:
            raise LoopError(f"'{name}' is declared twice")
        names.add(name)


class _Scope:
    """A walk that tracks what is in scope."""

    def __init__(self, function: ir.Function) -> None:
        self._function = function
        self._may_not_run = 0  # how many branches and loops around may never be entered
        self._variables: dict[str, ir.Var] = {}
        self._buffers: dict[str, ir.Buffer] = {}

    def check(self) -> None:
        context = Context()
        for parameter in self._function.parameters:
            if isinstance(parameter, ir.Var):
                self._variables[parameter.name] = parameter
                context = context.variable(parameter.name, *NATURAL)
        for parameter in self._function.parameters:
            if isinstance(parameter, ir.Buffer):
                self._declare(parameter, context, ir.Scope.ARGUMENT)
        self._statement(self._function.body, context)

    def _declare(self, buffer: ir.Buffer, context: Context, *scopes: ir.Scope) -> None:
        if buffer.scope not in scopes:
            raise LoopError(f"buffer '{buffer.name}' cannot be declared here")
        for extent in buffer.extents:
            self._expression(extent, context)
            is_fixed = buffer.scope in (ir.Scope.REGISTER, ir.Scope.SHARED)
            if is_fixed and not isinstance(extent, ir.Const):
                kind = buffer.scope.value
                raise LoopError(f"{kind} buffer '{buffer.name}' has to have constant extents")
        self._buffers[buffer.name] = buffer

    def _statement(self, stmt: ir.Stmt, context: Context) -> None:
        masked = isinstance(stmt, ir.Store) and stmt.condition is not None
        for expr in expressions(stmt):
            self._expression(expr, context, masked)
        match stmt:
            case ir.For():
                _require(_is_scalar_integer(stmt.extent), f"loop '{stmt.var.name}': odd extent")
                _require(stmt.start.dtype is stmt.var.dtype, f"loop '{stmt.var.name}': odd start")
                self._loop(stmt, context)
                return
            case ir.Let():
                same = stmt.var.dtype is stmt.value.dtype and stmt.var.lanes == stmt.value.lanes
                _require(same, f"let '{stmt.var.name}': the value has another type")
                self._variables[stmt.var.name] = stmt.var
            case ir.Allocate():
                allocated = (ir.Scope.HEAP, ir.Scope.SHARED, ir.Scope.REGISTER)
                self._declare(stmt.buffer, context, *allocated)
            case ir.If() | ir.While():
                good = stmt.condition.dtype is DType.BOOL and stmt.condition.lanes == 1
                condition = stmt.condition
                _require(
                    good, lambda: f"the condition '{expression_text(condition)}' is no truth value"
                )
            case ir.Store() | ir.AtomicAdd() | ir.Prefetch():
                self._write(stmt, context)
            case _:
                pass
        may_not_run = isinstance(stmt, (ir.If, ir.While))
        self._may_not_run += may_not_run
        for inner in statements(stmt):
            self._statement(inner, context)
        self._may_not_run -= may_not_run
        if isinstance(stmt, ir.Let):
            del self._variables[stmt.var.name]
        elif isinstance(stmt, ir.Allocate):
            del self._buffers[stmt.buffer.name]

    def _loop(self, loop: ir.For, context: Context) -> None:
        may_not_run = not context.at_most(ir.Const(1), loop.extent)
        self._may_not_run += may_not_run
        self._variables[loop.var.name] = loop.var
        self._statement(loop.body, context.loop(loop.var, loop.start, loop.extent))
        del self._variables[loop.var.name]
        self._may_not_run -= may_not_run

    def _write(self, stmt: ir.Store | ir.AtomicAdd | ir.Prefetch, context: Context) -> None:
        guarded = isinstance(stmt, ir.Prefetch) or (
            isinstance(stmt, ir.Store) and stmt.condition is not None
        )
        lanes = self._access(stmt.buffer, stmt.indices, context, guarded)
        if isinstance(stmt, ir.Prefetch):
            return

        def where() -> str:
            return statement_text(stmt).strip()

        same = stmt.value.dtype is stmt.buffer.dtype and stmt.value.lanes == lanes
        _require(same, lambda: f"'{where()}' stores {stmt.value.dtype}x{stmt.value.lanes}")
        if isinstance(stmt, ir.Store) and stmt.condition is not None:
            good = stmt.condition.dtype is DType.BOOL and stmt.condition.lanes == lanes
            _require(good, lambda: f"'{where()}' has a condition of another type")

    def _access(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], context: Context, guarded: bool
    ) -> int:
        _require(self._buffers.get(buffer.name) == buffer, f"no buffer '{buffer.name}' in scope")

        def shown() -> str:
            return f"'{buffer.name}[{', '.join(map(expression_text, indices))}]'"

        _require(len(indices) == len(buffer.extents), lambda: f"{shown()}: wrong number of indices")
        _require(
            all(i.dtype is ir.INDEX for i in indices),
            lambda: f"{shown()}: indices have to be {ir.INDEX}",
        )
        wide = [index.lanes for index in indices if index.lanes > 1]
        _require(len(set(wide)) <= 1, lambda: f"{shown()}: indices have different lanes")
        if not guarded and not self._may_not_run:
            for index, extent in zip(indices, buffer.extents, strict=True):
                _require(
                    not _outside(index, extent, context), lambda: f"{shown()} is out of bounds"
                )
        return wide[0] if wide else 1

    def _expression(self, expr: ir.Expr, context: Context, masked: bool = False) -> None:
        selects = [node for node in walk_expr(expr) if isinstance(node, ir.Select)]
        branches = [branch for node in selects for branch in (node.yes, node.no)]
        safe = {id(part) for part in walk_expr(*branches)}
        for node in walk_expr(expr):
            if isinstance(node, ir.Var):
                _require(self._variables.get(node.name) == node, f"'{node.name}' is not in scope")
            elif isinstance(node, ir.Load):
                self._access(node.buffer, node.indices, context, masked or id(node) in safe)
            else:
                _operands(node)


def _require(condition: bool, message: str | Callable[[], str]) -> None:
    """Raise an error unless the condition holds; text of expressions is made only then."""
    if not condition:
        raise LoopError(message if isinstance(message, str) else message())


def _is_scalar_integer(expr: ir.Expr) -> bool:
    return expr.dtype.is_integer and expr.lanes == 1


def _operands(expr: ir.Expr) -> None:
    """Whether a node's operands fit each other and it."""

    def shown() -> str:
        return f"'{expression_text(expr)}'"

    match expr:
        case ir.Binary() | ir.Compare():
            same = expr.left.dtype is expr.right.dtype and expr.left.lanes == expr.right.lanes
            _require(same, lambda: f"{shown()} has operands of different types")
            if isinstance(expr, ir.Binary):
                _require(_fits(expr), lambda: f"{shown()}: no such operation on {expr.dtype}")
        case ir.Select():
            same = expr.yes.dtype is expr.no.dtype
            same = same and expr.yes.lanes == expr.no.lanes == expr.condition.lanes
            _require(
                same and expr.condition.dtype is DType.BOOL, lambda: f"{shown()}: types do not fit"
            )
        case ir.Call():
            _require(expr.name in INTRINSICS, f"no intrinsic is called '{expr.name}'")
            intrinsic = INTRINSICS[expr.name]
            dtypes = {argument.dtype for argument in expr.arguments}
            lanes = {argument.lanes for argument in expr.arguments}
            _require(
                len(expr.arguments) == intrinsic.arity,
                lambda: f"{shown()}: wrong number of arguments",
            )
            _require(len(dtypes) == 1 and len(lanes) == 1, lambda: f"{shown()}: types do not fit")
            result = intrinsic.result(expr.arguments[0].dtype)
            _require(expr.dtype is result, lambda: f"{shown()} gives {result}, not {expr.dtype}")
            _require(intrinsic.integers or dtypes.pop().is_float, lambda: f"{shown()} needs floats")
        case ir.Ramp() | ir.Broadcast():
            inner = expr.base if isinstance(expr, ir.Ramp) else expr.value
            repeats = isinstance(expr, ir.Broadcast) and expr.lanes % inner.lanes == 0
            fits = expr.lanes > inner.lanes and (inner.lanes == 1 or repeats)
            _require(fits, lambda: f"{shown()}: lanes do not fit")
        case _:
            pass


def _fits(expr: ir.Binary) -> bool:
    dtype = expr.dtype
    if expr.kind is ir.BinaryKind.DIVIDE:
        return dtype.is_float
    if expr.kind in _INTEGERS_ONLY:
        return dtype.is_integer
    if expr.kind in _BITS:
        return dtype.is_integer or dtype is DType.BOOL
    return dtype.is_number


def _outside(index: ir.Expr, extent: ir.Expr, context: Context) -> bool:
    """Whether the index of the first or last lane is surely below 0 or beyond the extent."""
    ends = [index]
    if isinstance(index, ir.Ramp):
        step = ir.Const(index.stride * (index.lanes - 1))
        ends = [index.base, ir.Binary(ir.BinaryKind.ADD, index.base, step)]
    elif index.lanes > 1:
        return False
    return any(context.below(end, ir.Const(0)) or context.at_most(extent, end) for end in ends)
