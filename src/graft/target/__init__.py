"""Machines as data: what code may rely on, and the numbers that schedules are derived from."""
