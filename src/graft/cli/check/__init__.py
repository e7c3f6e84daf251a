"""`graft check`: whether a model, a compiled file or a backend computes what it should."""
