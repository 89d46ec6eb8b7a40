"""Networks of MONAI by name, such as monai:UNet, for images and for volumes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from leanbayes.errors import InputError, MissingPackage
from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import require_positive

__all__ = ["monai_network"]

_UNET = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2), "num_res_units": 2}
_NETWORKS: dict[str, dict[str, Any]] = {  # what each network needs besides channels and axes
    "UNet": _UNET,
    "AttentionUnet": {"channels": (16, 32, 64, 128), "strides": (2, 2, 2)},
    "BasicUNet": {"features": (16, 16, 32, 64, 128, 16)},
    "DynUNet": {
        "kernel_size": (3, 3, 3, 3),
        "strides": (1, 2, 2, 2),
        "upsample_kernel_size": (2, 2, 2),
        "filters": (16, 32, 64, 128),
    },
    "SegResNet": {"init_filters": 8},
    "SwinUNETR": {"feature_size": 12},
    "UNETR": {"feature_size": 8, "hidden_size": 192, "mlp_dim": 768, "num_heads": 6},
    "VNet": {},
}
"""The networks that a saved file may name, with sizes that fit one small graphics card."""

_READS_NUMBERS = ("SwinUNETR",)  # reads numbers while it is built; its size does not depend on that of images
_WITH_SIZE = ("UNETR",)  # networks that must know the size of an image


def monai_network(name: str, in_channels: int, classes: int, size: Sequence[int]) -> nn.Module:
    """Build an untrained network of MONAI.

    For other widths or depths, write a function that returns the network, and give it as ``package.module:function``.

    Args:
        name: the name of the network in ``monai.networks.nets``.
        in_channels: the number of channels of the images.
        classes: the number of classes of a pixel.
        size: the sides of an image or of a volume, two or three.
    """
    require_positive(f"monai:{name}", in_channels=in_channels, classes=classes)
    try:
        from monai.networks import nets
    except ImportError as error:
        raise MissingPackage.of(f"the network monai:{name}", "monai", "medical") from error
    arguments = dict(_NETWORKS[name])
    if name in _WITH_SIZE:
        arguments["img_size"] = tuple(size)
    where = torch.empty(0).device  # "meta" where only the number of weights is asked for
    try:
        with torch.device("cpu" if where.type == "meta" and name in _READS_NUMBERS else where):
            network: nn.Module = getattr(nets, name)(
                spatial_dims=len(size), in_channels=in_channels, out_channels=classes, **arguments
            )
    except (ValueError, TypeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"monai:{name} cannot be built for {in_channels} channels of size {tuple(size)}: {reason}"
        ) from error
    return network.to(where)


MODELS = tuple(Architecture(f"monai:{name}", partial(monai_network, name)) for name in _NETWORKS)
