"""The one program: instructions over values with symbolic extents; verified, printed, encoded."""
