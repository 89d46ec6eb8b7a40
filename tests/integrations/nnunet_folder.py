"""A folder as nnU-Net writes it: plans, data set, and checkpoints of folds with everything that its trainer saves.

The layout is that of nnU-Net 2.8.1 (``nnUNetTrainer.save_checkpoint``). A checkpoint that its own trainer wrote was
read by hand, and the networks gave the same numbers bit for bit; nnU-Net itself is too heavy for the tests.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dynamic_network_architectures.architectures import unet
from torch import nn

KINDS = {"PlainConvUNet": "n_conv_per_stage", "ResidualEncoderUNet": "n_blocks_per_stage"}


def plans(kind: str = "PlainConvUNet", dims: int = 2) -> dict[str, Any]:
    stages = {
        "n_stages": 3,
        "features_per_stage": [4, 8, 16],
        KINDS[kind]: [1, 1, 1],
        "n_conv_per_stage_decoder": [1, 1],
    }
    layers = {"conv_op": f"torch.nn.modules.conv.Conv{dims}d", "kernel_sizes": [[3] * dims] * 3}
    layers |= {"strides": [[1] * dims, [2] * dims, [2] * dims], "conv_bias": True}
    norm = {"norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{dims}d", "norm_op_kwargs": {"affine": True}}
    rest = {"dropout_op": None, "dropout_op_kwargs": None, "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {}}
    architecture = {
        "network_class_name": f"dynamic_network_architectures.architectures.unet.{kind}",
        "arch_kwargs": stages | layers | norm | rest,
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }
    whole = {
        "patch_size": [16] * dims,
        "spacing": [1.5] * dims,
        "normalization_schemes": ["ZScoreNormalization"],
        "architecture": architecture,
    }
    known = {f"{dims}d": whole, f"{dims}d_again": {"inherits_from": f"{dims}d", "spacing": [2.0] * dims}}
    return {"dataset_name": "Dataset001_Toy", "plans_name": "nnUNetPlans", "configurations": known}


def network(content: dict[str, Any], dims: int, channels: int = 1, outputs: int = 2) -> nn.Module:
    """The network as nnU-Net builds it."""
    architecture = content["configurations"][f"{dims}d"]["architecture"]
    settings = dict(architecture["arch_kwargs"])
    for name in architecture["_kw_requires_import"]:
        settings[name] = None if settings[name] is None else getattr(nn, settings[name].rpartition(".")[2])
    kind = getattr(unet, architecture["network_class_name"].rpartition(".")[2])
    return kind(input_channels=channels, num_classes=outputs, deep_supervision=True, **settings)


def checkpoint(net: nn.Module, content: dict[str, Any], fold: int, configuration: str) -> dict[str, Any]:
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.99, nesterov=True)
    return {
        "network_weights": net.state_dict(),
        "optimizer_state": optimizer.state_dict(),
        "grad_scaler_state": None,
        "logging": {
            "mean_fg_dice": [np.float64(0.5)],
            "dice_per_class_or_region": [[np.float64(0.5)]],
            "train_losses": [np.float32(0.1)],
            "lrs": [0.01],
            "epoch_start_timestamps": [1.0],
        },
        "_best_ema": np.float64(0.4),
        "current_epoch": 1000,
        "init_args": {
            "plans": content,
            "configuration": configuration,
            "fold": fold,
            "dataset_json": {},
            "device": torch.device("cpu"),
        },
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1),
    }


def nnunet_folder(
    top: Path, kind: str = "PlainConvUNet", dims: int = 2, folds: int = 2
) -> tuple[Path, list[nn.Module]]:
    """Write a folder; return it and the networks of its folds."""
    folder = top / f"nnUNetTrainer__nnUNetPlans__{dims}d"
    content = plans(kind, dims)
    networks = []
    for fold in range(folds):
        with torch.random.fork_rng():
            torch.manual_seed(fold)
            net = network(content, dims)
        (folder / f"fold_{fold}").mkdir(parents=True)
        torch.save(checkpoint(net, content, fold, f"{dims}d"), folder / f"fold_{fold}" / "checkpoint_final.pth")
        networks.append(net.eval())
    (folder / "plans.json").write_text(json.dumps(content))
    dataset = {"channel_names": {"0": "CT"}, "labels": {"lesion": 1, "background": 0}, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(dataset))
    return folder, networks
