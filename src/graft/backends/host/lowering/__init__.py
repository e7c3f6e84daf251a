"""Graphs to programs: kernels, memory, instructions."""
