"""Writes LLVM functions with structured control flow: the language that the driver is written in.

Everything is a 64-bit word, addresses too; what a function does is told by calling methods of a
`Code`, and its text leaves. Variables live on the stack, from where LLVM moves them to registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

WORD = 8  # bytes


@dataclass(frozen=True, slots=True)
class Word:
    """A number or an address while a function runs."""

    code: Code
    text: str

    def __add__(self, other: Word | int) -> Word:
        return self.code.operation("add", self, other)

    def __sub__(self, other: Word | int) -> Word:
        return self.code.operation("sub", self, other)

    def __mul__(self, other: Word | int) -> Word:
        return self.code.operation("mul", self, other)

    def __and__(self, other: Word | int) -> Word:
        return self.code.operation("and", self, other)

    def __lshift__(self, other: Word | int) -> Word:
        return self.code.operation("shl", self, other)

    def __rshift__(self, other: Word | int) -> Word:
        return self.code.operation("lshr", self, other)

    def is_(self, relation: str, other: Word | int) -> Flag:
        """Whether a relation holds, in LLVM's words: eq, ne, slt, sle, sgt, sge, ugt."""
        return self.code.compare(relation, self, other)


@dataclass(frozen=True, slots=True)
class Flag:
    """The truth of something while a function runs."""

    code: Code
    text: str

    def __and__(self, other: Flag) -> Flag:
        return Flag(self.code, self.code.make("i1", f"and i1 {self.text}, {other.text}").text)

    def __or__(self, other: Flag) -> Flag:
        return Flag(self.code, self.code.make("i1", f"or i1 {self.text}, {other.text}").text)

    def choose(self, left: Word | int, right: Word | int) -> Word:
        """The first of two words if it holds, else the second."""
        words = f"i64 {text_of(left)}, i64 {text_of(right)}"
        return self.code.make("i64", f"select i1 {self.text}, {words}")


@dataclass(frozen=True, slots=True)
class Variable:
    """A word that can be changed."""

    code: Code
    address: str

    @property
    def now(self) -> Word:
        """What it is."""
        return self.code.make("i64", f"load i64, ptr {self.address}, align {WORD}")

    def become(self, value: Word | int) -> None:
        """Let it be another."""
        self.code.do(f"store i64 {text_of(value)}, ptr {self.address}, align {WORD}")


def text_of(value: Word | int) -> str:
    """A word as LLVM writes it."""
    return str(value) if isinstance(value, int) else value.text


