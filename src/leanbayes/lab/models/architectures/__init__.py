"""Architectures, one file for each family. A file holds its `Architecture`s in a tuple called MODELS."""
