"""One file for each family of architectures. A file holds its `Architecture`s in a tuple called MODELS."""
