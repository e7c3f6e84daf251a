"""Loop IR -> LLVM text.

In goes a `Function` and a `Target`; out comes the text of an LLVM module that defines

    void name(void** buffers, int64_t* scalars, int64_t thread, int64_t threads, void* shared)

as `docs/llvm.md` describes. Buffers are told apart by alias scopes, so that LLVM may reorder
accesses to different ones; two that overlap must not be given unless neither is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.llvm.context import Context, MemRef, Offset
from graft.llvm.convert import cast
from graft.llvm.emit_expr import expression
from graft.llvm.emit_memory import multiply
from graft.llvm.emit_stmt import statement
from graft.llvm.text import Builder, Module, Value, constant
from graft.llvm.types import byte_size
from graft.loop.ir import (
    Allocate,
    Buffer,
    Const,
    For,
    Function,
    LoopKind,
    Scope,
    Stmt,
    Var,
    While,
)
from graft.loop.traverse import statements, walk_stmt
from graft.target.target import Target

_PARAMETERS = (
    "ptr noalias readonly captures(none) %buffers, ptr noalias readonly captures(none) %scalars, "
    "i64 %thread, i64 %threads, ptr %shared"
)
SCRATCH_ALIGNMENT = 64


def llvm_text(function: Function, target: Target) -> str:
    """The function as an LLVM module, not yet optimised."""
    module = Module(target)
    builder = Builder(module)
    context = Context(builder, function.name, claims=_claims(function))
    _bind_scalars(context, function)
    _bind_buffers(context, function)
    statement(context, function.body)
    builder.do("ret void")
    attributes = f'nounwind "no-builtins" "tune-cpu"="{target.cpu}"'
    if target.vector_bits >= 512:  # or LLVM splits vectors on some processors
        attributes += ' "min-legal-vector-width"="512" "prefer-vector-width"="512"'
    module.functions[function.name] = (
        f'define void @"{function.name}"({_PARAMETERS}) {attributes} {{\n{builder.body()}\n}}\n'
    )
    return module.render()


def _claims(function: Function) -> bool:
    """Whether any thread may run any iteration: there is one parallel loop, outside of others."""
    parallel_loops = 0
    waiting: list[tuple[Stmt, bool]] = [(function.body, False)]
    while waiting:
        stmt, is_repeated = waiting.pop()
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL:
            if is_repeated:
                return False
            parallel_loops += 1
        is_inside = is_repeated or isinstance(stmt, For | While)
        waiting += [(inner, is_inside) for inner in statements(stmt)]
    return parallel_loops == 1


def scratch_buffers(function: Function) -> Iterator[Buffer]:
    """The buffers in scratch memory, each once, in order."""
    names: set[str] = set()
    for stmt in walk_stmt(function.body):
        if isinstance(stmt, Allocate) and stmt.buffer.scope is Scope.HEAP:
            if stmt.buffer.name not in names:
                yield stmt.buffer
            names.add(stmt.buffer.name)


def _bind_scalars(context: Context, function: Function) -> None:
    """Load the scalar parameters: 8 bytes each, integers or doubles."""
    builder = context.builder
    scalars = [parameter for parameter in function.parameters if isinstance(parameter, Var)]
    for position, var in enumerate(scalars):
        wide = DType.FLOAT64 if var.dtype.is_float else DType.INT64
        element = "double" if wide is DType.FLOAT64 else "i64"
        pointer = builder.make("ptr", 1, f"getelementptr i64, ptr %scalars, i64 {position}")
        value = builder.make(element, 1, f"load {element}, {pointer.typed}, align 8")
        context.variables[var.name] = cast(builder, value, wide, var.dtype)


def _bind_buffers(context: Context, function: Function) -> None:
    """Load the buffers' addresses, and lay out scratch memory behind its own."""
    arguments = [parameter for parameter in function.parameters if isinstance(parameter, Buffer)]
    scratch = list(scratch_buffers(function))
    scopes = _alias_scopes(context, [*arguments, *scratch])
    pointers = [
        _load_pointer(context, position, b.alignment) for position, b in enumerate(arguments)
    ]
    if scratch:
        base = _load_pointer(context, len(arguments), SCRATCH_ALIGNMENT)
        pointers += _lay_out(context, base, scratch)
    _bind(context, [*arguments, *scratch], pointers, scopes)


