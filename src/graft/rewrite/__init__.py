"""Patterns over graphs, a matcher that gives reasons, rewrite rules and their driver."""
