"""ONNX Runtime's tokenizer."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import lowers_microsoft
from graft.ir.graph import Value


@lowers_microsoft("Tokenizer", "X", "mark mincharnum pad_value separators tokenexp")
def _tokenizer(call: Call) -> Value:
    """One empty separator, or any character as a token, is the same: each character is one."""
    separators, pattern = call.ints("separators", ()), call.string("tokenexp", "")
    if call.has("separators"):
        pattern = ""
        if not separators:
            call.fail("Tokenizer has no separators")
    elif not pattern:
        call.fail("Tokenizer wants either separators or tokenexp")
    least = call.int("mincharnum")
    if separators == ("",) or pattern == ".":
        separators, pattern = (), ""
        if least > 1:
            call.fail(f"Tokenizer wants tokens of {least} characters, and makes some of one")
    return call.op(
        "string.tokenize",
        call.input(0),
        separators=separators,
        pattern=pattern,
        min_length=least,
        mark=call.int("mark") != 0,
        pad=call.string("pad_value"),
    )
