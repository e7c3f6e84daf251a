"""Ready forms of code generation to inherit from: JSON graphs, C source, ONNX models."""
