"""What a method costs by a formula, in units of the plain network."""

from dataclasses import dataclass

__all__ = ["RelativeCost"]


@dataclass(frozen=True)
class RelativeCost:
    """The cost of a method relative to the plain network, as Table 1 of sensitivity-guided subnetworks has it.

    Args:
        parameters: the trained numbers, in units of the plain network's parameters.
        flops: the arithmetic of one training step, in units of one forward pass. A plain step is 3: one pass forward,
            and two for the backward pass.
        memory: the memory of the parameters, in units of the plain network's.
    """

    parameters: float
    flops: float
    memory: float
