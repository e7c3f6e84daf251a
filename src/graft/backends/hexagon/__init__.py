"""Regions on Qualcomm's Hexagon DSP, by code generation of Graft's own."""
