"""Code formats to inherit from: JSON graphs, C source, ONNX models."""
