"""The host backend: graphs with static shapes as machine code for the CPU at hand."""
