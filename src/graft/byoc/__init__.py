"""Bring your own codegen: everything that a backend's author imports.

from graft.byoc import Backend, Refusal, is_op, wildcard
"""

from __future__ import annotations

from graft.byoc.annotate import register_op_attr, register_pattern_table
from graft.byoc.boundary import in_wished_form
from graft.byoc.contract import Backend, Cost, Limits, Match, Runner, Source
from graft.byoc.discover import register_backend
from graft.byoc.formats.json_graph import JsonBackend
from graft.byoc.sizes import node_work
from graft.rewrite.pattern import (
    formula,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    op,
    wildcard,
)
from graft.rewrite.rule import Refusal

__all__ = [
    "Backend",
    "Cost",
    "JsonBackend",
    "Limits",
    "Match",
    "Refusal",
    "Runner",
    "Source",
    "formula",
    "in_wished_form",
    "is_constant",
    "is_op",
    "is_tuple",
    "is_tuple_get_item",
    "node_work",
    "op",
    "register_backend",
    "register_op_attr",
    "register_pattern_table",
    "wildcard",
]
