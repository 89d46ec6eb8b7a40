"""The metrics of lesions: how many structures of the true masks are found, and how many are made up.

`leanbayes.lab.compare.lesions` counts them. It needs connected components, which torch does not have.
"""

from leanbayes.metrics.metric import Metric

SENSITIVITY = Metric(
    "lesion_sensitivity",
    "high",
    "Lesions found",
    "The share of the connected structures of the true masks that a predicted one overlaps (IoU above 0.1).",
)
FALSE_POSITIVES = Metric(
    "lesion_false_positives",
    "low",
    "False lesions a case",
    "How many connected structures are predicted in a case that no true one overlaps (IoU above 0.1).",
)
