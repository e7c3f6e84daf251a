"""What every package builds on: dtypes, index expressions, errors with locations, the registry.

Imports nothing from the rest of Graft.
"""
