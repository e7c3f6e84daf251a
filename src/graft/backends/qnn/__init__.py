"""Quantised regions on Qualcomm's Hexagon Tensor Processor, compiled and emulated without one."""
