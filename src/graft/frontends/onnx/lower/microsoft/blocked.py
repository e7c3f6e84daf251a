"""Operators on ONNX Runtime's blocked layout, which are refused: files do not say their blocks.

How many channels a block has depends on the machine that saved the model, and weights are stored
in that order; reading them with another number would give wrong results without a warning.
"""

from __future__ import annotations

from typing import NoReturn

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers

DOMAIN = "com.microsoft.nchwc"


@lowers(
    *("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    *("ReorderInput", "ReorderOutput", "Upsample"),
    domain=DOMAIN,
)
def _refused(call: Call) -> NoReturn:
    call.unsupported(
        f"{call.node.op_type} of '{DOMAIN}' has a layout of the machine that saved the model",
        "use the original model, or let ONNX Runtime save it at ORT_ENABLE_EXTENDED",
    )
