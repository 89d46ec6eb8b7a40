"""Folding does once what depends on no input, and leaves random numbers and the expansion of coordinates alone."""

import pytest
import torch
from torch import Tensor, nn

from leanbayes.export.folding import fold

# torch 2.13 uses a class that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")


class Work(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rho, self.index = nn.Parameter(torch.tensor([0.0, 1.0])), torch.tensor([1, 3])

    def forward(self, x: Tensor) -> Tensor:
        scale = nn.functional.softplus(self.rho).square()
        inverse = torch.linalg.inv(torch.diag(scale))  # its check of the result is work, too
        whole = torch.zeros(4).index_add(0, self.index, scale)
        return x @ inverse + whole.sum() + 0 * torch.rand(2)


def test_constants_are_computed_once() -> None:
    work, x = Work(), torch.ones(3, 2)
    program = fold(torch.export.export(work, (x,), strict=False).run_decompositions({}))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert not any("softplus" in target or "linalg" in target for target in targets)
    assert any("index_add" in target for target in targets)
    assert any("rand" in target for target in targets)
    torch.testing.assert_close(program.module()(x), work(x))


def test_a_program_without_constants_stays_as_it_is() -> None:
    program = fold(torch.export.export(nn.ReLU(), (torch.zeros(2),), strict=False).run_decompositions({}))
    assert program.module()(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
