"""Templates of kernels on images in blocks of channels."""
