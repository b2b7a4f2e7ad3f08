"""Kernel Assay: the honest judge for GPU kernels that coding agents write."""

__version__ = "0.1.0"
