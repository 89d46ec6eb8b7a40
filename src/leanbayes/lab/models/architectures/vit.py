"""The vision transformer (Dosovitskiy et al. 2021). The parameters have the names that timm gives them."""

from collections import OrderedDict
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.parts import LARGE, require_positive, require_size

__all__ = ["ViT", "vit"]


class Attention(nn.Module):
    """Self-attention with several heads: softmax(QKᵀ/√d)V. One linear layer computes Q, K and V.

    >>> Attention(8, heads=2)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return new tokens of the same shape."""
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (part.reshape(split).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """Attention and a perceptron with four times the width, each after layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        inner, outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict[str, nn.Module](fc1=inner, act=nn.GELU(), fc2=outer))

    def forward(self, x: Tensor) -> Tensor:
        """Return new tokens of the same shape."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """A transformer whose tokens are the patches of an image, with learned positions.

    A linear head follows the blocks of attention. It sees the class token or the mean of all tokens.

    Images whose sides are no multiples of ``patch`` are padded with zeros below and to the right.
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        size: tuple[int, int],
        patch: int,
        width: int,
        depth: int,
        heads: int,
        pool: Literal["class", "mean"],
    ) -> None:
        super().__init__()
        self.size, self.patch = tuple(size), patch
        tokens = -(-size[0] // patch) * -(-size[1] // patch)
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(in_channels, width, patch, stride=patch)))
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if pool == "class" else None
        self.pos_embed = nn.Parameter(torch.empty(1, tokens + (pool == "class"), width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=module.weight[0].numel() ** -0.5)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(
            self.pos_embed, std=0.5
        )  # as large as the tokens themselves, so that small models learn positions sooner
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, one row for each image."""
        if x.shape[-2:] != self.size:
            raise ShapeMismatch(
                f"this vit was built for images of {self.size[0]}x{self.size[1]}, got shape {tuple(x.shape)}; "
                "give size= when building it, or resize the images"
            )
        x = F.pad(x, (0, -self.size[1] % self.patch, 0, -self.size[0] % self.patch))
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        logits: Tensor = self.head(x.mean(1) if self.cls_token is None else x[:, 0])
        return logits


def vit(
    in_channels: int,
    classes: int,
    size: tuple[int, int] = (32, 32),
    patch: int | None = None,
    width: int = 128,
    depth: int = 6,
    heads: int = 4,
    pool: Literal["class", "mean"] = "class",
) -> ViT:
    """Build an untrained vision transformer for images of one size.

    VDP++ uses such transformers. ViT-S/16 has ``patch=16, width=384, depth=12, heads=6``, and ViT-B/16 has ``patch=16,
    width=768, depth=12, heads=12``.

    Args:
        in_channels: the number of channels of the images.
        classes: the number of outputs.
        size: (height, width) of the images.
        patch: the side of a patch. By default it is 4, or 16 if the images are larger than 64x64.
        width: the number of features of a token.
        depth: the number of blocks.
        heads: the number of heads of the attention in each block.
        pool: what the head sees: the "class" token or the "mean" of all tokens.

    >>> vit(in_channels=1, classes=10, size=(28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    require_positive("vit", in_channels=in_channels, classes=classes, width=width, depth=depth, heads=heads)
    require_positive("vit", patch=1 if patch is None else patch)
    require_size("vit", size, patch or 1, "use a smaller patch")
    if patch is None:
        patch = 16 if min(size) > LARGE else min(4, *size)
    if width % heads:
        raise InputError(f"vit: width must be a multiple of heads, got {width} and {heads}")
    if pool not in ("class", "mean"):
        raise UnknownName.of("pool", pool, ("class", "mean"))
    return ViT(in_channels, classes, size, patch, width, depth, heads, pool)


MODELS = (
    Architecture("vit", vit),
    Architecture("vit_s16", partial(vit, patch=16, width=384, depth=12, heads=6)),
    Architecture("vit_b16", partial(vit, patch=16, width=768, depth=12, heads=12)),
)
