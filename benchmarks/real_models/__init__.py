"""Trained models beside ONNX Runtime: inputs that they are made for, and a verdict."""
