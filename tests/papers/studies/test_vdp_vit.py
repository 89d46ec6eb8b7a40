"""The vision transformer of VDP++: verdicts."""

from typing import Any

import pytest

from leanbayes_papers import STUDIES, Claim
from leanbayes_papers.studies import vdp_vit as vit
from tests.papers.made_up import curve, made_up

PLAIN, VDP = "deterministic", "vdp"


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (vit.SMALL, curve("variance", VDP), curve("variance", VDP, rising=True)),
        (vit.ROBUST, {("accuracy@-6 dB", VDP): 0.6}, {("accuracy@-6 dB", PLAIN): 0.6}),
        (vit.COMPRESSES, {("lost at 90 %", VDP): 0.005}, {("lost at 90 %", VDP): 0.1}),
        (vit.COMPRESSES, {("lost at 90 %", VDP): 0.0}, {("lost at 90 %", m): 0.0 for m in (PLAIN, VDP)}),
    ],
)
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lines", "summary"):
        monkeypatch.setattr(vit, name, lambda *arguments, **options: None)
    assert made_up("vdp-vit", "cpu", good)[claim.text] == "holds"
    assert made_up("vdp-vit", "cpu", bad)[claim.text] == "does not hold"


def test_the_network_is_as_small_as_the_settings_say() -> None:
    size = STUDIES["vdp-vit"].sizes["smoke"]
    model = vit._task("digits", None, size.counts, (4, 8, 1, 2)).model()
    assert model.patch_embed.proj.weight.shape == (8, 1, 4, 4)
    assert len(model.blocks) == 1
    assert model.pos_embed.shape[1] == 5
