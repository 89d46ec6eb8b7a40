"""One of several processes that train sharded networks; `test_sharded.py` starts them all.

    python -m tests.sharded.worker RANK NUMBER FOLDER core|all|save|resume

The first process writes what it has seen to ``FOLDER/<work>-<number>.json``: for each case the largest errors against
one process with as many micro-batches, or the words of the error that it should raise.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb
from leanbayes.errors import LeanBayesError
from tests.sharded.network import PROPAGATIONS, Net, batch, bayesian, errors, objective_of, optimizer_of, train, whole

Case = tuple[str, Callable[[], Any]]


@cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def rank_and_world() -> tuple[int, int]:
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def shard(objective: lb.Objective, how: str) -> None:
    """Shard the loss; "together" shards the scales with their weights, and "parts" leaves the scales to the whole."""
    bnn = objective.model
    for module in (*bnn.model.blocks, bnn.model.head) if how != "root" else ():
        fully_shard([module, *bnn.scales_of(module)] if how == "together" else module, mesh=mesh())
    fully_shard(objective, mesh=mesh())


def parallelize(objective: lb.Objective, *, scales: bool = True) -> None:
    styles = (("up", ColwiseParallel), ("down", RowwiseParallel))
    plan = {f"blocks.{block}.{name}": style() for block in range(2) for name, style in styles}
    parallelize_module(objective.model.model, mesh(), plan)
    if scales:
        objective.model.shard_scales()


def expected(learn: str, parts: int, **options: Any) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and the weights of one process."""
    objective = objective_of(bayesian(**options), learn)
    start = whole(objective)
    losses = train(objective, optimizer_of(learn, objective), parts, range(parts))
    moved = [float((a - b).abs().max()) for a, b in zip(start, whole(objective), strict=True)]
    assert min(moved) > 1e-4, "a weight has not moved, so the comparison would show nothing"
    return losses, whole(objective)


def compared(how: str, learn: str, **options: Any) -> dict[str, float]:
    rank, world = rank_and_world()
    parts, mine = (1, [0]) if how == "tensor parallel" else (world, [rank])
    objective: Any = objective_of(bayesian(**options), learn)
    if how == "ddp":
        module: Any = DistributedDataParallel(objective)
    else:
        module = objective
        parallelize(objective) if how == "tensor parallel" else shard(objective, how)
        cut = [name for name, value in objective.named_parameters() if hasattr(value, "full_tensor")]
        assert len(cut) == len(list(objective.parameters())) or how == "tensor parallel", "a parameter is not sharded"
    got = train(module, optimizer_of(learn, objective), parts, mine)
    return errors(expected(learn, parts, **options), (got, whole(objective)))


def words(function: Callable[[], Any]) -> str:
    try:
        function()
    except LeanBayesError as error:
        return str(error)
    return "nothing was raised"


def comparisons(every: bool) -> Iterator[Case]:
    hows = ("ddp", "together", "parts", "root", "tensor parallel") if every else ("together", "tensor parallel")
    learns = ("adam", "ivon", "ivon by adam") if every else ("adam", "ivon")
    for how in hows:
        for learn in learns:
            for by in PROPAGATIONS:
                if every or learn == "adam" or by == "sample":
                    yield f"{how}, {learn}, {by}", lambda h=how, le=learn, b=by: compared(h, le, by=b)
    for how in ("parts", "ddp") if not every else ():
        yield f"{how}, adam, sample", lambda h=how: compared(h, "adam", by="sample")
    for how in hows if every else ("together", "tensor parallel"):
        for learn in learns if every else ("ivon",):
            for by in PROPAGATIONS if every else ("mirrored",):
                yield f"{how}, {learn}, {by}, a fifth", lambda h=how, le=learn, b=by: compared(h, le, by=b, rate=0.2)
    for where in ("inside", "around"):
        for by in PROPAGATIONS[:4] if every else ("sample", "flipout"):
            name = f"together, adam, {by}, checkpoints {where}"
            yield name, lambda b=by, w=where: compared("together", "adam", by=b, checkpoints=w)
    centred = {"prior": lb.priors.CentredPrior(0.5), "by": "sample"}
    for by in ("sample", "mirrored") if every else ():  # "around" with whole scales, which belong to the loss
        yield f"parts, {by}, checkpoints", lambda b=by: compared("parts", "adam", by=b, checkpoints="around")
    yield "together, adam, centred prior", lambda: compared("together", "adam", **centred)
    yield "together, ivon, centred prior", lambda: compared("together", "ivon", **centred)


