"""A simulated accelerator, for studying placement without hardware."""
