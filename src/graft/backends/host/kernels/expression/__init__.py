"""The template of tensor expressions and its default schedules."""