def refusals() -> Iterator[Case]:
    x, y = batch(0)

    def early_optimizer() -> None:
        objective = objective_of(bayesian("sample"), "ivon")
        optimizer = optimizer_of("ivon", objective)
        shard(objective, "together")
        objective(x, y).loss.backward()
        optimizer.step()

    def sharded(**options: Any) -> lb.Objective:
        objective = objective_of(bayesian(**options), "adam")
        shard(objective, "together")
        return objective

    def outside() -> None:
        objective = sharded(by="sample")
        lb.elbo(objective.model, x, y, lb.Categorical(), n_data=100)

    def whole_scales() -> None:
        objective = objective_of(bayesian("sample"), "adam")
        parallelize(objective, scales=False)
        objective(x, y)

    def scales_alone() -> None:
        objective = objective_of(bayesian("sample"), "adam")
        fully_shard(objective.model.model.head, mesh=mesh())
        for scales in objective.model.scales_of(objective.model.model.head):
            fully_shard(scales, mesh=mesh())
        fully_shard(objective, mesh=mesh())
        objective(x, y)

    def joint() -> None:
        sharded(by="sample", posterior=lb.posteriors.Radial(), kl=lb.MonteCarlo(4))(x, y)

    def frozen() -> None:
        with sharded(by="sample").model.frozen():
            pass

    def predicted() -> None:
        lb.predict(sharded(by="sample").model, x)

    def last_layer() -> None:
        objective = lb.Objective(
            bayesian("sample"), lb.Categorical(), n_data=100, kl_weight=lb.Terms(last_layer_samples=4)
        )
        shard(objective, "together")
        objective(x, y)

    def covariance() -> None:
        sharded(by="covariance")(x, y)

    def other_noise() -> None:
        objective = objective_of(bayesian("sample"), "adam")
        parallelize(objective)
        objective(x, y, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))

    def sharded_first() -> None:
        network = Net()
        fully_shard(network, mesh=mesh())
        lb.Bayesian(network)

    def checkpointed() -> None:
        sharded(by="moments", checkpoints="around")(x, y)

    def spoiled() -> None:
        objective = objective_of(bayesian("sample"), "ivon")
        shard(objective, "together")
        optimizer = optimizer_of("ivon", objective)
        objective(x, y).loss.backward()
        if torch.distributed.get_rank() == 1:  # the others must not wait for it for ever
            next(iter(objective.parameters())).grad.to_local().fill_(float("nan"))
        optimizer.step()

    for refused in (
        early_optimizer, outside, whole_scales, scales_alone, joint, frozen, predicted, last_layer, covariance,
        checkpointed, other_noise, sharded_first, spoiled,
    ):  # fmt: skip
        yield f"refused: {refused.__name__}", lambda function=refused: words(function)


def through_elbo() -> dict[str, float]:
    """`lb.elbo` of a network that is itself sharded, without an `lb.Objective`."""
    rank, world = rank_and_world()
    bnn, plain = bayesian("mirrored"), bayesian("mirrored")
    fully_shard(bnn.model.blocks[0], mesh=mesh())
    fully_shard(bnn, mesh=mesh())
    x, y = batch(0)
    size = len(x) // world
    for part in range(world):
        rows, source = slice(part * size, (part + 1) * size), torch.Generator().manual_seed(part)
        loss = lb.elbo(plain, x[rows], y[rows], lb.Categorical(), n_data=100, generator=source).loss
        (loss / world).backward()
    rows, source = slice(rank * size, (rank + 1) * size), torch.Generator().manual_seed(rank)
    lb.elbo(bnn, x[rows], y[rows], lb.Categorical(), n_data=100, generator=source).loss.backward()
    pairs = zip(bnn.parameters(), plain.parameters(), strict=True)
    return {"weights": max(float((a.grad.full_tensor() - b.grad).abs().max()) for a, b in pairs)}