class Code:
    """A function that is being written; it takes words, and gives a word or nothing."""

    def __init__(
        self, name: str, parameters: Sequence[str], result: str = "void", public: bool = False
    ) -> None:
        self._head = f"define {'' if public else 'internal '}{result} @{name}"
        self._result = result
        self._parameters = parameters
        self._lines: list[str] = []
        self._stack: list[str] = []
        self._count = 0
        self._is_open = True  # whether the current block still lacks its last instruction

    def __getitem__(self, parameter: str) -> Word:
        """A parameter."""
        assert parameter in self._parameters
        return Word(self, f"%{parameter}")

    @property
    def text(self) -> str:
        """The whole function."""
        if self._is_open:
            assert self._result == "void"
            self.give()
        parameters = ", ".join(f"i64 %{name}" for name in self._parameters)
        lines = [*self._stack, *self._lines]
        return "\n".join([f"{self._head}({parameters}) nounwind {{", *lines, "}", ""])

    def do(self, text: str) -> None:
        """An instruction without a result."""
        if self._is_open:
            self._lines.append(f"  {text}")

    def make(self, _type: str, text: str) -> Word:
        """An instruction with a result."""
        name = self._fresh("v")
        self.do(f"%{name} = {text}")
        return Word(self, f"%{name}")

    def operation(self, name: str, left: Word | int, right: Word | int) -> Word:
        """Arithmetic."""
        return self.make("i64", f"{name} i64 {text_of(left)}, {text_of(right)}")

    def compare(self, relation: str, left: Word | int, right: Word | int) -> Flag:
        """A comparison."""
        result = self.make("i1", f"icmp {relation} i64 {text_of(left)}, {text_of(right)}")
        return Flag(self, result.text)

    def variable(self, value: Word | int) -> Variable:
        """A word that can be changed, to begin with this."""
        name = f"%{self._fresh('s')}"
        self._stack.append(f"  {name} = alloca i64, align {WORD}")
        variable = Variable(self, name)
        variable.become(value)
        return variable

    def load(
        self, address: Word, offset: int = 0, type_: str = "i64", signed: bool = False
    ) -> Word:
        """What lies at an address, widened to a word."""
        pointer = self.pointer(address, offset)
        result = self.make(type_, f"load {type_}, ptr {pointer}, align {_alignment(type_)}")
        widen = "sext" if signed else "zext"
        if type_ == "i64":
            return result
        return self.make("i64", f"{widen} {type_} {result.text} to i64")

    def store(self, value: Word | int, address: Word, offset: int = 0, type_: str = "i64") -> None:
        """Write a word, or its low bits, to an address."""
        if type_ != "i64":
            value = self.make(type_, f"trunc i64 {text_of(value)} to {type_}")
        pointer = self.pointer(address, offset)
        self.do(f"store {type_} {text_of(value)}, ptr {pointer}, align {_alignment(type_)}")

    def copy(self, target: Word, source: Word, count: Word | int) -> None:
        """Copy bytes between places that do not overlap."""
        ends = f"ptr {self.pointer(target)}, ptr {self.pointer(source)}"
        self.do(f"call void @llvm.memcpy.p0.p0.i64({ends}, i64 {text_of(count)}, i1 false)")

    def call(self, name: str, *operands: Word | int, result: str = "i64") -> Word:
        """Call a function of words."""
        listed = ", ".join(f"i64 {text_of(operand)}" for operand in operands)
        if result == "void":
            self.do(f"call void @{name}({listed})")
            return Word(self, "0")
        return self.make(result, f"call {result} @{name}({listed})")

    def give(self, value: Word | int | None = None) -> None:
        """Leave the function."""
        self.do("ret void" if value is None else f"ret i64 {text_of(value)}")
        self._is_open = False

    @contextmanager
    def when(self, flag: Flag) -> Iterator[None]:
        """What is done if something holds."""
        inside, after = self._fresh("when"), self._fresh("after")
        self.do(f"br i1 {flag.text}, label %{inside}, label %{after}")
        self._begin(inside)
        yield
        self.do(f"br label %{after}")
        self._begin(after)

    @contextmanager
    def repeat(self) -> Iterator[str]:
        """What is done again and again, until `leave`, which wants what this gives."""
        head, after = self._fresh("repeat"), self._fresh("over")
        self.do(f"br label %{head}")
        self._begin(head)
        yield after
        self.do(f"br label %{head}")
        self._begin(after)

    def leave(self, loop: str, flag: Flag) -> None:
        """Leave a loop if something holds."""
        further = self._fresh("further")
        self.do(f"br i1 {flag.text}, label %{loop}, label %{further}")
        self._begin(further)

    @contextmanager
    def count(self, number: Word | int) -> Iterator[Word]:
        """What is done for each index below a number."""
        index = self.variable(0)
        with self.repeat() as loop:
            now = index.now
            self.leave(loop, now.is_("sge", number))
            yield now
            index.become(index.now + 1)

    def pointer(self, address: Word, offset: int = 0) -> str:
        """An address as LLVM wants it."""
        place = address + offset if offset else address
        return self.make("ptr", f"inttoptr i64 {place.text} to ptr").text

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._is_open = True

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"


def _alignment(type_: str) -> int:
    return max(1, int(type_[1:]) // 8) if type_.startswith("i") else WORD
