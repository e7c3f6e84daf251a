"""The one compiled program: what it is, and its forms as text, as JSON and for the driver."""
