"""Regions on Apple's Core ML, as ML programs; made anywhere, run on macOS alone."""
