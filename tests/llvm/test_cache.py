"""The cache: keys, damage, eviction, and two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.llvm.kernels import elementwise

from graft.base.cache_folder import default_folder
from graft.base.dtypes import DType
from graft.llvm.cache import KernelCache, default_cache, kernel_key
from graft.loop.ir import Binary, BinaryKind, Buffer, Const, Expr, Function, Store, Var
from graft.target.target import host_target, named_target

ROOT = Path(__file__).resolve().parents[2]


def sample(constant: float = 1.0, lanes: int = 1) -> Function:
    formula = [lambda a: Binary(BinaryKind.ADD, a, Const(constant, a.dtype, a.lanes))]
    return elementwise([DType.FLOAT32], formula, [DType.FLOAT32], lanes)


def test_keys_follow_content() -> None:
    target = host_target()
    key = kernel_key(sample(), target)
    assert key == kernel_key(sample(), target)
    others = [sample(2.0), sample(-0.0), sample(0.0), sample(float("nan")), sample(1.0, 8)]
    assert len({key, *(kernel_key(other, target) for other in others)}) == 6
    assert key != kernel_key(sample(), named_target("aarch64"))
    function = sample()
    noted = Function(function.name, function.parameters, function.body, ("from node 'add'",))
    assert key == kernel_key(noted, target)
    renamed = Function("other", function.parameters, function.body)
    assert key != kernel_key(renamed, target)


def test_keys_tell_similar_trees_apart() -> None:
    target = host_target()
    x = Buffer("x", DType.INT64, (Const(4),))

    def stored(value: Expr, *indices: Expr) -> str:
        return kernel_key(Function("f", (x,), Store(x, indices, value)), target)

    one, n, m = Const(1), Var("n"), Var("m")
    forms = [
        stored(one, n),
        stored(Const(True), n),
        stored(Const(1.0), n),
        stored(Const(1, DType.INT32), n),
        stored(Const(1, lanes=8), n),
        stored(Var("1"), n),
        stored(Var("n", lanes=8), n),
        stored(Var("n\nm"), n),
        stored(Binary(BinaryKind.ADD, n, m), n),
        stored(Binary(BinaryKind.ADD, m, n), n),
        stored(Binary(BinaryKind.SUBTRACT, n, m), n),
        stored(n, one),
        stored(n, one, m),
        stored(n, m, one),
        stored(n),
    ]
    assert len(set(forms)) == len(forms)
    wider = Buffer("x", DType.INT64, (Const(4),), alignment=32)
    other = Function("f", (wider,), Store(wider, (n,), one))
    assert kernel_key(other, target) not in forms


def test_remembered_is_made_once(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"code"

    assert [cache.remembered("ab12", make) for _ in range(3)] == [b"code"] * 3
    assert made == [1]


def test_put_and_get(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.get("ab12") is None
    cache.put("ab12", b"code")
    cache.put("ab12", b"code")
    cache.put("cd34", b"")
    assert cache.get("ab12") == b"code"
    assert cache.get("cd34") == b""
    assert cache.usage().entries == 2
    assert cache.clear().entries == 2
    assert cache.get("ab12") is None
    assert cache.usage().bytes == 0


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 60])
def test_a_damaged_entry_counts_as_missing(tmp_path: Path, damage: bytes) -> None:
    cache = KernelCache(tmp_path)
    cache.put("ab12", b"code")
    [path] = tmp_path.glob("kernels/ab/*")
    path.write_bytes(damage)
    assert cache.get("ab12") is None
    assert not path.exists()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, limit=1000)
    for number in range(5):
        cache.put(f"{number:04}", bytes(150))
        [path] = tmp_path.glob(f"kernels/00/{number:04}.o")
        os.utime(path, (number, number))
    assert cache.usage().entries == 5
    assert cache.get("0000") is not None  # which makes it the most recent one
    cache.put("0005", bytes(150))
    kept = {number for number in range(6) if cache.get(f"{number:04}") is not None}
    assert kept == {0, 3, 4, 5}
    assert cache.usage().bytes <= 800


def test_a_cache_with_room_is_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[KernelCache] = []
    monkeypatch.setattr(KernelCache, "_evict", lambda self: looked.append(self))
    cache = KernelCache(tmp_path, limit=256 * 1000)
    cache.put("ab12", bytes(400))
    cache.put("cd34", bytes(400))
    cache.put("ab56", bytes(400))
    assert not looked
    cache.put("ab78", bytes(400))
    assert looked == [cache]


def test_what_a_crashed_process_left_goes(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put("ab12", b"code")
    old, new = (tmp_path / "kernels" / "ab" / f"{name}.partial" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.put("ab34", b"code")
    assert not old.exists()
    assert new.exists()  # somebody may be writing it
    assert cache.usage().entries == 2


def test_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", "/somewhere")
    assert default_folder() == Path("/somewhere")
    monkeypatch.delenv("GRAFT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache().folder == Path("/caches/graft")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "graft"


HAMMER = """
import sys
from pathlib import Path
from graft.llvm.cache import KernelCache
cache = KernelCache(Path(sys.argv[1]), limit=40_000)
bad = 0
for turn in range(150):
    key = f"{turn % 17:04}"
    cache.put(key, key.encode() * 1000)
    found = cache.get(f"{(turn * 7) % 17:04}")
    bad += found is not None and found != f"{(turn * 7) % 17:04}".encode() * 1000
    if turn % 50 == 49:
        cache.clear()
sys.exit(bad)
"""


def test_processes_at_once(tmp_path: Path) -> None:
    """They write, read, evict and clear the same entries, and never see half of one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert not list(tmp_path.rglob("*.partial"))