def _alias_scopes(context: Context, buffers: Sequence[Buffer]) -> list[str]:
    """LLVM's names for the memory of buffers, none of which shares any with another."""
    module = context.builder.module
    domain = module.metadata(f'distinct !{{SELF, !"{context.function}"}}')
    names = (buffer.name for buffer in buffers)
    return [module.metadata(f'distinct !{{SELF, {domain}, !"{name}"}}') for name in names]


def _bind(
    context: Context, buffers: Sequence[Buffer], pointers: Sequence[Value], scopes: Sequence[str]
) -> None:
    """Say where buffers lie."""
    module = context.builder.module
    for position, (buffer, pointer) in enumerate(zip(buffers, pointers, strict=True)):
        own = module.metadata(f"!{{{scopes[position]}}}")
        others = ", ".join((*scopes[:position], *scopes[position + 1 :]))
        aliasing = f", !alias.scope {own}, !noalias {module.metadata(f'!{{{others}}}')}"
        strides = _strides(context, buffer)[1:]
        context.memrefs[buffer.name] = MemRef(buffer, pointer, tuple(strides), aliasing)


class PointerFunction:
    """A function in the making whose parameters are pointers to its buffers: %b0, %b1 and so on."""

    def __init__(self, module: Module, name: str, buffers: Sequence[Buffer]) -> None:
        self.module, self.name, self.builder = module, name, Builder(module)
        self.context = Context(self.builder, name)
        self.pointers = [Value("ptr", 1, f"%b{number}") for number in range(len(buffers))]
        _bind(self.context, buffers, self.pointers, _alias_scopes(self.context, buffers))

    def finish(self, linkage: str, attributes: str, alignment: int = 1) -> None:
        """Put the function into its module."""
        kind = f"ptr align {alignment}" if alignment > 1 else "ptr"
        self.define(linkage, attributes, [f"{kind} {pointer.text}" for pointer in self.pointers])

    def define(self, linkage: str, attributes: str, parameters: Sequence[str]) -> None:
        """Put the function, with these parameters, into its module."""
        self.builder.do("ret void")
        self.module.functions[self.name] = (
            f'define {linkage} void @"{self.name}"({", ".join(parameters)}) {attributes} '
            f"{{\n{self.builder.body()}\n}}\n"
        )


def _load_pointer(context: Context, position: int, alignment: int) -> Value:
    builder = context.builder
    slot = builder.make("ptr", 1, f"getelementptr ptr, ptr %buffers, i64 {position}")
    aligned = builder.module.metadata(f"!{{i64 {alignment}}}")
    nothing = builder.module.metadata("!{}")
    text = f"load ptr, {slot.typed}, align 8, !invariant.load {nothing}, !align {aligned}"
    return builder.make("ptr", 1, text)


def _strides(context: Context, buffer: Buffer) -> list[Offset]:
    """The number of elements, and then the distance of neighbours in each dimension."""
    strides: list[Offset] = [1]
    for extent in reversed(buffer.extents):
        if isinstance(extent, Const):
            value: Offset = int(extent.value)
        else:
            value = expression(context, extent)
            if value.lanes != 1 or value.element != "i64":
                raise InternalError(
                    f"{context.function}: extents of '{buffer.name}' are no indices"
                )
        strides.insert(0, multiply(context, strides[0], value))
    return strides


def _lay_out(context: Context, base: Value, scratch: list[Buffer]) -> Iterator[Value]:
    """Scratch buffers one behind the other; none shares memory with another."""
    builder = context.builder
    offset = constant(0, "i64")
    for buffer in scratch:
        yield builder.make("ptr", 1, f"getelementptr i8, {base.typed}, {offset.typed}")
        count = _strides(context, buffer)[0]
        number = constant(count, "i64") if isinstance(count, int) else count
        size = builder.binary("mul", number, constant(byte_size(buffer.dtype), "i64"))
        padded = builder.binary("add", size, constant(SCRATCH_ALIGNMENT - 1, "i64"))
        whole = builder.binary("and", padded, constant(-SCRATCH_ALIGNMENT, "i64"))
        offset = builder.binary("add", offset, whole)
