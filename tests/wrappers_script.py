"""One of two processes that compute gradients through DistributedDataParallel; `test__wrappers.py` starts both.

The arguments are the number of this process and a folder, in which the processes meet and leave their gradients.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from leanbayes.errors import InputError


def network() -> lb.Bayesian:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(init_scale=0.3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, generator=source, dtype=torch.float64)
    return x, torch.randint(2, (8,), generator=source)


def half(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(part[4 * rank : 4 * rank + 4] for part in batch())


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int, **options) -> list[torch.Tensor]:
    model.zero_grad()
    parts = lb.elbo(model, x, y, lb.Categorical(), n_data=8, generator=torch.Generator().manual_seed(seed), **options)
    parts.loss.backward()
    return [whole(parameter.grad) for parameter in model.parameters()]


def objective(**options) -> lb.Objective:
    """The loss as a module, with a likelihood that learns."""
    return lb.Objective(network(), Learned(), n_data=8, **options)


class Learned(lb.Categorical):
    """A likelihood with a parameter, whose gradient must be averaged, too."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((1,), 0.1, dtype=torch.float64))

    def nll(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().nll(output * self.log_scale.exp(), y)


def of_objective(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(x, y, generator=torch.Generator().manual_seed(5)).loss.backward()
    return [whole(parameter.grad) for parameter in module.parameters()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def sharded(module: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    return module


def sharded_in_parts() -> nn.Module:
    module = objective()
    sharded(module.model.model[0])
    return sharded(module)


def refused(function) -> str:
    try:
        function()
    except InputError as error:
        return str(error)
    return ""


def main(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ddp = DistributedDataParallel(network())
    x, y = half(rank)
    result = {
        "same noise": gradients(ddp, x, y, seed=5),
        "noise of its own": gradients(ddp, x, y, seed=rank),
        "moments": gradients(ddp, x, y, seed=5, propagate="moments"),
        "compiled": gradients(torch.compile(ddp, backend="eager"), x, y, seed=5),
        "around compiled": gradients(DistributedDataParallel(torch.compile(network(), backend="eager")), x, y, seed=5),
    }
    x_and_y = (x, y)
    result |= {
        "objective": of_objective(DistributedDataParallel(objective()), *x_and_y),
        "objective of moments": of_objective(DistributedDataParallel(objective(propagate="moments")), *x_and_y),
        "sharded": of_objective(sharded(objective()), *x_and_y),
        "sharded in parts": of_objective(sharded_in_parts(), *x_and_y),
        "sharded alone": gradients(sharded(network()), x, y, seed=5),
    }
    with ddp.no_sync():  # the user says that the gradients are not to be averaged
        result["not averaged"] = gradients(ddp.module, x, y, seed=5)
    learned = lb.Gaussian(noise="learned")
    target = torch.zeros(4, 2, dtype=torch.float64)
    inside = network()
    inside.likelihood = learned
    data, gone = [(x, y)], network()
    plain = DistributedDataParallel(nn.Linear(3, 2).double())
    DistributedDataParallel(gone)  # thrown away at once
    words = {
        "bare": refused(lambda: gradients(ddp.module, x, y, seed=5)),
        "compiled bare": refused(lambda: gradients(torch.compile(ddp.module, backend="eager"), x, y, seed=5)),
        "learned": refused(lambda: lb.elbo(ddp, x, target, learned, n_data=8)),
        "learned inside": refused(lambda: lb.elbo(DistributedDataParallel(inside), x, target, learned, n_data=8)),
        "fit": refused(lambda: lb.fit(ddp, data, likelihood=lb.Categorical(), epochs=1)),
        "plain bare": refused(lambda: gradients(plain.module, x, y, seed=5)),
    }
    with torch.no_grad():
        lb.elbo(ddp.module, x, y, lb.Categorical(), n_data=8)  # no gradients, nothing to average
    if rank == 0:  # the other process takes no part, so a forward of DDP would wait for ever
        result["predicted"] = [lb.predict(ddp, x, samples=2, generator=torch.Generator().manual_seed(0)).mean]
        lb.save(ddp, folder / "model")
    words["thrown away"] = refused(lambda: gradients(gone, x, y, seed=5))
    torch.save((result, words), folder / f"found{rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
