"""The functions of torch that only ask about a tensor, such as its shape, dtype or device.

A tensor subclass without storage can answer them without computing any value.
"""

import torch
from torch import Tensor

__all__ = ["QUESTIONS"]

_PROPERTIES = "shape dtype device ndim layout requires_grad grad_fn is_leaf itemsize nbytes"
_KINDS = "is_cuda is_cpu is_mps is_xpu is_meta is_sparse is_mkldnn is_quantized is_nested"
_METHODS = (
    "size dim numel nelement ndimension stride is_floating_point is_complex is_contiguous element_size get_device"
)
QUESTIONS = {
    *(getattr(Tensor, name).__get__ for name in f"{_PROPERTIES} {_KINDS}".split()),
    *(getattr(Tensor, name) for name in f"{_METHODS} data_ptr __len__ __hash__".split()),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}
