"""A process that compiles LLVM text for its parent.

Started by `pool.py` as `python -m graft.llvm.worker`. In come requests on standard input, each a
length and a JSON object with the target and the text; out go answers on standard output, each a
status byte, a length and the object code or an error message. Ends when its input does.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from graft.base.errors import GraftError
from graft.llvm.compile import compile_text
from graft.target.machine import Machine
from graft.target.target import Target

LENGTH = struct.Struct("<Q")
DONE, FAILED = b"\0", b"\1"


def request(text: str, target: Target) -> bytes:
    """A request as it goes over the wire."""
    payload = json.dumps({"target": asdict(target), "text": text}).encode()
    return LENGTH.pack(len(payload)) + payload


def _target(described: dict[str, Any]) -> Target:
    machine = Machine.from_json(described["machine"])
    return Target(**(described | {"features": tuple(described["features"]), "machine": machine}))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until there are no more."""
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        asked = json.loads(source.read(LENGTH.unpack(header)[0]))
        try:
            status, answer = DONE, compile_text(asked["text"], _target(asked["target"]))
        except GraftError as error:
            status, answer = FAILED, str(error).encode()
        sink.write(status + LENGTH.pack(len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    # Interrupting is up to the parent, which closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
