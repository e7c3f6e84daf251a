"""The one compiled program: what it is, whether it is well-formed, and its form as JSON and text."""
