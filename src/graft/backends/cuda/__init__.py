"""NVIDIA GPUs: code generation through LLVM, and the CUDA driver at run time."""
