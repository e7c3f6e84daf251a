"""The host backend's own graph passes."""