def saved(folder: Path, learn: str, rate: float | None) -> dict[str, float]:
    """Three steps, a checkpoint, and five more steps."""
    rank, world = rank_and_world()
    objective = objective_of(bayesian("sample", rate=rate), learn)
    shard(objective, "together")
    optimizer = optimizer_of(learn, objective)
    mine = [part for part in range(4) if part * world // 4 == rank]
    train(objective, optimizer, 4, mine, range(3))
    lb.train.save_sharded(folder / f"{learn} {rate}", objective, optimizer, 3, epoch=7)
    train(objective, optimizer, 4, mine, range(3, 8))
    weights = whole(objective)
    if rank == 0:
        torch.save(weights, folder / f"{learn} {rate}.pt")
    return {}


def resumed(folder: Path, learn: str, rate: float | None) -> dict[str, Any]:
    """The same five steps after the checkpoint of another number of processes; the weights were spoiled before."""
    rank, world = rank_and_world()
    objective = objective_of(bayesian("sample", rate=rate), learn)
    shard(objective, "together")
    optimizer = optimizer_of(learn, objective)
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(0.3)
    about = lb.train.load_sharded(folder / f"{learn} {rate}", objective, optimizer)
    assert about == {"step": 3, "processes": 2, "epoch": 7}
    mine = [part for part in range(4) if part * world // 4 == rank]
    train(objective, optimizer, 4, mine, range(3, 8))
    want = torch.load(folder / f"{learn} {rate}.pt", weights_only=True)
    return {"weights": max(float((a - b).abs().max()) for a, b in zip(want, whole(objective), strict=True))}


def foreign(folder: Path) -> Iterator[Case]:
    """Checkpoints of another training are refused in a line that says what differs."""

    def load(learn: str, path: str, **options: Any) -> Any:
        objective = objective_of(bayesian("sample", **options), learn)
        shard(objective, "together")
        return lb.train.load_sharded(folder / path, objective, optimizer_of(learn, objective))

    def other_settings() -> Any:
        objective = objective_of(bayesian("sample"), "ivon")
        shard(objective, "together")
        optimizer = lb.optim.IVON(objective.model, n_data=999, steps=8, initial_scale=0.1, lr=0.1)
        return lb.train.load_sharded(folder / "ivon None", objective, optimizer)

    yield "refused: other model", lambda: words(lambda: load("adam", "adam None", rate=0.2))
    yield "refused: other optimizer", lambda: words(lambda: load("ivon", "adam None"))
    yield "refused: other settings", lambda: words(other_settings)
    yield "no checkpoint", lambda: load("adam", "nowhere")


def documentation() -> dict[str, float]:
    """Run the code of docs/sharded.md in these processes, which have joined already."""
    page = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join(blocks)
    for call in ('torch.distributed.init_process_group("gloo")', "torch.distributed.destroy_process_group()"):
        assert call in code
        code = code.replace(call, "")
    exec(compile(code, "docs/sharded.md", "exec"), {"__name__": "docs"})
    return {}


def cases(work: str, folder: Path) -> Iterator[Case]:
    if work in ("core", "all"):
        yield from comparisons(work == "all")
        yield "elbo of a sharded network", through_elbo
        yield "documentation", documentation
        yield from refusals()
        return
    step = saved if work == "save" else resumed
    for learn in ("adam", "ivon", "ivon by adam"):
        for rate in (None, 0.2):
            yield f"{learn} {rate}", lambda le=learn, r=rate: step(folder, le, r)
    if work == "resume":
        yield from foreign(folder)


def main(rank: int, number: int, folder: Path, work: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-{work}-{number}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=number)
    seen: dict[str, Any] = {}
    for name, case in cases(work, folder):
        (folder / f"now-{rank}").write_text(name)
        try:
            seen[name] = case()
        except Exception:
            seen[name] = traceback.format_exc()
            if rank == 0:
                sys.stderr.write(f"{name}: {seen[name]}\n")
    if rank == 0:
        (folder / f"{work}-{number}.json").write_text(json.dumps(seen, indent=1))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
