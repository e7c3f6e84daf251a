"""Generated ONNX models, run by Graft and by ONNX Runtime, and what comes of comparing them."""
