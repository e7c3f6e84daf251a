"""Regions on oneDNN, through its C interface and nothing else."""
