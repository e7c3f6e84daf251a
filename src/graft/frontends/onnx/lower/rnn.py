"""Recurrent layers: RNN, GRU and LSTM.

Activation functions get Graft's names and all their coefficients, and the batch-first layout
becomes transposes around the time-first operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value

# ONNX's name in lower case -> (Graft's name, default alpha, default beta). None: it takes no such
# coefficient; "?": it takes one and has no default.
_ACTIVATIONS: dict[str, tuple[str, Any, Any]] = {
    "relu": ("relu", None, None),
    "tanh": ("tanh", None, None),
    "sigmoid": ("sigmoid", None, None),
    "affine": ("affine", 1.0, 0.0),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "thresholdedrelu": ("thresholded_relu", 1.0, None),
    "scaledtanh": ("scaled_tanh", "?", "?"),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "elu": ("elu", 1.0, None),
    "softsign": ("softsign", None, None),
    "softplus": ("softplus", None, None),
}


def _activations(call: Call, defaults: tuple[str, ...], directions: int) -> dict[str, Any]:
    """The attributes that name the activation functions and give their coefficients."""
    names = call.attribute("activations", defaults * directions)
    if len(names) == 2 * len(defaults):
        names = names[: directions * len(defaults)]  # RNN's default always lists both directions'
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            call.fail(f"'{name}' is no activation of {call.node.op_type}")
    activations = [_ACTIVATIONS[name.lower()] for name in names]
    result: dict[str, Any] = {"activations": [name for name, _, _ in activations]}
    for position, attribute in ((1, "activation_alpha"), (2, "activation_beta")):
        values = iter(call.attribute(attribute, ()))
        if any(entry[position] is not None for entry in activations):
            result[attribute] = [
                _coefficient(call, attribute, entry[position], values) for entry in activations
            ]
    return result


def _coefficient(call: Call, attribute: str, default: Any, values: Iterator[float]) -> float:
    """The next value that the model gives, for a function that takes one."""
    if default is None:
        return 0.0
    value = next(values, default)
    if value == "?":
        call.fail(f"ScaledTanh wants its coefficient in {attribute}")
    return float(value)


def _recurrent(
    call: Call, name: str, defaults: tuple[str, ...], states: int, **attrs: Any
) -> tuple[Value, ...]:
    directions = 2 if call.string("direction", "forward") == "bidirectional" else 1
    batch_first = bool(call.int("layout", 0))
    operands = [*call.inputs, *[None] * (8 - len(call.inputs))]
    if batch_first:
        for i in (0, *range(5, 5 + states)):
            operands[i] = _swapped(call, operands[i])
    _check_hidden_size(call, operands[2])
    results = call.ops(
        name,
        *operands[: len(call.inputs)],
        clip=call.float("clip", None),
        direction=call.string("direction", "forward"),
        **_activations(call, defaults, directions),
        **attrs,
    )
    if not batch_first:
        return results
    everything = call.op("transpose", results[0], axes=[2, 0, 1, 3])
    lasts = (call.op("transpose", value, axes=[1, 0, 2]) for value in results[1:])
    return (everything, *lasts)


def _swapped(call: Call, value: Value | None) -> Value | None:
    return None if value is None else call.op("transpose", value, axes=[1, 0, 2])


def _check_hidden_size(call: Call, recurrent: Value | None) -> None:
    size = call.int("hidden_size", None)
    shape = None if recurrent is None else recurrent.shape
    if size is not None and shape and isinstance(shape[-1], int) and shape[-1] != size:
        call.fail(f"hidden_size is {size}, but the recurrent weight is for {shape[-1]}")


@lowers("RNN")
def _rnn(call: Call) -> tuple[Value, ...]:
    return _recurrent(call, "nn.rnn", ("Tanh",), 1)


@lowers("GRU")
def _gru(call: Call) -> tuple[Value, ...]:
    linear = bool(call.int("linear_before_reset", 0))
    return _recurrent(call, "nn.gru", ("Sigmoid", "Tanh"), 1, linear_before_reset=linear)


@lowers("LSTM")
def _lstm(call: Call) -> tuple[Value, ...]:
    coupled = bool(call.int("input_forget", 0))
    return _recurrent(call, "nn.lstm", ("Sigmoid", "Tanh", "Tanh"), 2, input_forget=coupled)
