"""Operators of ONNX Runtime that are refused, each with a way out.

Searches hold a decoder's graphs and a strategy with a dozen settings (beams, penalties, sampling):
they are programs that a caller writes around the decoder. How many channels a block of the blocked
layout has depends on the machine that saved the model, and weights are stored in that order;
reading them with another number would give wrong results without a warning.
"""

from __future__ import annotations

from typing import NoReturn

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import DOMAIN
from graft.frontends.onnx.registry import lowers

_BLOCKED = "com.microsoft.nchwc"


@lowers(
    *("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    *("ReorderInput", "ReorderOutput", "Upsample"),
    domain=_BLOCKED,
)
def _refused_layout(call: Call) -> NoReturn:
    call.unsupported(
        f"{call.node.op_type} of '{_BLOCKED}' has a layout of the machine that saved the model",
        "use the original model, or let ONNX Runtime save it at ORT_ENABLE_EXTENDED",
    )


@lowers("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch", domain=DOMAIN)
def _refused_search(call: Call) -> NoReturn:
    call.unsupported(
        f"{call.node.op_type} runs a whole decoder with a search around it, which is not supported",
        "export the decoder alone, and write the search around it",
    )
