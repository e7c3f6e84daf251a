"""Every operator with some of its extents unknown, drawn from the cases that expressions have.

An example is a case and the extents of it that become symbols; what its types then do not allow is
not tried. One kernel is made and run at the case's own size.
"""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.backends.host.symbolic import kernel_of, run
from tests.examples import examples
from tests.ops.expression.cases import CASES, Case, arrays, graph
from tests.ops.expression.test_expressions import assert_close

from graft.backends.host.kernel import Kernel
from graft.base.dims import symbol, symbols_of
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.llvm.compile import object_code
from graft.llvm.load import load
from graft.target.target import host_target


def with_symbols(one: Case, chosen: set[int]) -> Graph | None:
    """The case with symbols for these extents; None if its types do not fit them, or a result has
    any number of axes: programs leave such nodes to the evaluator."""
    builder = Builder()
    values = []
    for number, spec in enumerate(one.operands):
        if spec is None:
            values.append(None)
            continue
        shape = tuple(symbol(f"d{dim}") if dim in chosen else dim for dim in spec[1])
        values.append(builder.input(f"x{number}", TensorType(DType(spec[0]), shape)))
    try:
        results = builder.call(one.op, *values, **one.attrs)
    except UserError:
        return None
    return builder.build(*results) if all(value.shape is not None for value in results) else None


@settings(max_examples=examples(full=1_000, short=12))
@given(st.sampled_from(CASES), st.data())
def test_extents_may_be_unknown(one: Case, data: st.DataObject) -> None:
    extents = sorted({dim for spec in one.operands if spec is not None for dim in spec[1]})
    assume(extents)
    chosen = data.draw(st.sets(st.sampled_from(extents), min_size=1))
    whole, target = with_symbols(one, chosen), host_target()
    assume(whole is not None)
    assert whole is not None
    kernel = kernel_of(whole, target)
    if not isinstance(kernel, Kernel):
        assert "known only at run time" in kernel.reason
        return
    binding = {f"d{dim}": dim for dim in chosen}
    assume(all(symbols_of(dim) <= binding.keys() for dim in kernel.scalars))
    numbers = arrays(one)
    wanted = evaluate(graph(one), numbers)
    code = load(kernel.function, object_code(kernel.function, target))
    given_numbers = dict(zip(whole.inputs, numbers, strict=True))
    with np.errstate(all="ignore"):
        found = run(code, kernel, given_numbers, binding, 2)
    for value, right in zip(whole.outputs, wanted, strict=True):
        if value in found:  # what surely has no elements is not computed
            assert_close(found[value].reshape(np.shape(right)), np.asarray(right))
