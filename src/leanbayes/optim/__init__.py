"""Optimizers that know what a random weight is. The first, natural gradients, is on its way."""
