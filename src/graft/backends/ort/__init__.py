"""Regions on any execution provider of ONNX Runtime."""
