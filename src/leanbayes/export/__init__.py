"""Export of Bayesian networks to ONNX and `torch.export`. It is on its way."""
