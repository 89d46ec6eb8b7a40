"""Kernels for the CPU, where the operations of torch cost too much."""
