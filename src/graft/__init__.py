"""Graft: a deep-learning compiler that you graft your own backend onto."""
