"""What kernels look like: the functions of a program and a form in, the text of each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graft.base.errors import UserError
from graft.base.names import comment
from graft.base.progress import Progress, Stage, quietly
from graft.llvm.compile import assembly
from graft.llvm.emit import llvm_text
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.target.target import Target


def _loops(function: Function, _target: Target) -> str:
    return to_text(function)


def _llvm(function: Function, target: Target) -> str:
    return _noted(";", function) + llvm_text(function, target)


def _asm(function: Function, target: Target) -> str:
    return _noted("#", function) + assembly(function, target)


FORMS: dict[str, Callable[[Function, Target], str]] = {"loops": _loops, "llvm": _llvm, "asm": _asm}


def kernel_texts(
    functions: Mapping[str, Function], form: str, target: Target, report: Progress = quietly
) -> list[str]:
    """The text of each function in one of the `FORMS`."""
    if form not in FORMS:
        raise UserError(f"kernels have no form '{form}'", hint=f"there are {', '.join(FORMS)}")
    texts = []
    for number, (name, function) in enumerate(functions.items()):
        report(Stage("kernel", number + 1, len(functions), name))
        texts.append(FORMS[form](function, target))
    return texts


def _noted(mark: str, function: Function) -> str:
    return "".join(f"{mark} {comment(note)}\n" for note in function.notes)
