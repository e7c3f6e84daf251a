"""Loop IR in, machine code out: LLVM text, object code, a cache of it, and callable kernels."""
