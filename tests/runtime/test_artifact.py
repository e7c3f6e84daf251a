"""Files come back as they were saved, and bad ones are refused, whatever is wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.kernels import chain, chain_meaning, environment, total, with_python

from graft.base.cores import available_cores
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import Location, UserError
from graft.program.instructions import Scratch, Segment
from graft.program.program import Program, Target, Value
from graft.runtime import artifact as artifact_module
from graft.runtime.artifact import Origin, load, load_image, save
from graft.runtime.container import FORMAT, OLDEST, ArtifactError, Section, write
from graft.runtime.memory import address_of, aligned_copy
from graft.runtime.native import host_architecture, host_features
from graft.runtime.session import Session
from graft.runtime.session import load as load_session

ORIGIN = Origin("0.1.0", {"host": "1", "onednn": "3.5"})
BLOBS = {"onednn:0": b"anything" * 9, "empty": b""}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.graft"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole file."""
    saved = tmp_path_factory.mktemp("artifact") / "model.graft"
    save(chain(9, rounds=2), saved, ORIGIN, BLOBS)
    return saved.read_bytes()


def refusal(path: Path, data: bytes) -> ArtifactError:
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as error:
        load(path)
    assert error.value.location == Location(source=str(path))
    return error.value


def same(loaded: Program, program: Program) -> bool:
    plain = [replace(one, constants=(), objects=()).__dict__ for one in (loaded, program)]
    arrays = zip(loaded.constants, program.constants, strict=True)
    return (
        plain[0] == plain[1]
        and loaded.objects == program.objects
        and all(
            one == other and a.dtype == b.dtype and np.array_equal(a, b)
            for (one, a), (other, b) in arrays
        )
    )


@pytest.mark.parametrize("make", [lambda: chain(9, 2), lambda: total(3), lambda: with_python(0)])
def test_programs_come_back(make: Callable[[], Program], path: Path) -> None:
    program = make()
    save(program, path, ORIGIN, BLOBS)
    loaded = load(path)
    assert same(loaded.program, program)
    assert loaded.origin == ORIGIN
    assert {name: bytes(blob) for name, blob in loaded.blobs.items()} == BLOBS


def test_the_number_of_threads_is_kept(path: Path) -> None:
    for threads in (None, 1, 3):
        save(replace(chain(9), threads=threads), path, ORIGIN)
        assert load(path).program.threads == threads
    assert load_session(path).threads == min(3, available_cores())
    assert load_session(path, threads=4).threads == 4


def test_steps_keep_everything(path: Path) -> None:
    program = chain(9)
    (segment,) = program.body.instructions
    assert isinstance(segment, Segment)
    first, second = segment.calls
    location = Location("model.onnx", "Füge_hinzu", "Add")
    first = replace(first, location=location, serial=True, buffers=(*first.buffers, Scratch()))
    second = replace(second, overlaps=True, scalars=(-(2**63), 2**63 - 1), flops=10**15)
    body = replace(program.body, instructions=(replace(segment, calls=(first, second)),))
    save(replace(program, body=body), path, ORIGIN)
    assert load(path).program.body == body


def test_constants_are_mapped_and_aligned(path: Path) -> None:
    constants: tuple[Array, ...] = (
        np.arange(7, dtype=np.int8),
        np.zeros((0, 3), np.float64),
        np.array(1.5, ml_dtypes.bfloat16),
        np.array([[np.nan, -0.0, np.inf]], np.float32),
        np.array([1, -2], ml_dtypes.int4),
        np.zeros((3, 0), np.complex64),
    )
    program, arrays = chain(9), tuple(map(aligned_copy, constants))
    first = len(program.values)
    values = (*program.values, *(Value("", dtype_of(one.dtype), one.shape) for one in arrays))
    fixed = (*program.constants, *enumerate(arrays, start=first))
    save(replace(program, values=values, constants=fixed), path, ORIGIN)
    loaded = load(path).program.constants[1:]
    for (_, mapped), original in zip(loaded, constants, strict=True):
        assert (mapped.dtype, mapped.shape) == (original.dtype, original.shape)
        assert mapped.tobytes() == original.tobytes()
        assert not mapped.flags.writeable
        assert mapped.size == 0 or address_of(mapped) % 64 == 0
    assert "model.graft" in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_saving_twice_gives_the_same_bytes(path: Path, image: bytes) -> None:
    save(chain(9, rounds=2), path, ORIGIN, BLOBS)
    assert path.read_bytes() == image


