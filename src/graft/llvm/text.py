"""LLVM text, written instruction by instruction.

In go operations on `Value`s; out comes the text of a module that LLVM parses. Writing text directly
is several times faster than building instruction objects first, and LLVM checks the result anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from graft.llvm.types import literal, vector_type
from graft.target.target import Target

CONTRACT = "contract "


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the program: the type of an element, how many there are, and its name."""

    element: str
    lanes: int
    text: str

    @property
    def type(self) -> str:
        return vector_type(self.element, self.lanes)

    @property
    def typed(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double")


def constant(value: float | int | bool, element: str, lanes: int = 1) -> Value:
    """A number in each lane."""
    text = literal(value, element)
    return Value(element, lanes, text if lanes == 1 else f"splat ({element} {text})")


def constants(values: Sequence[float | int | bool], element: str) -> Value:
    """A vector of different numbers."""
    inside = ", ".join(f"{element} {literal(value, element)}" for value in values)
    return Value(element, len(values), f"<{inside}>")


class Module:
    """The text of a module as it grows: functions, declarations, data, metadata."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions: dict[str, str] = {}
        self._declarations: dict[str, str] = {}
        self._metadata: list[str] = []
        self._shared: dict[str, int] = {}  # elements of memory that threads share

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        """Make an intrinsic known; once is enough."""
        if name not in self._declarations:
            self._declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"

    def data(self, name: str, element: str, values: Sequence[float | int]) -> str:
        """A constant table, addressed by its name."""
        inside = ", ".join(f"{element} {literal(value, element)}" for value in values)
        self._declarations[name] = (
            f"@{name} = private unnamed_addr constant "
            f"[{len(values)} x {element}] [{inside}], align 64"
        )
        return f"@{name}"

    def shared(self, name: str, element: str, count: int = 0) -> str:
        """Memory of a block of threads on a GPU, addressed by its name; without a count, all that
        a launch asks for. Functions of one module that ask for the same share it."""
        linkage, start = ("internal", " poison") if count else ("external", "")
        alignment = 128 if count else 1024  # of swizzled tiles that tensor cores read
        name = f"{name}_{element}"
        count = self._shared[name] = max(count, self._shared.get(name, 0))
        self._declarations[name] = (
            f"@{name} = {linkage} addrspace(3) global [{count} x {element}]{start},"
            f" align {alignment}"
        )
        return f"@{name}"

    def metadata(self, text: str) -> str:
        """A metadata node; `SELF` in its text stands for the node itself."""
        name = f"!{len(self._metadata)}"
        self._metadata.append(f"{name} = {text.replace('SELF', name)}")
        return name

    def render(self) -> str:
        """The whole module."""
        head = [f'target triple = "{self.target.triple}"', ""]
        body = [*self._declarations.values(), "", *self.functions.values(), "", *self._metadata]
        return "\n".join([*head, *body, ""])


class Builder:
    """Writes the instructions of one function, at the end of its current block."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.target = module.target
        self.block = "entry"
        self._counter = 0
        self._lines: list[str] = []
        self._allocations: list[str] = []
        self.is_interleaving = False  # functions are then written where they are called

    def fresh(self, hint: str = "") -> str:
        """A name that is not taken."""
        self._counter += 1
        return f"{hint or 'v'}.{self._counter}"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def make(self, element: str, lanes: int, text: str) -> Value:
        """An instruction with a result."""
        name = f"%{self.fresh()}"
        self._lines.append(f"  {name} = {text}")
        return Value(element, lanes, name)

    def allocate(self, element: str, count: int, alignment: int) -> Value:
        """Memory on the stack, reserved once at the entry, where LLVM turns it into registers."""
        name = f"%{self.fresh('stack')}"
        text = f"  {name} = alloca [{count} x {element}], align {alignment}"
        self._allocations.append(text)
        return Value("ptr", 1, name)

    def start(self, label: str) -> None:
        """Begin a block; the one before has to end in a jump."""
        self.block = label
        self._lines.append(f"{label}:")

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str, metadata: str = "") -> None:
        self.do(f"br {condition.typed}, label %{yes}, label %{no}{metadata}")

    def phi(self, element: str, lanes: int, *sources: tuple[str, str]) -> Value:
        """One value per block that jumps here: (name, block)."""
        pairs = ", ".join(f"[ {text}, %{block} ]" for text, block in sources)
        return self.make(element, lanes, f"phi {vector_type(element, lanes)} {pairs}")

    def binary(self, operation: str, left: Value, right: Value) -> Value:
        """An operation on two values of one type; its flags belong to the operation's text."""
        text = f"{operation} {left.typed}, {right.text}"
        return self.make(left.element, left.lanes, text)

    def compare(self, predicate: str, left: Value, right: Value) -> Value:
        """A bit for each lane; the predicate is LLVM's."""
        operation = "fcmp" if left.is_float else "icmp"
        return self.make("i1", left.lanes, f"{operation} {predicate} {left.typed}, {right.text}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        text = f"select {condition.typed}, {yes.typed}, {no.typed}"
        return self.make(yes.element, yes.lanes, text)

    def convert(self, operation: str, value: Value, element: str, lanes: int = 0) -> Value:
        """A conversion (trunc, zext, sext, fpext, ...) that keeps the lanes; a bitcast may make
        another number of them."""
        if value.element == element and not lanes:
            return value
        count = lanes or value.lanes
        text = f"{operation} {value.typed} to {vector_type(element, count)}"
        return self.make(element, count, text)

    def call(self, name: str, element: str, lanes: int, *arguments: Value) -> Value:
        """An intrinsic or a function of the module."""
        result = vector_type(element, lanes)
        if name not in self.module.functions:
            self.module.declare(name, result, [argument.type for argument in arguments])
        inside = ", ".join(argument.typed for argument in arguments)
        return self.make(element, lanes, f"call {result} @{name}({inside})")

    def elementwise(self, name: str, *arguments: Value) -> Value:
        """An intrinsic of LLVM whose operands and result have one type."""
        first = arguments[0]
        full = f"llvm.{name}.{type_suffix(first)}"
        return self.call(full, first.element, first.lanes, *arguments)

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in each lane."""
        if lanes == 1:
            return value
        if not value.text.startswith("%"):
            return Value(value.element, lanes, f"splat ({value.typed})")
        single = vector_type(value.element, lanes)
        first = self.make(
            value.element, lanes, f"insertelement {single} poison, {value.typed}, i64 0"
        )
        return self.shuffle(first, first, [0] * lanes)

    def shuffle(self, left: Value, right: Value, order: Sequence[int]) -> Value:
        """Lanes picked from both vectors; those of the second count on from the first's."""
        mask = ", ".join(f"i32 {index}" for index in order)
        text = f"shufflevector {left.typed}, {right.typed}, <{len(order)} x i32> <{mask}>"
        if len(order) == 1:
            return self.extract(left, order[0])
        return self.make(left.element, len(order), text)

    def extract(self, vector: Value, lane: int) -> Value:
        """One lane as a scalar."""
        if vector.lanes == 1:
            return vector
        return self.make(vector.element, 1, f"extractelement {vector.typed}, i64 {lane}")

    def interleave(self, parts: Sequence[Callable[[], None]]) -> None:
        """Write parts that do not depend on one another an instruction of each in turn.

        Parts of several blocks follow one another instead."""
        before, columns = self._lines, []
        self.is_interleaving = True
        for part in parts:
            self._lines = []
            part()
            columns.append(self._lines)
        self.is_interleaving = False
        if any(line.endswith(":") for lines in columns for line in lines):
            self._lines = [*before, *(line for lines in columns for line in lines)]
            return
        rows = zip_longest(*columns)
        self._lines = [*before, *(line for row in rows for line in row if line is not None)]

    def body(self) -> str:
        """All that was written, with the stack memory first."""
        return "\n".join(["entry:", *self._allocations, *self._lines])


def when(builder: Builder, condition: Value, write: Callable[[], None]) -> None:
    """Code that runs where a condition holds."""
    inside, after = builder.fresh("when"), builder.fresh("after")
    builder.branch(condition, inside, after)
    builder.start(inside)
    write()
    builder.jump(after)
    builder.start(after)


def type_suffix(value: Value) -> str:
    """How an intrinsic's name spells a type: v8f32."""
    element = {"float": "f32", "double": "f64"}.get(value.element, value.element)
    return element if value.lanes == 1 else f"v{value.lanes}{element}"
