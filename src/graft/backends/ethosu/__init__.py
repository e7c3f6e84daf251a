"""Regions on Arm's Ethos-U neural processing units."""
