"""Predictions of kernels for machines that are not at hand."""
