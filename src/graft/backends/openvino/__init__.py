"""Regions on Intel's OpenVINO, handed over as ONNX models."""
