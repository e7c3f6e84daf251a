"""Runs compiled programs: the artifact, native code, threads and sessions.

Ships without the compiler: stands on `graft.base` and NumPy. LLVM is loaded only where object code
comes that Graft's own linker does not know.
"""
