"""A training that torchrun starts, and starts again after a rank was killed; `python -m tests.sharded` kills its ranks.

    torchrun --standalone --nproc-per-node 2 --max-restarts 20 -m tests.sharded.training loop FOLDER

"loop" is a loop of one's own: ``fully_shard``, IVON and `leanbayes.train.save_sharded` after every second step. "fit"
is `leanbayes.fit` with a checkpoint after every second step; with ``ACCELERATE_USE_FSDP=true FSDP_VERSION=2`` in the
environment its weights are sharded, too. Each process leaves its number in ``FOLDER/pids``. The first one writes
``FOLDER/step`` as it goes on, and the weights to ``FOLDER/end`` when the training is done.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from tests.sharded.network import SIZE, batch, bayesian, objective_of, optimizer_of, train, whole

STEPS, PAUSE = 80, 0.05  # seconds, so that kills hit the training and not its start alone


def loop(folder: Path, rank: int, world: int) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    objective = objective_of(bayesian("mirrored"), "ivon")
    bnn = objective.model
    for block in bnn.model.blocks:
        fully_shard([block, *bnn.scales_of(block)])
    fully_shard(objective)
    optimizer = optimizer_of("ivon", objective)
    about = lb.train.load_sharded(folder / "checkpoints", objective, optimizer)
    for step in range(0 if about is None else about["step"], STEPS):
        train(objective, optimizer, world, [rank], [step])
        time.sleep(PAUSE)
        progress(folder, rank, step)
        if step % 2:
            lb.train.save_sharded(folder / "checkpoints", objective, optimizer, step + 1)
    end(folder, rank, whole(objective))
    torch.distributed.destroy_process_group()


def by_fit(folder: Path, rank: int) -> None:
    pairs = [batch(step) for step in range(10)]
    data = TensorDataset(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    bnn = bayesian("mirrored")

    def watch(step: lb.train.Step) -> None:
        time.sleep(PAUSE)
        progress(folder, rank, step.step)

    lb.fit(
        bnn,
        DataLoader(data, batch_size=SIZE, shuffle=True),
        likelihood=lb.Categorical(),
        epochs=STEPS // 10,
        optimizer="ivon",
        checkpoint=lb.Checkpointing(folder / "checkpoints", every=2),
        callbacks=[lb.train.EachStep(watch)],
    )
    end(folder, rank, whole(bnn))


def progress(folder: Path, rank: int, step: int) -> None:
    if rank == 0:
        (folder / "step").write_text(str(step))


def end(folder: Path, rank: int, weights: list[torch.Tensor]) -> None:
    if rank == 0:
        torch.save(weights, folder / "end.part")
        (folder / "end.part").rename(folder / "end")


def main(how: str, folder: Path) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    (folder / "pids" / str(rank)).write_text(str(os.getpid()))
    if how == "loop":
        loop(folder, rank, world)
    else:
        by_fit(folder, rank)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
