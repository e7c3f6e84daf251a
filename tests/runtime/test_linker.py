"""Graft's own linker puts plain objects into memory as LLVM's does, and leaves it all others."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import replace

import llvmlite.binding as llvm
import pytest
from tests.runtime.kernels import TARGET, compiled, kernels

from graft.base.errors import UserError
from graft.runtime import native
from graft.runtime.elf import ObjectFile, read_object
from graft.runtime.linker import Image, is_plain, link
from graft.runtime.native import JitImage, Library, host_features, system_address
from graft.target.target import host_target, named_target

pytestmark = pytest.mark.skipif(
    TARGET.architecture != "x86_64", reason="only x86-64 has a linker of Graft's own"
)

Integer = ctypes.CFUNCTYPE(ctypes.c_int64)
Unary = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)

# Every kind of section and relocation: a table of addresses, of this object and the next, constants
# of two sizes, variables with a value and without, and calls within, across and out of objects.
FIRST = """
@table = constant [3 x ptr] [ptr @seven, ptr @eight, ptr @counter]
@counter = global i64 40
@elsewhere = external global i64
@nothing = internal global [5000 x i64] zeroinitializer
@big = internal constant [4 x i64] [i64 1, i64 2, i64 3, i64 4], align 32
declare i64 @eight()
declare i64 @labs(i64)
declare double @exp(double)
define i64 @seven() noinline { ret i64 7 }
define i64 @all() {
  %old = load i64, ptr @counter
  %new = add i64 %old, 1
  store volatile i64 %new, ptr @counter
  %slot = getelementptr [3 x ptr], ptr @table, i64 0, i64 1
  %f = load volatile ptr, ptr %slot
  %eight = call i64 %f()
  %seven = call i64 @seven()
  %there = load i64, ptr @elsewhere
  %last = getelementptr [5000 x i64], ptr @nothing, i64 0, i64 4999
  %zero = load volatile i64, ptr %last
  %third = getelementptr [4 x i64], ptr @big, i64 0, i64 2
  %three = load volatile i64, ptr %third
  %minus = sub i64 0, %new
  %absolute = call i64 @labs(i64 %minus)
  %a = mul i64 %eight, 1000
  %b = mul i64 %seven, 100
  %c = add i64 %a, %b
  %d = add i64 %c, %there
  %e = add i64 %d, %zero
  %g = add i64 %e, %three
  %h = add i64 %g, %absolute
  ret i64 %h
}
define double @grow(double %x) { %y = call double @exp(double %x)
  %z = fmul double %y, 2.5
  ret double %z }
"""
SECOND = """
@elsewhere = global i64 20
define i64 @eight() noinline { ret i64 8 }
"""
THREADS_OWN = """
@own = thread_local global i64 5
define i64 @f() { %v = load i64, ptr @own
  ret i64 %v }
"""


def files(*texts: str) -> list[ObjectFile]:
    return [read_object(compiled(text)) for text in texts]


def imports(*names: str) -> dict[str, int]:
    return {name: system_address(name) for name in names}


@pytest.mark.parametrize("linker", ["own", "llvm"])
def test_both_linkers_give_the_same(linker: str) -> None:
    wanted = ["all", "grow"]
    image: Image | JitImage
    if linker == "own":
        objects = files(FIRST, SECOND)
        assert is_plain(objects)
        image = link(objects, imports("labs", "exp"))
    else:
        codes = [compiled(FIRST), compiled(SECOND)]
        image = JitImage(codes, imports("labs", "exp"), wanted)
    for count in (41, 42, 43):
        assert Integer(image.symbols["all"])() == 8000 + 700 + 20 + 3 + count
    assert Unary(image.symbols["grow"])(0.0) == 2.5


def test_every_kind_of_relocation_is_met() -> None:
    kinds = {
        relocation.kind
        for file in files(FIRST, SECOND)
        for section in file.sections
        for relocation in section.relocations
    }
    assert {1, 2, 4} < kinds
    assert kinds & {9, 41, 42}


def test_code_cannot_be_written_and_data_cannot_be_run() -> None:
    image = link(files(FIRST, SECOND), imports("labs", "exp"))
    start = image.memory.__array_interface__["data"][0]
    with open("/proc/self/maps", encoding="ascii") as maps:
        lines = [line.split() for line in maps]
    ranges = [([int(end, 16) for end in line[0].split("-")], line[1]) for line in lines]
    inside = [
        access
        for (low, high), access in ranges
        if low < start + image.memory.nbytes and high > start
    ]
    assert inside == ["r-xp", "r--p", "rw-p"]


def test_what_is_not_plain_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    other = compiled("define void @f() { ret void }", "aarch64-unknown-linux-gnu")
    assert not is_plain([read_object(other)])
    assert not is_plain(files(FIRST, THREADS_OWN))
    (plain,) = files("define i64 @f() { ret i64 3 }")
    wide = replace(plain.sections[2], alignment=1 << 21)
    assert not is_plain([replace(plain, sections=(*plain.sections[:2], wide))])
    monkeypatch.setattr(native, "is_plain", lambda _objects: False)
    library = Library([compiled(FIRST), compiled(SECOND)], ["all"])
    assert Integer(library.address("all"))() == 8764


def test_programs_of_graft_are_plain() -> None:
    assert is_plain([read_object(code) for code in kernels()])


def test_damaged_relocations_are_refused() -> None:
    first, second = files(FIRST, SECOND)
    index, text = next((i, s) for i, s in enumerate(first.sections) if s.relocations)
    for offset in (text.size - 3, text.size, 1 << 62):
        moved = replace(text.relocations[0], offset=offset)
        sections = list(first.sections)
        sections[index] = replace(text, relocations=(moved,))
        with pytest.raises(UserError, match="a relocation lies outside its section"):
            link([replace(first, sections=tuple(sections)), second], imports("labs", "exp"))


def test_memory_is_given_back() -> None:
    def mapped() -> int:
        with open("/proc/self/maps", encoding="ascii") as maps:
            return sum(1 for _ in maps)

    objects = files(FIRST, SECOND)
    system = imports("labs", "exp")
    before = mapped()
    images = [link(objects, system) for _ in range(50)]
    assert mapped() >= before + 100
    del images
    gc.collect()
    assert mapped() < before + 20


def test_a_forked_child_has_variables_of_its_own() -> None:
    image = link(files(FIRST, SECOND), imports("labs", "exp"))
    run = Integer(image.symbols["all"])
    first = run()
    child = os.fork()
    if child == 0:
        os._exit(0 if run() == first + 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run() == first + 1


def test_features_are_those_that_llvm_finds() -> None:
    """As far as code may rely on them."""
    found = llvm.get_host_cpu_features()
    named = {*named_target("x86-64-v4").features, *host_target().features, "avxvnni", "avx512vnni"}
    for name in sorted(named):
        assert (name in host_features()) == bool(found.get(name)), name
