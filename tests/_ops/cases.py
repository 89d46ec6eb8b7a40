"""Random sparse weights, and how results are compared."""

import torch


def pattern(shape, density, dtype):
    """The index of a random subspace of that density, means and variances."""
    size = torch.Size(shape).numel()
    index = torch.randperm(size)[: round(density * size)].sort().values
    return index, torch.randn(len(index), dtype=dtype), torch.rand(len(index), dtype=dtype)


def blocks(shape, density, block=16):
    """Positions of whole blocks: neighbouring outputs at one input and one offset."""
    rest = torch.Size(shape[1:]).numel()
    chosen = torch.randperm(shape[0] // block * rest)[: max(1, round(density * (shape[0] // block) * rest))]
    first = chosen // rest * block * rest + chosen % rest
    return (first[:, None] + torch.arange(block) * rest).flatten().sort().values


def dense(values, index, shape):
    return values.new_zeros(torch.Size(shape).numel()).index_copy(0, index, values).view(shape)


def gradients(outputs, weights, leaves):
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return torch.autograd.grad(total, leaves, retain_graph=True)


def assert_equal(ours, theirs, terms):
    """Up to the rounding of a sum of that many terms, each of order one."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=8 * torch.finfo(a.dtype).eps * max(8, terms))


def block_pattern(shape, density, size, dtype):
    """The same with whole blocks of ``size`` output channels."""
    columns = torch.Size(shape[1:]).numel()
    total = shape[0] // size * columns
    chosen = torch.randperm(total)[: round(density * total)]
    band, column = chosen // columns, chosen % columns
    index = ((band[:, None] * size + torch.arange(size)) * columns + column[:, None]).flatten().sort().values
    return index, torch.randn(len(index), dtype=dtype), torch.rand(len(index), dtype=dtype)
