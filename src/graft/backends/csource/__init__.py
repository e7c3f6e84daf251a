"""Regions as plain C, compiled by the C compiler of the machine."""
