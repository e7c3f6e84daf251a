"""Measurements of Graft, the records they leave in docs/results and the pages made from these."""
