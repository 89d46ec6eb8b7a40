"""Networks as graphs for other runtimes: ONNX files and programs of `torch.export`.

`onnx` writes a file, and `program` returns a graph of torch. Both hold the network with its uncertainty: the mean
network, several draws of it, or one pass of moments. `docs/export.md` explains the choices.
"""

from leanbayes.export.onnx_file import OnnxFile, onnx
from leanbayes.export.programs import program

__all__ = ["OnnxFile", "onnx", "program"]
