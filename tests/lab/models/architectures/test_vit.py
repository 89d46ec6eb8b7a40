import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes.lab.models import (
    vit,
)  # fmt: skip


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_vit_is_torchs_encoder_on_patches(pool: str) -> None:
    model = vit(2, 3, size=(8, 10), width=12, depth=2, heads=3, pool=pool).double()
    for p in model.parameters():
        p.data.normal_(std=0.3)
    layers = []
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            12, 3, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
        ).double()
        pairs = [(layer.self_attn.out_proj, block.attn.proj), (layer.linear1, block.mlp.fc1)]
        pairs += [(layer.linear2, block.mlp.fc2), (layer.norm1, block.norm1), (layer.norm2, block.norm2)]
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        layer.self_attn.in_proj_weight.data.copy_(block.attn.qkv.weight)
        layer.self_attn.in_proj_bias.data.copy_(block.attn.qkv.bias)
        layers.append(layer)
    x = torch.randn(4, 2, 8, 10, dtype=torch.float64)
    padded = torch.zeros(4, 2, 8, 12, dtype=torch.float64)
    padded[..., :10] = x
    patches = padded.reshape(4, 2, 2, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).reshape(4, 6, 32)
    embedding = model.patch_embed.proj
    tokens = patches @ embedding.weight.reshape(12, 32).T + embedding.bias
    if pool == "class":
        tokens = torch.cat([model.cls_token.repeat(4, 1, 1), tokens], 1)
    tokens = model.norm(nn.Sequential(*layers)(tokens + model.pos_embed))
    torch.testing.assert_close(model(x), model.head(tokens[:, 0] if pool == "class" else tokens.mean(1)))


def test_vit_starts_with_signals_of_order_one_and_knows_where_a_patch_is() -> None:
    model = vit(3, 10).eval()
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        out = model(x)
        assert 0.1 < out.std() < 3.0
        assert (model(x.roll(4, dims=3)) - out).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("size", "patch"), [((28, 28), 4), ((3, 5), 3), ((64, 64), 4), ((65, 65), 16), ((65, 64), 4), ((224, 224), 16)]
)
def test_vit_chooses_the_patch_by_the_size(size: tuple[int, int], patch: int) -> None:
    with torch.device("meta"):
        assert vit(3, 2, size, width=8, depth=1, heads=2).patch == patch


def test_vit_learns_where_a_spot_is() -> None:
    torch.manual_seed(0)
    model = vit(1, 4, size=(8, 8), width=16, depth=2, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    quarter = torch.arange(64) % 4
    x = 0.3 * torch.randn(64, 1, 8, 8)
    for image, q in zip(x, quarter.tolist(), strict=True):
        image[0, 4 * (q // 2) + 1, 4 * (q % 2) + 2] += 3.0
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), quarter)
        loss.backward()
        optimizer.step()
    assert loss < 0.1
