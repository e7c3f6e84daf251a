"""The reference backend: runs any verified graph with NumPy. Slow, and right: the oracle."""
