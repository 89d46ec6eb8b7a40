"""What a method costs: the numbers it keeps, its floating-point operations, its seconds and its memory."""

from leanbayes.evaluation.cost.flops import count_flops, forward_flops, training_flops
from leanbayes.evaluation.cost.parameters import Parameters, count_parameters
from leanbayes.evaluation.cost.record import Cost, cost_of
from leanbayes.evaluation.cost.resources import Timing, measure, peak_memory

__all__ = [
    "Cost",
    "Parameters",
    "Timing",
    "cost_of",
    "count_flops",
    "count_parameters",
    "forward_flops",
    "measure",
    "peak_memory",
    "training_flops",
]
