"""`program`: a network with its uncertainty as one graph of torch.export."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from leanbayes._calls import Inputs, batch_size, map_tensors, prediction_tensor, require_function, require_generator
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, LeanBayesError, NotExportable
from leanbayes.export.contents import Graph, contents_named
from leanbayes.export.folding import fold
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import in_eval
from leanbayes.propagate import PropagationLike
from leanbayes.propagate.propagation import require_random

__all__ = ["arguments", "graph_of", "program", "traced"]


def program(
    bnn: Bayesian,
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
) -> ExportedProgram:
    """Return the network with its uncertainty as one graph, which `torch.export.save` writes and any torch runs.

    ``program(...).module()`` takes what the model takes and returns a dictionary of tensors. The tensors of a mapping
    become positional arguments, in the order of its keys. Whatever the graph computes, the dictionary has "mean",
    "total", "aleatoric" and "epistemic", which are the parts of a `leanbayes.Prediction`. The network is in eval mode
    in the graph.

    Args:
        bnn: a `leanbayes.Bayesian`, also inside a wrapper.
        example: a batch as the model takes it: a tensor, a tuple of positional arguments or a mapping.
        what: "mean" is the plain network at the means; it adds "output", what the model returns. "draws" runs several
            weight draws; it adds "samples", what each draw predicts. "moments" is one deterministic pass that carries
            means and variances; it adds "output_mean" and "output_variance".
        samples: how many draws. For "moments", how many evenly spread outputs stand for the distribution of the
            outputs, as in `leanbayes.predict`; they cost next to nothing.
        likelihood: how outputs become a prediction; `leanbayes.Categorical` by default.
        fresh: whether "draws" draws new weights inside the graph in every run. By default the draws are stored.
        by: a `leanbayes.propagate.Moments` for "moments"; by default the model's own.
        dynamic_batch: whether the graph takes batches of any size. Otherwise it takes the size of the example.
        generator: the source of the stored draws.
        output: picks the tensor that is predicted from what the model returns.

    >>> bnn = Bayesian(torch.nn.Linear(2, 3))
    >>> graph = program(bnn, torch.zeros(4, 2), "moments").module()
    >>> graph(torch.zeros(7, 2))["mean"].shape
    torch.Size([7, 3])
    """
    graph = graph_of(bnn, what, samples, likelihood, fresh, by, generator, output)
    return traced(graph, example, dynamic_batch)


def graph_of(
    bnn: Any,
    what: str,
    samples: int,
    likelihood: Likelihood | None,
    fresh: bool,
    by: PropagationLike | None,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
) -> Graph:
    """Return the module that is traced. All arguments are checked before any work is done."""
    inner = require_random(unwrap(bnn), "export")
    assert isinstance(inner, Bayesian)
    meaning = Categorical() if likelihood is None else require_likelihood(likelihood)
    require_generator(generator)
    require_function("output", output)
    if inner.held:
        raise InputError("inside at_mean(), frozen() or drawn() nothing is random; export outside of it")
    contents = contents_named(what, inner, samples, fresh, by)
    with torch.no_grad():
        return Graph(inner, meaning, contents, output, generator)


def traced(graph: Graph, example: Inputs, dynamic_batch: bool) -> ExportedProgram:
    """Return the graph of a module for a batch such as ``example``."""
    size = batch_size(example)
    if dynamic_batch and size == 1:  # torch takes an axis of length 1 as one that is always 1
        example = map_tensors(lambda leaf: torch.cat([leaf, leaf]) if leaf.dim() else leaf, example)
    graph.names = tuple(example) if isinstance(example, Mapping) else None
    args = arguments(example)
    axis = Dim("batch")

    def shape(value: Any) -> Any:
        return map_tensors(lambda leaf: {0: axis} if dynamic_batch and leaf.dim() else None, value)

    with in_eval(graph.bnn, graph.likelihood), torch.no_grad():
        try:
            graph(*args)  # errors of the model come from here, and not from inside the tracing
        except (RuntimeError, TypeError) as error:
            if isinstance(error, LeanBayesError):
                raise
            shapes: list[tuple[int, ...]] = []
            map_tensors(lambda leaf: shapes.append(tuple(leaf.shape)), args)
            raise InputError(
                f"the model does not take the example, whose tensors have the shapes {shapes}: {_first_line(error)}"
            ) from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of its own deprecations while it traces
                exported = torch.export.export(graph, args, dynamic_shapes={"args": shape(args)}, strict=False)
                _without_detaching(exported)
                return fold(exported if _writes_nothing(exported) else exported.run_decompositions({}))
        except torch._dynamo.exc.UserError as error:
            if dynamic_batch and "batch" in str(error):
                raise NotExportable(
                    "the graph of this model fits one size of the batch only, because the model, or a rule, computes "
                    f"with the number of examples; give dynamic_batch=False. torch says: {_first_line(error)}"
                ) from error
            raise NotExportable(f"torch.export cannot trace this model: {_first_line(error)}") from error


def _without_detaching(exported: ExportedProgram) -> None:
    """Take out `detach_`, by which torch marks new constants: it writes no number, and a graph has no gradients."""
    graph = exported.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
        node.replace_all_uses_with(node.all_input_nodes[0])
        graph.erase_node(node)
    exported.graph_module.recompile()


def _writes_nothing(exported: ExportedProgram) -> bool:
    """Whether no operation writes into a tensor; otherwise folding needs another pass, which makes them copies."""
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    return not any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets)


def arguments(example: Inputs) -> tuple[Any, ...]:
    """Return a batch as positional arguments; those of a mapping in the order of its keys."""
    if isinstance(example, Mapping):
        return tuple(example.values())
    return tuple(example) if isinstance(example, tuple | list) else (example,)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])
