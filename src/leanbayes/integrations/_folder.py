"""What stands beside the weights that another tool saves: a file with what is random."""

from pathlib import Path
from typing import Any

from leanbayes.bayesian import Bayesian
from leanbayes.storage import save

__all__ = ["RANDOM_FILE", "write_random"]

RANDOM_FILE = "leanbayes.safetensors"


def write_random(bnn: Bayesian, folder: str | Path) -> None:
    """Write the file into a folder; for a model of PEFT it names the adapter to which it belongs."""
    model: Any = bnn.model
    adapters: list[str] = list(model.active_adapters) if hasattr(model, "peft_config") else []
    save(bnn, Path(folder) / RANDOM_FILE, only="random", about={"adapter": adapters[0]} if adapters else None)
