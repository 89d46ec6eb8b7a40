"""The figure about cases: whether a method is unsure of the cases on which it fails."""

from collections.abc import Sequence

import numpy as np

from leanbayes.lab.compare.cases import referral
from leanbayes.lab.report import plots
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.section import LegendEntry, Panel, Section
from leanbayes.lab.statistics import spearman

__all__ = ["cases"]

_FEWEST = 5  # cases, below which a rank correlation says nothing


def cases(names: Sequence[str], arrays: Arrays) -> Section:
    """Return the Dice of each case against the doubt about it, and what it gains to refer the least sure cases."""
    panels, curves = [], []
    for index, name in enumerate(names):
        vectors = arrays.take(f"{name}/case", dice=(1,), doubt=(1,)) or arrays.take(
            f"{name}/case", dice=(1,), total=(1,)
        )
        if vectors is None or len(vectors[0]) < _FEWEST or any(np.ptp(vector) == 0 for vector in vectors):
            continue
        quality, doubt = vectors
        rank = spearman(doubt, quality).rho
        gain = referral(quality, doubt)
        note = (
            f"rank correlation {rank:.2f}; refer the {gain['share']:.0%} least sure: mean Dice {gain['before']:.3f} to "
            f"{gain['after']:.3f}"
        )
        curves.append((index, np.array(gain["curve"])))
        panels.append(Panel(name, note, plots.doubt_of_cases(doubt, quality, index), f"Cases of {name}: {note}"))
    if curves:
        words = "; ".join(f"{names[index]}: {curve[0]:.3f} to {curve[-1]:.3f}" for index, curve in curves)
        panels.append(Panel("Referral", "", plots.referral(curves), f"Mean Dice of the cases that remain. {words}"))
    return Section(
        "cases",
        "Is the method unsure of the cases on which it fails?",
        "Each mark is a test case. If doubt finds failures, marks fall from the upper left to the lower right, and the "
        "rank correlation is near -1. The curves show the mean Dice of the cases that remain when the least sure ones "
        "are referred to a person.",
        tuple(panels),
        tuple(LegendEntry(plots.PALETTE[i % 6], plots.GLYPHS[i % 6], names[i]) for i, _ in curves),
    )
