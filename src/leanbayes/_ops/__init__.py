"""Kernels for the CPU, where torch's own operations cost too much."""
