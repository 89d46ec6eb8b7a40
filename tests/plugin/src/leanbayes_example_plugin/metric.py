"""A metric."""

from leanbayes.metrics import Metric, mean_of


def _margin(prediction, targets):
    top = prediction.mean.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


MARGIN = Metric(
    "margin",
    better=None,
    title="Margin",
    meaning="The mean gap between the two highest probabilities of an input.",
    accumulate=mean_of("margin", _margin),
    kinds=("classes",),
)
