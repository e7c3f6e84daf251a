"""Searches that run a decoder until it ends, which are refused: they are programs, not operators.

Each holds the decoder's graphs and a strategy with a dozen settings (beams, penalties, sampling);
what they compute is a loop that a caller writes around the decoder.
"""

from __future__ import annotations

from typing import NoReturn

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import DOMAIN
from graft.frontends.onnx.registry import lowers


@lowers("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch", domain=DOMAIN)
def _refused(call: Call) -> NoReturn:
    call.unsupported(
        f"{call.node.op_type} runs a whole decoder with a search around it, which is not supported",
        "export the decoder alone, and write the search around it",
    )
