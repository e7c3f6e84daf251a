"""Puts nodes into an order in which each follows those it reads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from graft.base.errors import InternalError
from graft.ir.graph import Node, Value


def in_order(
    outputs: Iterable[Value], producer: dict[Value, Node], rank: Callable[[Node], Any]
) -> tuple[Node, ...]:
    """The nodes that the outputs need, sorted topologically and otherwise by `rank`."""
    needed = _needed(outputs, producer)
    waiting: dict[Node, int] = {}
    followers: dict[Node, list[Node]] = {}
    for node in needed:
        before = {producer[v] for v in node.args if v in producer}
        waiting[node] = len(before)
        for other in before:
            followers.setdefault(other, []).append(node)
    ready = [(rank(node), number, node) for number, node in enumerate(needed) if not waiting[node]]
    heapq.heapify(ready)
    ordered: list[Node] = []
    number = len(needed)
    while ready:
        node = heapq.heappop(ready)[2]
        ordered.append(node)
        for follower in followers.get(node, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                number += 1
                heapq.heappush(ready, (rank(follower), number, follower))
    if len(ordered) < len(needed):
        raise InternalError("a rewrite has made a cycle")
    return tuple(ordered)


def _needed(outputs: Iterable[Value], producer: dict[Value, Node]) -> list[Node]:
    needed: dict[Node, None] = {}
    stack = [producer[value] for value in outputs if value in producer]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed[node] = None
            stack.extend(producer[value] for value in node.args if value in producer)
    return list(needed)
