"""Predictors with a guarantee for finite samples, which wrap any other predictor.

`Sets` gives sets of classes that hold the true class as often as asked, and `Intervals` does the same for numbers.
`RiskControl` gives masks with a bound on what they miss, and `Referral` says which inputs a person should decide.
`Monitor` says when such a guarantee can no longer be trusted, and `coverage_of` and `risk_of` measure it on test data.
Calibrate a predictor on examples that it was not trained on, and then ask it:

```python
sets = lb.conformal.Sets(bnn, level=0.9, score="aps").calibrate(calibration_loader)
sets.sets(x)                                  # booleans (N, classes)
intervals = lb.conformal.Intervals(bnn, level=0.9, likelihood=likelihood).calibrate(calibration_loader)
intervals.intervals(x)                        # lower and upper ends
control = lb.conformal.RiskControl(bnn, "false_negatives", level=0.1).calibrate(calibration_loader)
control.masks(x)                              # booleans of the shape of the true masks
rule = lb.conformal.Referral(bnn, error=0.05, confidence=0.95).calibrate(calibration_loader)
rule.refers(x)                                # booleans (N,)
```

Conformal predictors are saved and loaded as every predictor.
"""

from leanbayes.conformal.binomial import clopper_pearson
from leanbayes.conformal.class_scores import APS, CLASS_SCORES, LAC, RAPS, ClassScore, TopK
from leanbayes.conformal.coverage import Coverage, coverage_of
from leanbayes.conformal.interval_scores import INTERVAL_SCORES, Absolute, IntervalScore, Quantiles, Scaled
from leanbayes.conformal.intervals import Intervals
from leanbayes.conformal.measured_risk import MeanLoss, MeasuredRisk, risk_of
from leanbayes.conformal.monitor import Monitor
from leanbayes.conformal.quantiles import fewest_scores, quantile
from leanbayes.conformal.referral import Referral
from leanbayes.conformal.risk_control import RiskControl
from leanbayes.conformal.risks import RISKS, DiceLoss, FalseNegatives, FalsePositives, MissedLesions, Risk
from leanbayes.conformal.sets import Sets

__all__ = [
    "APS",
    "CLASS_SCORES",
    "INTERVAL_SCORES",
    "LAC",
    "RAPS",
    "RISKS",
    "Absolute",
    "ClassScore",
    "Coverage",
    "DiceLoss",
    "FalseNegatives",
    "FalsePositives",
    "IntervalScore",
    "Intervals",
    "MeanLoss",
    "MeasuredRisk",
    "MissedLesions",
    "Monitor",
    "Quantiles",
    "Referral",
    "Risk",
    "RiskControl",
    "Scaled",
    "Sets",
    "TopK",
    "clopper_pearson",
    "coverage_of",
    "fewest_scores",
    "quantile",
    "risk_of",
]
