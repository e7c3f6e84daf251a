"""Quantised regions on an int8 systolic array in Verilog, simulated cycle by cycle."""