def test_what_is_loaded_runs_in_another_process(path: Path) -> None:
    save(chain(1001, rounds=3), path, ORIGIN)
    script = (
        "import sys, numpy as np\n"
        "from graft.runtime.artifact import load\n"
        "from graft.runtime.session import Session\n"
        "session = Session(load(sys.argv[1]).program, threads=2)\n"
        "for _ in range(100):\n"
        "    (y,) = session.run(None, {'x': np.ones(1001, np.float32)})\n"
        "np.save(sys.argv[2], y)\n"
    )
    result = path.with_name("y.npy")
    subprocess.run(
        [sys.executable, "-c", script, str(path), str(result)], env=environment(), check=True
    )
    assert np.array_equal(np.load(result), chain_meaning(np.ones(1001, np.float32), 3))


def test_a_file_may_be_replaced_while_in_use(path: Path) -> None:
    save(chain(9, rounds=2), path, ORIGIN)
    session = Session(load(path).program, threads=1)
    save(total(3), path, ORIGIN)
    path.unlink()
    x = np.ones(9, np.float32)
    assert np.array_equal(session.run(None, {"x": x})[0], chain_meaning(x, 2))


def test_every_flipped_byte_is_noticed(path: Path, image: bytes) -> None:
    """All of the preamble, the header's ends, and many places elsewhere; padding included."""
    places = {*range(160), *range(0, len(image), 61), *range(len(image) - 80, len(image))}
    for position in sorted(places):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(image)
            damaged[position] ^= flip
            refusal(path, bytes(damaged))


def test_every_truncation_is_noticed(path: Path, image: bytes) -> None:
    for length in [*range(200), *range(200, len(image), 97), len(image) - 1]:
        message = str(refusal(path, image[:length]))
        assert ("damaged" in message) == (length > 0)
    assert "should have" in str(refusal(path, image + b"\0"))


