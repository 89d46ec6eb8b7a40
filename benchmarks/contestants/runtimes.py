"""Prediction outside of torch: onnxruntime with the plain graph, and with the graph of moments that LeanBayes writes.

The graphs are written once into a folder, because torch takes up to a minute to write one.
"""

import copy
import hashlib
import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

import leanbayes as lb
from contestants.base import DRAWS, Contestant, Task, mean_of_passes, require

INITIAL_SCALE = 0.01
MOMENTS = lb.propagate.Moments(rank=0)


def runtime(task: Task, name: str, what: str) -> Contestant:
    """Build a contestant of onnxruntime, with as many threads as torch has."""
    model = copy.deepcopy(task.plain).eval()
    bnn = lb.Bayesian(copy.deepcopy(task.plain), posterior=lb.posteriors.Normal(init_scale=INITIAL_SCALE))

    def in_torch(x: Tensor) -> Tensor:
        if what == "plain":
            return mean_of_passes(model)(x)
        return lb.predict(bnn, x, samples=DRAWS, by=MOMENTS).mean

    state = b"".join(tensor.numpy().tobytes() for tensor in task.plain.state_dict().values())
    path = task.folder / f"{task.name}-{what}-{hashlib.sha256(state).hexdigest()[:12]}.onnx"
    if not path.is_file():
        task.folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            if what == "plain":
                torch.onnx.export(model, (task.x,), str(path), dynamo=True, external_data=False)
            else:
                lb.export.onnx(bnn, path, task.x, "moments", samples=DRAWS, by=MOMENTS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    source, wanted = session.get_inputs()[0].name, [session.get_outputs()[0].name if what == "plain" else "mean"]

    def predict(x: Tensor) -> Tensor:
        (result,) = session.run(wanted, {source: x.numpy()})
        return torch.as_tensor(np.asarray(result)).softmax(-1) if what == "plain" else torch.as_tensor(result)

    def audit() -> dict[str, Any]:
        difference = (predict(task.x) - in_torch(task.x)).abs().max().item()
        limit = 1e-4 if what == "plain" else 0.05  # kernels and graphs share positions differently; see docs/export.md
        require(difference < limit, name, f"the probabilities differ by {difference} from torch's")
        return {"difference_from_torch": difference}

    passes = "1 pass" if what == "plain" else "1 pass of moments"
    return Contestant(
        name, "onnxruntime", model if what == "plain" else bnn, predict, passes, audit, predict_as=in_torch,
        networks=[model if what == "plain" else bnn.model], streams=1 if what == "plain" else 2,
    )  # fmt: skip


ROWS: dict[str, Callable[[Task], Contestant]] = {
    "onnxruntime, plain graph": partial(runtime, name="onnxruntime, plain graph", what="plain"),
    "onnxruntime, LeanBayes's graph of moments": partial(
        runtime, name="onnxruntime, LeanBayes's graph of moments", what="moments"
    ),
}
