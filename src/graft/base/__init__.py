"""Ground that every room stands on: dtypes, dims, errors with places, the registry.

Imports nothing from the rest of Graft.
"""
