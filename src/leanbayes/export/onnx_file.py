"""`onnx`: a network with its uncertainty as one file that other runtimes read."""

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes._calls import Inputs, map_tensors, prediction_tensor
from leanbayes._files import write_file
from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, MissingPackage, NonFinite, NotExportable
from leanbayes.export.programs import arguments, graph_of, traced
from leanbayes.likelihood import Likelihood
from leanbayes.propagate import PropagationLike

__all__ = ["OnnxFile", "onnx"]


@dataclass(frozen=True)
class OnnxFile:
    """What `onnx` has written.

    Attributes:
        path: the file.
        inputs: the names of the graph's inputs, which are those of the model's own arguments.
        outputs: the names of the graph's outputs.
        size: the size of the file in bytes.
        difference: the largest difference between onnxruntime and torch over all outputs for the example; None if the
            graph draws new weights in every run, or if it was not run.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size: int
    difference: float | None


def onnx(
    bnn: Bayesian,
    path: str | Path,
    example: Inputs,
    what: str = "mean",
    samples: int = 8,
    *,
    likelihood: Likelihood | None = None,
    fresh: bool = False,
    by: PropagationLike | None = None,
    dynamic_batch: bool = True,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
    tolerance: float = 1e-4,
) -> OnnxFile:
    """Write the network with its uncertainty as an ONNX file.

    The file holds one graph, with all its weights. Whatever the graph computes, its outputs include "mean", "total",
    "aleatoric" and "epistemic", which are the parts of a `leanbayes.Prediction`. Where onnxruntime is installed, the
    file is run on the example before this function returns, and an output that differs from torch is an error.

    Args:
        bnn: a `leanbayes.Bayesian`, also inside a wrapper. The network is in eval mode in the graph.
        path: the file to write, such as "model.onnx".
        example: a batch as the model takes it: a tensor, a tuple of positional arguments or a mapping.
        what: "mean", "draws" or "moments"; see `program`.
        samples: how many draws, or evenly spread outputs after one pass of moments.
        likelihood: how outputs become a prediction; `leanbayes.Categorical` by default.
        fresh: whether "draws" draws new weights inside the graph in every run. By default the draws are stored.
        by: a `leanbayes.propagate.Moments` for "moments"; by default the model's own.
        dynamic_batch: whether the graph takes batches of any size. Otherwise it takes the size of the example.
        generator: the source of the stored draws.
        output: picks the tensor that is predicted from what the model returns.
        tolerance: the largest difference from torch that is taken as rounding, as a part of 1 or, for outputs with
            larger numbers, of the largest number of that output.

    Returns:
        What was written, with the difference that was measured.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(f"the folder {str(target.parent)!r} does not exist; create it, or give another path")
    translations = _translations()
    graph = graph_of(bnn, what, samples, likelihood, fresh, by, generator, output)
    exported = traced(graph, example, dynamic_batch)
    with torch.no_grad(), _quiet():
        expected: dict[str, Tensor] = exported.module()(*arguments(example))
    names = _input_names(graph.bnn.model, example)
    try:
        with _quiet():
            written = torch.onnx.export(
                exported,
                dynamo=True,
                verbose=False,
                input_names=names,
                output_names=list(expected),
                custom_translation_table=translations,
                external_data=False,
                optimize=False,  # `fold` has done what is worth doing; more would write out whole draws
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise NotExportable(_complaint(error, what)) from error
    assert written is not None
    _tidy(written.model, {*names, *expected})
    written.model.metadata_props.update(
        {
            "leanbayes": _version(),
            "what": what,
            "samples": str(samples),
            "likelihood": str(graph.likelihood),
        }
    )
    difference: float | None = None

    def fill(temporary: Path) -> None:
        nonlocal difference
        written.save(temporary)
        difference = _checked(temporary, names, example, expected, None if fresh else tolerance)
        weights = temporary.with_name(f"{target.name}.data")
        if weights.exists():  # torch writes the weights of graphs of more than 1.5 GB to a file beside the graph
            weights.replace(target.with_name(weights.name))

    write_file(target, fill)  # so a graph that fails the check leaves an older file as it was
    return OnnxFile(target, tuple(names), tuple(expected), target.stat().st_size, difference)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside this context torch does not report deprecations in its own code, or that torchvision is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _translations() -> dict[Any, Any]:
    try:
        from leanbayes.export.translations import TRANSLATIONS
    except ImportError as error:
        raise MissingPackage.of("leanbayes.export.onnx", error.name or "onnx", "onnx") from error
    return TRANSLATIONS


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("leanbayes")
    except PackageNotFoundError:
        return "unknown"


def _input_names(model: torch.nn.Module, example: Inputs) -> list[str]:
    """Return the names of the model's arguments that hold tensors."""
    if isinstance(example, Mapping):
        return [name for name, value in example.items() if isinstance(value, Tensor)]
    values = list(example) if isinstance(example, tuple | list) else [example]
    own = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    names = [own[place] if place < len(own) else f"input_{place}" for place in range(len(values))]
    return [name for name, value in zip(names, values, strict=True) if isinstance(value, Tensor)]


def _tidy(model: Any, taken: set[str]) -> None:
    """Rename values inside the graph that have the name of an input or an output, and forget where nodes come from."""
    import onnx_ir

    ends = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()  # torch notes the code behind each node, with the folders of this machine
        for value in node.outputs:
            if value.name in taken and id(value) not in ends:
                value.name = f"{value.name}_inside_{node.name}"


def _complaint(error: BaseException, what: str) -> str:
    """Return words that name the operation which ONNX does not have."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(chain)
    missing = re.search(r"No (?:ONNX function|decompositions?)[^<]*<OpOverload\(op='([^']+)'", text)
    operation = re.search(r"target=(torch\.ops\.[\w.]+)", text)
    name = missing.group(1) if missing else operation.group(1) if operation else None
    advice = 'export what="mean" or "draws"' if what == "moments" else "use leanbayes.export.program"
    if name is None:
        return f"torch cannot write this graph as ONNX: {text.splitlines()[0]}; {advice}"
    return f"the operation {name} of this graph has no form in ONNX; {advice}, or replace the operation in the model"


def _checked(
    path: Path, names: list[str], example: Inputs, expected: dict[str, Tensor], tolerance: float | None
) -> float | None:
    """Run the file and return the largest difference from torch; None if it cannot be run or cannot be compared."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each of its codes, in a private module
        missing = re.search(r"implementation for (\w+)", str(error))
        if missing is None:
            raise
        raise NotExportable(
            f"onnxruntime has no operation {missing.group(1)} for the numbers of this graph (it lacks several for "
            'float64, which the moments of a few activations need); export what="mean" or "draws", or replace the '
            "operation in the model"
        ) from error
    tensors: list[Tensor] = []
    map_tensors(tensors.append, example)
    feed = {name: np.asarray(value.detach().to("cpu")) for name, value in zip(names, tensors, strict=True)}
    known = {value.name for value in session.get_inputs()}
    results = session.run(list(expected), {name: value for name, value in feed.items() if name in known})
    largest = 0.0
    for (name, want), got in zip(expected.items(), results, strict=True):
        result = torch.as_tensor(got)
        if not bool(torch.isfinite(result).all()):
            raise NonFinite(f"onnxruntime returns numbers that are not finite as {name!r}; look for NaN in the example")
        if tolerance is None:
            continue
        difference = float((result - want.detach().to("cpu")).abs().max())
        largest = max(largest, difference)
        if difference > tolerance * max(1.0, float(want.abs().max())):
            raise NotExportable(
                f"onnxruntime and torch differ by {difference:.2g} in {name!r}, which is more than rounding; "
                f"{path.name!r} is not written"
            )
    return None if tolerance is None else largest
