"""One of two processes that train a model by IVON through DistributedDataParallel; `test_ivon.py` starts both.

The arguments are the number of this process and a folder, in which the processes meet and leave what they trained.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from leanbayes.optim import IVON

STEPS = 3


def problem() -> tuple[lb.Bayesian, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    bnn = lb.Bayesian(model, subspace=lb.random_k(0.7, seed=3), propagate="mirrored")
    return bnn, torch.randn(8, 3, dtype=torch.float64), torch.randint(2, (8,))


def optimizer_of(model: nn.Module) -> IVON:
    return IVON(model, 0.3, n_data=8, beta2=0.9, initial_scale=0.2)


def backward(model: nn.Module, x: Tensor, y: Tensor, step: int, part: int, share: float) -> None:
    noise = torch.Generator().manual_seed(10 * step + part)
    loss = lb.elbo(model, x, y, lb.Categorical(), n_data=8, with_kl=False, generator=noise).loss
    (loss * share).backward()


def all_numbers(bnn: lb.Bayesian, optimizer: IVON) -> list[Tensor]:
    """All parameters, and all that the optimizer remembers."""
    states = [optimizer.state[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    kept = [torch.as_tensor(value).double() for state in states for _, value in sorted(state.items())]
    return [*(parameter.detach() for parameter in bnn.parameters()), *kept]


def main(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    bnn, x, y = problem()
    ddp = DistributedDataParallel(bnn)
    optimizer = optimizer_of(ddp)
    rows = slice(4 * rank, 4 * rank + 4)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(ddp, x[rows], y[rows], step, rank, 1.0)
        optimizer.step()
    torch.save(all_numbers(bnn, optimizer), folder / f"trained{rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
