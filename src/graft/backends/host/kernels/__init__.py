"""Kernel templates: each turns a node, or a fusion group, into a loop function."""