@pytest.mark.parametrize(
    ("name", "data", "hint"),
    [
        ("model.onnx", b"\x0a\x03abc", "graft.compile takes it"),
        ("model.graft", b"\x08\x09\x12\x07pytorch" + bytes(99), "graft.compile takes it"),
        ("model.graft", b"\x89GRAFT\n" + bytes(99), "copy the file in binary mode"),
        ("model.graft", b"PK\x03\x04" + bytes(99), ""),
        ("model.graft", b"", ""),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, name: str, data: bytes, hint: str) -> None:
    error = refusal(tmp_path / name, data)
    assert error.message == "this is not a file that Graft wrote"
    assert hint in error.hint


@pytest.mark.parametrize(
    ("version", "reads", "hint"),
    [
        (FORMAT + 1, f"up to {FORMAT}", "update Graft"),
        (OLDEST - 1, f"from {OLDEST} on", "compile the model again"),
    ],
)
def test_files_of_another_format_are_refused(
    path: Path, image: bytes, version: int, reads: str, hint: str
) -> None:
    other = bytearray(image)
    other[8] = version
    error = refusal(path, bytes(other))
    wanted = f"this file is in format {version}, and this Graft reads formats {reads}"
    assert error.message == wanted
    assert hint in error.hint


@pytest.mark.parametrize("shift", [0, 1, 64])
def test_bytes_of_files_are_read_wherever_they_lie(image: bytes, shift: int) -> None:
    x = np.arange(9, dtype=np.float32)
    program = load_image(memoryview(bytes(shift) + image)[shift:]).program
    assert all(not c.flags.writeable for _, c in program.constants)
    assert Session(program).run(None, {"x": x})[0].tolist() == chain_meaning(x, 2).tolist()


@pytest.mark.parametrize("data", [b"", b"\x89GRAFT", b"something else"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        load_image(data)


def test_the_page_names_the_formats() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "artifact.md"
    assert OLDEST == FORMAT  # the page tells of no other
    assert f"| format, now {FORMAT} " in page.read_text("utf-8")


def test_files_for_other_machines_are_refused(path: Path) -> None:
    triple = chain(1).target.triple
    other = "aarch64" if host_architecture() == "x86_64" else "x86_64"
    for target, message in [
        (Target(f"{other}-unknown-linux-gnu"), f"is for {other}, and this machine is"),
        (Target(triple, ("avx9000",)), "needs a processor with avx9000, which this one lacks"),
    ]:
        save(replace(chain(1), target=target), path, ORIGIN)
        with pytest.raises(ArtifactError, match=message) as error:
            load(path)
        assert error.value.hint == "compile the model for this machine"


def test_features_that_are_there_are_fine(path: Path) -> None:
    features = tuple(sorted(host_features()))
    program = chain(1)
    save(replace(program, target=Target(program.target.triple, features)), path, ORIGIN)
    assert load(path).program.target.features == features


def test_what_threads_cost_is_part_of_the_file(path: Path) -> None:
    program = chain(1)
    assert program.target.calling > program.target.meeting > 0
    save(program, path, ORIGIN)
    assert load(path).program.target == program.target
    for name, value in (("calling", -1.0), ("meeting", float("inf")), ("meeting", 2)):
        save(replace(program, target=replace(program.target, **{name: value})), path, ORIGIN)
        with pytest.raises(ArtifactError):
            load(path)


def test_constants_are_verified_when_small_or_on_request(
    path: Path, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(image)
    damaged[-64] ^= 1
    path.write_bytes(bytes(damaged))
    load(path, verify=False)
    for verify in (None, True):
        with pytest.raises(ArtifactError, match="'constants' does not match its checksum"):
            load(path, verify)
    monkeypatch.setattr(artifact_module, "_VERIFIED_UNASKED", 1)
    load(path)
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        load(path, verify=True)


def header_of(image: bytes) -> dict[str, object]:
    size = int.from_bytes(image[16:24], "little")
    header: dict[str, object] = json.loads(image[64 : 64 + size])
    return header


@pytest.mark.parametrize(
    "changes",
    [
        {"target": None},
        {"target": {"triple": 5, "features": []}},
        {"values": [["x", "float33", [9], "", 1, "", None]] * 3},
        {"values": [["x", "float32", [9.5], "", 1, "", None]] * 3},
        {"values": [["y", "float32", [9], "", 3, "", None]] * 3},
        {"values": []},
        {"constant_values": []},
        {"body": [[0], [{}], [1]]},
        {"body": [[0], 7, [1]]},
        {"body": [[0], [], [1]]},
        {"constants": [["float32", [10**9]]]},
        {"constants": [["float32", [-1]]]},
        {"constants": [["string", [1]]]},
        {"constants": [["float32", [10**30]]]},
        {"pool": ["1 +"]},
        {"pool": 0},
        {"threads": 0},
        {"threads": "two"},
        {"backends": 3},
    ],
)
def test_headers_that_contradict_themselves_are_refused(
    path: Path, image: bytes, changes: dict[str, object]
) -> None:
    """With right checksums, such as another program might write."""
    write_with_header(path, header_of(image) | changes)
    with pytest.raises(ArtifactError, match="this file contradicts itself"):
        load(path)


def write_with_header(path: Path, header: dict[str, object]) -> None:
    """The file `image` with another header."""
    header.pop("sections")
    program = chain(9, rounds=2)
    constants = [array.view(np.uint8).data for _, array in program.constants]
    code = [Section(f"code:{i}", [memoryview(c)]) for i, c in enumerate(program.objects)]
    write(path, header, [*code, Section("constants", constants)])


def test_missing_sections_are_refused(path: Path, image: bytes) -> None:
    header = header_of(image)
    header.pop("sections")
    write(path, header, [])
    with pytest.raises(ArtifactError, match="contradicts itself"):
        load(path)
    write(path, header, [Section("code:1", [memoryview(b"")]), Section("constants", [])])
    with pytest.raises(ArtifactError, match="contradicts itself"):
        load(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    for bad in (tmp_path / "none.graft", tmp_path):
        with pytest.raises(ArtifactError, match="cannot read"):
            load(bad)
    for bad in (tmp_path / "none" / "x.graft", tmp_path):
        with pytest.raises(ArtifactError, match="cannot write"):
            save(chain(1), bad, ORIGIN)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(path: Path) -> None:
    save(chain(9), path, ORIGIN)
    before = path.read_bytes()
    program = chain(9)
    bad = replace(program, body=replace(program.body, instructions=()))
    with pytest.raises(UserError, match="the value 1 is read before it is made"):
        save(bad, path, ORIGIN)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["model.graft"]


def test_dtypes_are_stored_by_name(image: bytes) -> None:
    values: Any = header_of(image)["values"]
    assert values[0] == ["x", str(DType.FLOAT32), [9], "", 1, "", None, None]
