"""The entry of a persistent kernel, instruction by instruction: its PTX in, calls of phases out.

One thread of each block is interpreted, since all take the same way through the entry; blocks take
turns at random. A call with a gate waits until as many blocks as there are have passed it.
"""

from __future__ import annotations

import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

_COMPARE = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "rem": operator.mod,
    "shl": operator.lshift,
    "or": operator.or_,
    "and": operator.and_,
}
_IGNORED = ("bar", "prefetch", ".param", ".reg", "{", "}", "//")


class Call(NamedTuple):
    """A function that a block has called, and with what; a gate is the address of a counter."""

    function: str
    arguments: tuple[int, ...]

    @property
    def tile(self) -> int:
        """LLVM leaves out what is always the same: the number of a single tile."""
        return self.arguments[-1] if self.arguments[-1] < Machine.address(0) else 0


class Machine:
    """A kernel's parameters are at multiples of 2^32, by their number."""

    def __init__(self, ptx: str, thread: int = 0) -> None:
        entry = ptx[ptx.index(".visible .entry") :]
        self.count = entry.count(".param .u64")
        body = entry[entry.index("{") + 1 :]
        lines = (line.split("//")[0].strip() for line in body.splitlines())
        self._lines = [line.removesuffix(";") for line in lines if line]
        self._labels = {
            line.removesuffix(":"): at for at, line in enumerate(self._lines) if line[-1] == ":"
        }
        self.memory: Counter[int] = Counter()
        self.thread = thread

    @staticmethod
    def address(number: int) -> int:
        return number + 1 << 32

    def launch(self, blocks: int, seed: int) -> Iterator[Call]:
        """What a launch of so many blocks calls, in the order in which it is done."""
        order, gates = random.Random(seed), self.address(self.count - 1)
        running = [self._block(number, blocks) for number in range(blocks)]
        waiting = {number: next(one, None) for number, one in enumerate(running)}
        while waiting:
            ready = [
                number
                for number, call in waiting.items()
                if call is None
                or all(self.memory[a] >= blocks for a in call.arguments if a >= gates)
            ]
            assert ready, f"all blocks wait: {waiting}"
            number = order.choice(ready)
            call = waiting.pop(number)
            if call is not None:
                yield call
                waiting[number] = next(running[number], None)

    def _block(self, number: int, blocks: int) -> Iterator[Call]:
        special = {"%tid.x": self.thread, "%ctaid.x": number, "%nctaid.x": blocks}
        values: dict[str, int] = dict(special)
        passed: dict[str, int] = {}

        def value(text: str) -> int:
            return values[text] if text in values else int(text)

        at = 0
        while True:
            line, at = self._lines[at], at + 1
            guard = re.match(r"@(!?)(%p\d+)\s+(.*)", line)
            if guard:
                if bool(values[guard[2]]) == bool(guard[1]):
                    continue
                line = guard[3]
            name, _, rest = line.replace("\t", " ").partition(" ")
            operation, operands = name.split("."), [one.strip() for one in rest.split(",")]
            place = re.search(r"\[([%\w]+)(?:\+(\d+))?\]", line)
            target = (place[1], int(place[2] or 0)) if place else ("", 0)
            if name.endswith(":") or line.startswith(_IGNORED):
                continue
            if name == "ret":
                return
            if operation[0] == "bra":
                at = self._labels[operands[0]]
            elif operation[:2] == ["ld", "param"]:
                values[operands[0]] = self.address(int(target[0].rpartition("_")[2]))
            elif operation[:2] == ["st", "param"]:
                passed[target[0]] = value(operands[1])
            elif operation[0] == "call":
                inside = re.search(r"(k\w+), \((.*)\)", line)
                assert inside
                yield Call(inside[1], tuple(passed[one.strip()] for one in inside[2].split(",")))
            elif operation[0] == "red":
                self.memory[values[target[0]] + target[1]] += int(operands[1])
            elif operation[0] == "atom":
                address = values[target[0]] + target[1]
                values[operands[0]] = self.memory[address]
                self.memory[address] += int(operands[2])
            elif operation[:2] == ["st", "global"]:
                self.memory[values[target[0]] + target[1]] = value(operands[1])
            elif operation[0] == "setp":
                values[operands[0]] = _COMPARE[operation[1]](*map(value, operands[1:]))
            elif operation[0] == "selp":
                values[operands[0]] = value(operands[1 if values[operands[3]] else 2])
            elif operation[0] in ("mov", "cvta", "cvt"):
                values[operands[0]] = value(operands[1])
            else:
                wide = (1 << int(operation[-1][1:])) - 1
                values[operands[0]] = _BINARY[operation[0]](*map(value, operands[1:])) & wide
