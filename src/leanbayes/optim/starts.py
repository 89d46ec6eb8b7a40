"""Where the scales of a natural-gradient training start: the usual size of the weights of each tensor."""

from torch import nn

from leanbayes.optim.random_tensor import RandomTensor
from leanbayes.subspace import scatters

__all__ = ["usual_sizes"]


def usual_sizes(model: nn.Module, tensors: list[RandomTensor]) -> list[float]:
    """Return 1/√(3·fan-in) for each random tensor: the standard deviation with which torch initialises its weights.

    Noise of the same size in every layer would drown a layer with many inputs, whose weights are small, and hardly
    reach one with few. A multiple of the usual size disturbs all layers alike.

    The fan-in is the number of weights that lead to one output; of a sparse layer it counts the stored ones. Biases and
    the weights of norms are vectors, which have no fan-in. They take the size of the matrix before them, to whose
    outputs they belong, and those before the first matrix take the size of that one.

    >>> from leanbayes.bayesian import Bayesian
    >>> from leanbayes.optim.random_tensor import random_tensors
    >>> bnn = Bayesian(nn.Sequential(nn.Linear(12, 2), nn.Linear(2, 1)))
    >>> [round(size, 3) for size in usual_sizes(bnn.model, random_tensors(bnn))]
    [0.167, 0.167, 0.408, 0.408]
    """
    stored = scatters(model)
    sizes: list[float | None] = []
    for tensor in tensors:
        shape = stored[tensor.name].shape if tensor.name in stored else tuple(tensor.mean.shape)
        if len(shape) > 1 and tensor.mean.numel():
            sizes.append((3 * tensor.mean.numel() / shape[0]) ** -0.5)
        else:
            sizes.append(sizes[-1] if sizes else None)
    first = next((size for size in sizes if size is not None), 3**-0.5)
    return [first if size is None else size for size in sizes]
