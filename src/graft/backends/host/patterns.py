"""What the host has native code for, as patterns: single operators, and layers as it fuses them.

Placement needs none of them: the host's candidates are its fusion groups, and what has no native
code runs on the evaluator. They are what the author's kit puts to the test.
"""

from __future__ import annotations

from graft.backends.host.templates import TEMPLATES
from graft.byoc.contract import PatternTable
from graft.ops import OPS, get_op
from graft.rewrite.pattern import Pattern, is_op, wildcard

# Operators that only the host's own passes write, and tensors from nothing, which are constants in
# any region. The result of `nonzero` has a data-dependent size, which regions must not have.
# Models that are tables (of trees, labels, n-grams) have tests of their own.
_SUPPRESSION = "vision.bounded_non_max_suppression"
_WINDOWS = "nn.deformable_windows"
_INTERNAL = {
    *("bounded_unique", "nn.channel_norm", "nn.recurrence", "out_of_range"),
    *(_SUPPRESSION, _WINDOWS),
}
_CONSTANT = {"arange", "eye", "full", "mel_weight_matrix", "shape_of"}
_UNSIZED = {"nonzero"}
_TABLES = {"ml.label_map", "ml.tree_ensemble", "nlp.tfidf"}
_LEFT_OUT = _INTERNAL | _CONSTANT | _UNSIZED | _TABLES

_ANCHORS = ("nn.conv2d", "nn.dense", "nn.batch_matmul")
_ACTIVATIONS = ("nn.relu", "nn.gelu", "sigmoid", "tanh", "clip")


def host_patterns() -> PatternTable:
    """Layers with what follows them in one kernel, then every operator by itself."""
    operators = {name: get_op(name) for name in OPS}
    expressed = {name for name, op in operators.items() if op.expression or op.scalar}
    anchors = (one.anchors for one in TEMPLATES if isinstance(one.anchors, frozenset))
    names = sorted(expressed.union(*anchors) - _LEFT_OUT)
    fused = [(f"{name} and more", _fused(name)) for name in _ANCHORS]
    return [*fused, *((name, is_op(name)) for name in names)]


def _fused(anchor: str) -> Pattern:
    """A product, a bias or another operand added to it, an activation."""
    product = is_op(anchor)(wildcard(), wildcard())
    biased = is_op("nn.bias_add")(product, wildcard())
    added = is_op("add")(biased, wildcard())
    return is_op(*_ACTIVATIONS)(added | biased | product)
