"""Linking object code: symbols, foreign and damaged objects, lifetime."""

from __future__ import annotations

import ctypes
import gc

import pytest
from tests.runtime.kernels import TARGET, compiled, kernels

from graft.base.errors import UnsupportedError, UserError
from graft.program.layout import ALLOCATE, DISCARD, EXECUTE
from graft.runtime.driver import driver_object
from graft.runtime.elf import read_object
from graft.runtime.native import Library, host_architecture, host_features
from graft.runtime.thread_pool import BARRIER, STOP, WORK

Unary = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)

CALLS_MATHS = """
declare double @exp(double)
define double @grow(double %x) { %y = call double @exp(double %x)
  ret double %y }
"""
CALLS_OTHER_OBJECT = """
declare double @grow(double)
@one = internal constant double 1.0
define double @grow_more(double %x) { %y = call double @grow(double %x)
  %o = load volatile double, ptr @one
  %z = fadd double %y, %o
  ret double %z }
"""


def test_objects_call_each_other_and_the_system() -> None:
    library = Library([compiled(CALLS_OTHER_OBJECT), compiled(CALLS_MATHS)], ["grow_more"])
    assert Unary(library.address("grow_more"))(0.0) == 2.0


def test_two_libraries_may_define_the_same_names() -> None:
    texts = [CALLS_MATHS, "define double @grow(double %x) { ret double 7.0 }"]
    libraries = [Library([compiled(text)], ["grow"]) for text in texts]
    results = [Unary(library.address("grow"))(0.0) for library in libraries]
    assert results == [1.0, 7.0]


def test_libraries_come_and_go() -> None:
    code = compiled(CALLS_MATHS)
    for _ in range(200):
        assert Unary(Library([code], ["grow"]).address("grow"))
    gc.collect()


def test_object_for_another_processor_is_refused() -> None:
    other = "aarch64" if host_architecture() == "x86_64" else "x86_64"
    code = compiled("define void @f() { ret void }", f"{other}-unknown-linux-gnu")
    with pytest.raises(UserError, match=f"is for {other}, and this machine is") as error:
        Library([code], ["f"])
    assert "compile the model for this machine" in error.value.hint


@pytest.mark.parametrize(
    ("text", "symbols", "message"),
    [
        ("define void @f() { ret void }", ["g"], "does not define 'g'"),
        (
            "declare void @no_such()\ndefine void @f() { call void @no_such()\n ret void }",
            ["f"],
            "needs 'no_such', which neither it nor the system's libraries define",
        ),
    ],
)
def test_missing_symbols_are_named(text: str, symbols: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Library([compiled(text)], symbols)


def test_symbol_defined_twice_is_refused() -> None:
    code = compiled("define void @f() { ret void }")
    with pytest.raises(UserError, match="two objects define 'f'"):
        Library([code, code], ["f"])


@pytest.mark.parametrize("code", [b"", b"\x7fEL", b"MZ" + bytes(100), b"\x7fELF\x01\x01" * 20])
def test_what_is_not_object_code_is_refused(code: bytes) -> None:
    with pytest.raises(UserError, match="object code"):
        Library([code], ["f"])


def test_truncated_objects_are_refused() -> None:
    """Whatever is cut off, looking into the object ends in a clear error or in less symbols."""
    code = compiled(CALLS_MATHS)
    whole = read_object(code)
    for length in range(0, len(code), 7):
        try:
            symbols = read_object(code[:length])
        except UserError:
            continue
        assert symbols.defined <= whole.defined


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64", "riscv64"])
def test_driver_is_compiled_for_each_architecture(architecture: str) -> None:
    symbols = read_object(driver_object(f"{architecture}-unknown-linux-gnu"))
    assert symbols.architecture == architecture
    assert symbols.defined == {WORK, STOP, BARRIER, EXECUTE, ALLOCATE, DISCARD}
    needs = symbols.undefined - {"_GLOBAL_OFFSET_TABLE_"}
    allocates = {"aligned_alloc", "free", "madvise"}
    assert needs == {"syscall", "clock_gettime", "sched_yield", "memcpy", *allocates}


@pytest.mark.parametrize("triple", ["wasm32-unknown-unknown", "x86_64-pc-windows-msvc"])
def test_driver_exists_for_linux_alone(triple: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no driver for '{triple}'"):
        driver_object(triple)


def test_host_describes_itself() -> None:
    assert read_object(kernels()[-1]).architecture == host_architecture()
    assert TARGET.architecture == host_architecture()
    assert len(host_features()) > 3
