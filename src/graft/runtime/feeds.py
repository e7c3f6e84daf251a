"""Arrays from users: whatever they hold in, arrays that a program takes out, or an error that says
what is wrong with it. Names and arrays for outputs are checked here, too.

Arrays, and whatever speaks the buffer protocol or DLPack, are used where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError, UnsupportedError, UserError
from graft.program.program import Value
from graft.runtime.dispatch import Dispatcher, check_output

ONNX_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
_DTYPES = {name: dtype for dtype, name in ONNX_NAMES.items()}
_OPTIONAL = "optional("


class InputSlot:
    """How data for one input are taken; mostly they are arrays as the program says."""

    def __init__(self, value: Value) -> None:
        self._value = value
        is_typed = value.dtype is not None and value.shape is not None
        self._dtype = value.dtype.numpy if value.dtype is not None and is_typed else None
        self._rank = len(value.shape or ())
        numbered = enumerate(value.shape or ())
        self._fixed = [(axis, dim) for axis, dim in numbered if isinstance(dim, int)]

    def accept(self, data: Any) -> Any:
        """The data as an array, refused where that does not fit."""
        plain = self._dtype is not None and type(data) is np.ndarray
        if plain and data.dtype == self._dtype and data.ndim == self._rank:
            shape = data.shape
            if all(shape[axis] == dim for axis, dim in self._fixed):
                return data
        return _accepted(self._value, data)


def _accepted(value: Value, data: Any) -> Any:
    """The data for an input, refused where its type does not fit."""
    words = value.type
    if words.startswith(_OPTIONAL):
        if data is None:
            return None
        words = words[len(_OPTIONAL) : -1]
    dtype = value.dtype or _tensor_dtype(words)
    if dtype is None:
        return data
    array = as_array(value.name, data)
    if array.dtype.kind in "UST":
        array = array.astype(object)
    check_type("input", value.name, dtype, value, array)
    return array


def _tensor_dtype(words: str) -> DType | None:
    """The dtype of a tensor by its type in ONNX's words; None for what is no tensor."""
    kind, _, name = words.removesuffix(")").partition("(")
    return (_DTYPES.get(name) or DType(name)) if kind == "tensor" else None


def check_type(kind: str, name: str, dtype: DType, value: Value, array: Array) -> None:
    """Refuse an array that is not of a value's type, as far as that is known before a run."""
    extents = "*" if value.shape is None else ", ".join(map(str, value.shape))
    expected = f"{dtype}[{extents}]"
    try:
        actual = dtype_of(array.dtype)
    except UnsupportedError as error:
        raise UserError(f"the {kind} '{name}' wants {expected}: {error.message}") from None
    actual_type = f"{actual}[{', '.join(map(str, array.shape))}]"
    if actual != dtype:
        hint = f"convert it with .astype('{dtype}')" if kind == "input" else ""
        raise UserError(f"the {kind} '{name}' wants {expected}, not {actual_type}", hint=hint)
    shape = value.shape
    if shape is None:
        return
    same = len(shape) == array.ndim and all(
        dim == extent or not isinstance(dim, int)
        for dim, extent in zip(shape, array.shape, strict=True)
    )
    if not same:
        raise UserError(f"the {kind} '{name}' wants {expected}, not {actual_type}")


def as_array(name: str, data: Any) -> Array:
    """Anything that holds a tensor as an array, without copying where that is possible."""
    from_numpy = isinstance(data, np.ndarray | np.generic)
    try:
        if hasattr(data, "__dlpack__") and not from_numpy:
            return np.from_dlpack(data)
        array = np.asarray(data)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"the input '{name}' cannot be read: {error}",
            hint="tensors have to lie in the memory of the host and be of a type NumPy knows",
        ) from error


def dispatched(dispatcher: Dispatcher, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What the fast way gives, whose own checks are few; None where it does not serve."""
    try:
        return dispatcher.run(feeds)
    except (AttributeError, TypeError):
        require_feeds(feeds)
        raise
    except MemoryError as error:
        raise no_memory(str(error)) from None


def require_feeds(feeds: Any) -> None:
    """Refuse what does not say which array is for which input."""
    if not isinstance(feeds, Mapping):
        raise UserError(
            f"inputs are given by name, in a dict, not as {type(feeds).__name__}",
            hint='run(None, {"x": array}), or {} where there are no inputs',
        )


def no_memory(detail: str) -> EvaluationError:
    """The error of a run that the system has no memory for."""
    return EvaluationError(
        f"there is not enough memory: {detail or 'an allocation failed'}",
        hint="try smaller inputs, or a larger machine",
    )


def chosen(names: Iterable[str], output_names: Sequence[str]) -> list[int]:
    """The positions of named outputs; refuses names that are none's."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UserError(
            f"output names are None or a list, not {names!r}",
            hint=f"outputs: {_listed(output_names)}",
        )
    try:
        return [output_names.index(name) for name in names]
    except ValueError:
        unknown = next(name for name in names if name not in output_names)
    raise UserError(f"there is no output '{unknown}'", hint=f"outputs: {_listed(output_names)}")


def refuse_names(feeds: Mapping[str, Any], input_names: Sequence[str]) -> None:
    """Refuse feeds that lack an input, or that are for none."""
    hint = f"inputs: {_listed(input_names)}"
    for name in feeds:
        if name not in input_names:
            raise UserError(f"there is no input '{name}'", hint=hint)
    for name in input_names:
        if name not in feeds:
            raise UserError(f"the input '{name}' is missing", hint=hint)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def check_writable(outputs: Mapping[str, Array]) -> None:
    """Refuse, by the outputs' names, what no results can be written into."""
    arrays: list[Array] = []
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise UserError(
                f"the array for the output '{name}' is a {type(array).__name__}",
                hint="outputs= takes NumPy arrays; np.from_dlpack makes one of most tensors",
            )
        if not array.flags.writeable:
            raise UserError(f"the array for the output '{name}' is read-only")
        if any(np.may_share_memory(array, other) for other in arrays):
            raise UserError(f"the array for the output '{name}' overlaps another output's")
        arrays.append(array)


def store_outputs(
    names: Sequence[str], results: Sequence[Any], outputs: Mapping[str, Array]
) -> list[Any]:
    """The results, those for which there is an array (by name) written into it."""
    arrays = [outputs.get(name) for name in names]
    # A result that lies where another one goes has to be saved before anything is written.
    stored = [
        result if result is array else _apart(result, outputs.values())
        for result, array in zip(results, arrays, strict=True)
    ]
    for position, array in enumerate(arrays):
        if array is not None and stored[position] is not array:
            result = np.asarray(stored[position])
            check_output(names[position], result.shape, result.dtype, array)
            array[...] = result
            stored[position] = array
    return stored


def _apart(result: Any, arrays: Iterable[Array]) -> Any:
    """The result, copied if it shares memory with one of the arrays."""
    if isinstance(result, np.ndarray) and any(np.may_share_memory(result, one) for one in arrays):
        return result.copy()
    return result
