"""The one place that decides whether Triton's kernels can be used, and what a GPU does with numbers of a type.

Triton comes with the CUDA builds of torch for Linux. Without it, each operation takes a path through torch that gives
the same results up to rounding.
"""

import os
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import InputError, MissingPackage, PerformanceWarning

__all__ = ["has_kernels", "interpreted", "require_triton", "tensor_cores"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CAPABILITY = (8, 0)  # Ampere, the first processors that multiply bfloat16 and TF32


def interpreted() -> bool:
    """Return whether Triton interprets its kernels on the CPU, as tests let it do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def has_kernels(x: Tensor) -> bool:
    """Return whether the kernels of Triton can take a tensor: it lies on an NVIDIA GPU, and Triton is there."""
    return x.is_cuda and x.dtype in DTYPES and _on_device(x.device.index or 0)


@cache
def _on_device(number: int) -> bool:
    if torch.version.cuda is None or torch.cuda.get_device_capability(number) < _CAPABILITY:
        return False
    if find_spec("triton") is None:
        warnings.warn(
            "triton is not installed, so products by sparse weights on the GPU are dense, or use the sparse matrices "
            "of torch; it comes with the CUDA builds of torch for Linux",
            PerformanceWarning,
            stacklevel=2,
        )
        return False
    return True


def require_triton(kernel: str, x: Tensor) -> None:
    """Raise an error where a kernel of Triton was asked for by name and cannot take the input."""
    if find_spec("triton") is None:
        raise MissingPackage(
            f'the kernel "{kernel}" needs the package triton, which is not installed; it comes with the CUDA builds of '
            'torch for Linux; with kernel="auto" torch computes the same'
        )
    if not x.is_cuda and not interpreted():
        raise InputError(
            f'the kernel "{kernel}" runs on NVIDIA GPUs, and the input is on {x.device}; choose "auto", or move model '
            "and input to a GPU"
        )
    if x.dtype not in DTYPES:
        raise InputError(
            f'the kernel "{kernel}" takes float32, float16 and bfloat16, got {x.dtype}; choose "auto" or "dense"'
        )


def tensor_cores(dtype: torch.dtype, is_linear: bool) -> bool:
    """Return whether torch multiplies numbers of a type on tensor cores: always half ones, float32 if TF32 is allowed.

    The settings are those of torch, which by default allow TF32 for convolutions and not for products of matrices.
    """
    if dtype != torch.float32:
        return dtype in (torch.float16, torch.bfloat16)
    cudnn: Any = torch.backends.cudnn
    setting: Any = torch.backends.cuda.matmul if is_linear else getattr(cudnn, "conv", cudnn)
    if hasattr(setting, "fp32_precision"):  # newer releases refuse to mix this setting with the older one
        return bool(setting.fp32_precision == "tf32")
    return bool(setting.allow_tf32)
