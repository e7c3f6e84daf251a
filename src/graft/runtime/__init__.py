"""Runs compiled programs: the artifact, native code, threads and sessions.

Ships without the compiler: stands on `graft.base`, NumPy and, for linking object code, llvmlite.
"""
