"""Products of matrices in float32 on the CPU, as convolutions by 1x1.

torch multiplies matrices by MKL and convolves by oneDNN. On processors of AMD, MKL takes 2.4 times as long for the same
product (EPYC with AVX-512, one thread: 1 to 2.6 ms). A convolution of images by 1x1 is that product: each row of the
matrix is a position. torch hands such a convolution to oneDNN if the batch has at least 16 images, or if it computes in
several threads; so the rows are divided among that many images. The results agree up to rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["against_rows", "times_matrix"]

_LEAST = 2**22  # products of two numbers, below which the calls cost more than is saved
_FEWEST_IMAGES = 16  # with which torch takes oneDNN for convolutions by 1x1
_MOST_IMAGES = 256
_POSITIONS = 512  # of an image, above which the gradient of the matrix takes twice as long
_POINT = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, transposed, output padding, groups


def times_matrix(value: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return value @ matrixᵀ + bias, as `torch.nn.functional.linear` does.

    >>> times_matrix(torch.ones(2, 3), torch.ones(4, 3))
    tensor([[3., 3., 3., 3.],
            [3., 3., 3., 3.]])
    """
    images = _number_of_images(value, matrix)
    if images is None:
        return F.linear(value, matrix, bias)
    product = F.conv2d(_as_images(value, images), matrix[:, :, None, None], bias)
    return product.permute(0, 2, 3, 1).reshape(*value.shape[:-1], len(matrix))


def against_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return Σ_r left_r right_rᵀ over all rows r: what ``times_matrix`` gives its matrix as gradient.

    >>> against_rows(torch.ones(2, 1), torch.ones(2, 3))
    tensor([[2., 2., 2.]])
    """
    matrix = right.new_empty(1).expand(left.shape[-1], right.shape[-1])  # of which only the shape matters
    images = _number_of_images(right, matrix)
    if images is None or left.dtype != right.dtype:
        return left.flatten(0, -2).mT @ right.flatten(0, -2)
    pair = _as_images(left, images), _as_images(right, images)
    product: Tensor
    _, product, _ = torch.ops.aten.convolution_backward(
        *pair, matrix[:, :, None, None], None, *_POINT, [False, True, False]
    )
    return product.flatten(1)


def _number_of_images(value: Tensor, matrix: Tensor) -> int | None:
    """Return among how many images the rows are to be divided; None if a convolution does not pay or is impossible."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():  # a graph would fix the number of images
        return None
    rows = value.numel() // max(value.shape[-1], 1)
    if rows < _FEWEST_IMAGES or value.numel() * len(matrix) < _LEAST:
        return None
    plain = all(type(t) in (Tensor, nn.Parameter) for t in (value, matrix))
    if not plain or any(t.dtype != torch.float32 or t.device.type != "cpu" for t in (value, matrix)):
        return None
    if torch._C._functorch.maybe_current_level() or not torch.backends.mkldnn.is_available():
        return None
    fewest = max(_FEWEST_IMAGES, -(-rows // _POSITIONS))
    return next((n for n in range(fewest, min(_MOST_IMAGES, rows // 2) + 1) if rows % n == 0), None)


def _as_images(value: Tensor, images: int) -> Tensor:
    """Return the rows as the positions of so many images of height 1, in channels_last."""
    size = value.shape[-1]
    return value.reshape(images, 1, -1, size).permute(0, 3, 1, 2)
