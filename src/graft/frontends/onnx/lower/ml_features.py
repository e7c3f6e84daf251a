"""ai.onnx.ml: preparing features, looking labels up, and maps to and from tensors."""

from __future__ import annotations

import math

import numpy as np

from graft.base.dim_questions import provably_equal
from graft.base.dims import dim_min
from graft.base.dtypes import Array, DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value
from graft.ir.types import MapType, TensorType

ML = "ai.onnx.ml"


def one_of(call: Call, names: tuple[str, ...]) -> str:
    """The only one of these attributes that the node has and that is not empty."""
    present = [name for name in names if call.has(name) and call.attribute(name) != ()]
    if len(present) != 1:
        have = " and ".join(present) or "none"
        call.fail(f"{call.node.op_type} wants one of {', '.join(names)}, has {have}")
    return present[0]


def labels_of(call: Call, names: tuple[str, ...]) -> Array:
    """The list of integers, numbers or strings that is the only one of these attributes."""
    name = one_of(call, names)
    if name.endswith("tensor"):
        return call.tensor(name).reshape(-1)
    items = call.ints(name)
    dtypes = {str: object, float: np.float32, int: np.int64}
    return np.array(items, dtypes[type(items[0])])


@lowers("ArrayFeatureExtractor", domain=ML)
def _array_feature_extractor(call: Call) -> Value:
    data, rank = call.input(0), call.rank(call.input(0))
    columns = call.op("reshape", call.input(1), shape=(-1,))
    columns_of = call.op("take", data, columns, axis=-1)
    return call.op("expand_dims", columns_of, axes=(0,)) if rank == 1 else columns_of


@lowers("Binarizer", domain=ML)
def _binarizer(call: Call) -> Value:
    data = call.input(0)
    compared = data if data.dtype.is_float else call.op("cast", data, dtype=DType.FLOAT64)
    above = call.op("greater", compared, call.scalar(call.float("threshold", 0.0), compared))
    return call.op("cast", above, dtype=data.dtype)


@lowers("Imputer", domain=ML)
def _imputer(call: Call) -> Value:
    data = call.input(0)
    floats = data.dtype.is_float
    name = one_of(call, ("imputed_value_floats", "imputed_value_int64s"))
    if floats != (name == "imputed_value_floats"):
        call.fail(f"{name} does not fit {data.dtype} elements")
    values = np.array(call.ints(name), data.dtype.numpy)
    imputed = call.constant(values if len(values) > 1 else values[0])
    replaced = call.float("replaced_value_float", 0.0)
    if not floats:
        replaced = call.int("replaced_value_int64", 0)
    if math.isnan(replaced):
        missing = call.op("isnan", data)
    else:
        missing = call.op("equal", data, call.scalar(replaced, data))
    return call.op("where", missing, imputed, data)


@lowers("Scaler", domain=ML)
def _scaler(call: Call) -> Value:
    result = cast_to(call, call.input(0), DType.FLOAT32)
    offset, scale = call.ints("offset", ()), call.ints("scale", ())
    if offset and scale and len(offset) != len(scale):
        call.fail(f"there are {len(offset)} offsets but {len(scale)} scales")
    for name, numbers in (("subtract", offset), ("multiply", scale)):
        if numbers:
            array = np.array(numbers, np.float32)
            result = call.op(name, result, call.constant(array if len(array) > 1 else array[0]))
    return result


@lowers("Normalizer", domain=ML)
def _normalizer(call: Call) -> Value:
    data = cast_to(call, call.input(0), DType.FLOAT32)
    if data.shape is not None and len(data.shape) not in (1, 2):
        call.fail(f"Normalizer wants a tensor of shape [C] or [N, C], not {data.tensor}")
    along = {"axes": (-1,), "keepdims": True}
    norm = call.string("norm", "MAX")
    if norm == "MAX":
        divisor = call.op("max", data, **along)
    elif norm == "L1":
        divisor = call.op("sum", call.op("abs", data), **along)
    elif norm == "L2":
        divisor = call.op("sqrt", call.op("sum", call.op("multiply", data, data), **along))
    else:
        call.fail(f"norm is '{norm}', none of MAX, L1, L2")
    zero = call.op("equal", divisor, call.scalar(0, divisor))
    return call.op("where", zero, data, call.op("divide", data, divisor))


@lowers("FeatureVectorizer", domain=ML)
def _feature_vectorizer(call: Call) -> Value:
    widths = call.ints("inputdimensions", (None,) * len(call.inputs))
    if len(widths) != len(call.inputs):
        call.fail(f"there are {len(call.inputs)} inputs but {len(widths)} inputdimensions")
    columns = [_columns(call, i, width) for i, width in enumerate(widths)]
    return call.op("concatenate", *columns, axis=1)


