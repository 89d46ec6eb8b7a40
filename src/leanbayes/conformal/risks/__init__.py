"""Risks of masks: what is lost by a mask, as a number between 0 and 1 for each case. `RISKS` holds them by name."""

from leanbayes.conformal.risks.lesions import MissedLesions
from leanbayes.conformal.risks.pixels import DiceLoss, FalseNegatives, FalsePositives
from leanbayes.conformal.risks.risk import RISKS, Risk, as_risk

__all__ = ["RISKS", "DiceLoss", "FalseNegatives", "FalsePositives", "MissedLesions", "Risk", "as_risk"]
