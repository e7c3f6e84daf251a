"""NVIDIA's cuDNN as a backend."""