def _columns(call: Call, position: int, width: int | None) -> Value:
    """One input as [rows, width]: columns beyond the width are cut off, missing ones are zero."""
    data = cast_to(call, call.input(position), DType.FLOAT32)
    rank = call.rank(data)
    if rank == 1:
        data = call.op("expand_dims", data, axes=(0,))
    elif rank != 2:
        data = call.op("reshape", data, shape=(0, -1))
    assert data.shape is not None
    extent = data.shape[1]
    if width is None or provably_equal(extent, width):
        return data
    width_used = dim_min(extent, width)
    if not provably_equal(extent, width_used):
        data = call.op("strided_slice", data, begin=(0,), end=(width,), axes=(1,), strides=(1,))
    if provably_equal(width_used, width):
        return data
    return call.op("nn.pad", data, pad_width=(0, 0, 0, width - width_used))


@lowers("LabelEncoder", domain=ML)
def _label_encoder(call: Call) -> Value:
    data = call.input(0)
    if call.opset == 1:
        classes = np.array(call.ints("classes_strings", ()), object)
        return _between(call, np.arange(len(classes)), classes)
    kinds = ("strings", "int64s", "floats", "tensor")
    supported = [kind for kind in kinds if kind != "tensor" or call.opset >= 4]
    keys = labels_of(call, tuple(f"keys_{kind}" for kind in supported))
    values = labels_of(call, tuple(f"values_{kind}" for kind in supported))
    if len(keys) != len(values):
        call.fail(f"there are {len(keys)} keys but {len(values)} values")
    default = _default(call, values)
    return call.op("ml.label_map", data, keys=keys, values=values, default=default)


def _default(call: Call, values: Array) -> Array:
    """What an element becomes that is no key."""
    if call.has("default_tensor"):
        return call.tensor("default_tensor").reshape(-1)
    if values.dtype == object:
        return np.array(call.string("default_string", "_Unused"), object)
    if values.dtype.kind == "f":
        return np.array(call.float("default_float", -0.0), values.dtype)
    return np.array(call.int("default_int64", -1), values.dtype)


def _between(call: Call, integers: Array, strings: Array) -> Value:
    """A mapping between integers and strings, from the input's dtype to the other."""
    data = call.input(0)
    if len(integers) != len(strings):
        call.fail(f"there are {len(integers)} integers but {len(strings)} strings")
    pair = (strings, integers) if data.dtype is DType.STRING else (integers, strings)
    default = _default(call, pair[1])
    return call.op("ml.label_map", data, keys=pair[0], values=pair[1], default=default)


@lowers("CategoryMapper", domain=ML)
def _category_mapper(call: Call) -> Value:
    integers = np.array(call.ints("cats_int64s", ()), np.int64)
    return _between(call, integers, np.array(call.ints("cats_strings", ()), object))


@lowers("OneHotEncoder", domain=ML)
def _one_hot_encoder(call: Call) -> Value:
    data = call.input(0)
    categories = labels_of(call, ("cats_int64s", "cats_strings"))
    if data.dtype not in (DType.STRING, DType.INT64):
        data = call.op("cast", data, dtype=DType.INT64)
    count = len(categories)
    columns = np.arange(count)
    # A category that is not known gets a column that does not exist, or is refused.
    default = np.array(count) if call.int("zeros", 1) else None
    index = call.op("ml.label_map", data, keys=categories, values=columns, default=default)
    off_on = call.constant(np.array([0, 1], np.float32))
    return call.op("one_hot", index, off_on, depth=count, axis=-1)


@lowers("CastMap", domain=ML)
def _cast_map(call: Call) -> Value:
    targets = {"TO_FLOAT": DType.FLOAT32, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}
    target = call.string("cast_to", "TO_FLOAT")
    form = call.string("map_form", "DENSE")
    if target not in targets:
        call.fail(f"cast_to is '{target}', none of {', '.join(targets)}")
    if form not in ("DENSE", "SPARSE"):
        call.fail(f"map_form is '{form}', neither DENSE nor SPARSE")
    length = call.int("max_map", 1) if form == "SPARSE" else None
    dtype = _value_dtype(call)
    fill = "" if target == "TO_STRING" else "0"
    row = call.op("ml.map_to_tensor", call.input(0), dtype=dtype, length=length, fill=fill)
    return cast_to(call, row, targets[target])


def _value_dtype(call: Call) -> DType:
    type_ = call.input(0).type
    if not isinstance(type_, MapType) or not isinstance(type_.value, TensorType):
        call.fail(f"{call.node.op_type} wants a map, not {type_}")
    return type_.value.dtype


@lowers("DictVectorizer", domain=ML)
def _dict_vectorizer(call: Call) -> Value:
    vocabulary = labels_of(call, ("int64_vocabulary", "string_vocabulary"))
    dtype = _value_dtype(call)
    return call.op("ml.dict_vectorize", call.input(0), vocabulary=vocabulary, dtype=dtype)


@lowers("ZipMap", domain=ML)
def _zip_map(call: Call) -> Value:
    labels = labels_of(call, ("classlabels_int64s", "classlabels_strings"))
    return call.op("ml.zip_map", call.input(0), labels=labels)
