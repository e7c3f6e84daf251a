"""Post-training quantisation: a float graph and sample data in, a graph with Q/DQ nodes out."""
