"""Algebraic simplification: identities that hold bit for bit, whatever the operands.

So `x + 0.0` stays (it turns -0.0 into 0.0) and `x * 0` goes for integers only (NaN).
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.passes.eliminate_noops import same_shape
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("simplify_algebra")


def simplify_algebra(graph: Graph) -> Graph:
    """Apply the identities until none fits."""
    return apply_rules(graph, RULES)


def _unless_broadcast(site: Site, x: Value) -> Replacement:
    return x if same_shape(x, site.root) else Refusal("the other operand broadcasts it")


@RULES.rule(lambda x: (x * 1) | (x / 1) | (x**1))
def combined_with_one(site: Site, x: Value) -> Replacement:
    return _unless_broadcast(site, x)


@RULES.rule(lambda x: x - 0)
def minus_zero(site: Site, x: Value) -> Replacement:
    zero = site.array(site.node.args[1])
    if zero is not None and np.signbit(zero.astype(np.float64)).any():
        return Refusal("subtracting -0.0 turns -0.0 into 0.0")
    return _unless_broadcast(site, x)


@RULES.rule(lambda x: x + 0)
def plus_zero(site: Site, x: Value) -> Replacement:
    if not x.dtype.is_integer:
        return Refusal("adding 0.0 turns -0.0 into 0.0")
    return _unless_broadcast(site, x)


@RULES.rule(lambda x: x**2)
def square(site: Site, x: Value) -> Replacement:
    if not same_shape(x, site.root):
        return Refusal("the exponent broadcasts it")
    if not x.dtype.is_integer and site.node.args[1].tensor.size != 1:
        return Refusal("powers with an exponent each are rounded differently")
    return site.emit("multiply", x, x)


@RULES.rule(lambda x: x * 0)
def integer_times_zero(site: Site, x: Value) -> Replacement:
    if not x.dtype.is_integer:
        return Refusal("NaN and infinity times 0 are not 0")
    one, other = site.node.args
    zero = other if one is x else one
    return zero if same_shape(zero, site.root) else Refusal("the zero is broadcast")


# f(f(x)) = x
@RULES.rule(is_op("negative", "logical_not", "bitwise_not"))
def involution(site: Site) -> Replacement:
    inner = site.producer(site.node.args[0])
    if inner is None or inner.op is not site.node.op:
        return Refusal("the operand is not the same operator")
    if site.root.dtype is DType.FLOAT8E8M0FNU:
        return Refusal(f"{site.root.dtype} has no negative numbers")
    return inner.args[0]


# f(f(x)) = f(x)
@RULES.rule(is_op("abs", "nn.relu", "ceil", "floor", "round", "sign"))
def idempotence(site: Site) -> Replacement:
    inner = site.producer(site.node.args[0])
    if inner is None or inner.op is not site.node.op:
        return Refusal("the operand is not the same operator")
    return inner.output


@RULES.rule(lambda x: op.negative(x) * op.negative(x))
def square_of_negative(site: Site, x: Value) -> Replacement:
    if x.dtype is DType.FLOAT8E8M0FNU:
        return Refusal(f"{x.dtype} has no negative numbers")
    return site.emit("multiply", x, x)


@RULES.rule(is_op("cast"))
def cast_of_cast(site: Site) -> Replacement:
    inner = site.producer(site.node.args[0])
    if inner is None or inner.op.name != "cast":
        return Refusal("the operand is not a cast")
    source, middle = inner.args[0].dtype, inner.output.dtype
    if not _holds_all(source, middle):
        return Refusal(f"{middle} does not hold every {source}")
    if site.root.dtype is DType.STRING:
        return Refusal(f"{source} and {middle} are not written with the same digits")
    return site.again(site.node, inner.args[0])


def _holds_all(narrow: DType, wide: DType) -> bool:
    """Whether every value of one dtype exists in the other."""
    if narrow == wide:
        return True
    if wide is DType.FLOAT8E8M0FNU:  # powers of two, without a zero
        return False
    if narrow is DType.BOOL and (wide.is_integer or wide.is_float):
        return True
    if DType.STRING in (narrow, wide) or narrow.bits < 8 or wide.bits < 8:
        return False
    return bool(np.can_cast(narrow.numpy, wide.numpy, casting="safe")) and not (
        narrow.is_integer and wide.is_float and narrow.bits > wide.bits // 2
    )


@RULES.rule(is_op("where"))
def condition_is_constant(site: Site) -> Replacement:
    condition, x, y = site.node.args
    constant = site.array(condition)
    if constant is None or constant.size == 0 or not (constant.all() or not constant.any()):
        return Refusal("the condition is not constant")
    return _unless_broadcast(site, x if constant.all() else y)


@RULES.rule(is_op("clip"))
def clip_at_nothing_or_zero(site: Site) -> Replacement:
    low, high = site.node.attrs.a_min, site.node.attrs.a_max
    if len(site.node.inputs) > 1 or low not in (None, 0) or high is not None:
        return Refusal("it has bounds beside a lower one of zero")
    data = site.node.args[0]
    return data if low is None else site.emit("nn.relu", data)
