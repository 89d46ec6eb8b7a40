"""Tiny networks of the kinds that people export, each with a batch and the name that the graph gives its input."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb


class Residual(nn.Module):
    """A ResNet: a stem, two residual blocks with batch norm, a mean over the positions, and a head."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.head = nn.Linear(width, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.stem(image))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(x + norm(convolution(x)))
        return self.head(x.mean((2, 3)))


class Segmenting(nn.Module):
    """A U-Net of two levels: a convolution down, a transposed one up, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        high = F.relu(self.down(image))
        low = F.relu(self.low(F.max_pool2d(high, 2)))
        return self.out(torch.cat([high, self.up(low)], 1))


class Attending(nn.Module):
    """A ViT of one block: patches, positions, attention, and a network of two layers, with layer norms before."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(1, width, 3, 3), nn.Parameter(0.1 * torch.randn(1, 4, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.head = nn.Linear(width, 12), nn.Linear(12, width), nn.Linear(width, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(x.mean(1))


@dataclass(frozen=True)
class Net:
    """A network to export."""

    model: nn.Module
    batch: Tensor
    input_name: str


def net(kind: str) -> Net:
    """Return a network with random weights and statistics, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {
            "mlp": lambda: Net(nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 3)), torch.randn(4, 3), "input"),
            "resnet": lambda: Net(Residual(), torch.randn(4, 2, 5, 5), "image"),
            "unet": lambda: Net(Segmenting(), torch.randn(3, 1, 6, 6), "image"),
            "vit": lambda: Net(Attending(), torch.randn(3, 1, 6, 6), "image"),
        }[kind]()
        for module in made.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
    return made


def bayesian(kind: str, **options: object) -> lb.Bayesian:
    """Return such a network with random weights."""
    return lb.Bayesian(net(kind).model, posterior=lb.posteriors.Normal(init_scale=0.05), **options)
