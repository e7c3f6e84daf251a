"""A process that compiles LLVM text for its parent.

Started by `pool.py` as `python -m graft.llvm.worker`. In come requests on standard input, each a
length and a JSON object with the processor and the text; out go answers on standard output, each a
status byte, a length and the object code or an error message. Ends when its input does. It imports
as little as it can: with NumPy and the emitter it took 0.35 s to start instead of 0.1 s.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from dataclasses import asdict
from typing import BinaryIO

from graft.base.errors import GraftError
from graft.llvm.codegen import Processor, compile_text

LENGTH = struct.Struct("<Q")
DONE, FAILED = b"\0", b"\1"


def request(text: str, processor: Processor) -> bytes:
    """A request as it goes over the wire."""
    payload = json.dumps({"processor": asdict(processor), "text": text}).encode()
    return LENGTH.pack(len(payload)) + payload


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until there are no more."""
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        job = json.loads(source.read(LENGTH.unpack(header)[0]))
        try:
            status, answer = DONE, compile_text(job["text"], Processor(**job["processor"]))
        except GraftError as error:
            status, answer = FAILED, str(error).encode()
        sink.write(status + LENGTH.pack(len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    # Interrupting is up to the parent, which closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
