"""Model cards: the page that the hub shows for a model, with its uncertainty as `leanbayes.evaluate` measured it."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.evaluation import Evaluation
from leanbayes.integrations._optional import optional
from leanbayes.metrics.metric import metric_named

with optional("leanbayes.integrations.huggingface", "huggingface", "huggingface_hub"):
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

__all__ = ["model_card"]

_DIRECTIONS = {"high": "higher is better", "low": "lower is better", None: ""}


def model_card(
    bnn: nn.Module,
    *,
    evaluation: Evaluation | None = None,
    data: str | None = None,
    name: str | None = None,
    usage: str | None = None,
    tags: Sequence[str] = (),
) -> ModelCard:
    """Make the model card of a `Bayesian`.

    The card says what is random and how. It shows every metric of ``evaluation`` with its meaning, and says so if
    nothing was measured. With the name of the data, the metrics are in the metadata of the card too, where the hub
    looks for them.

    Args:
        bnn: the model.
        evaluation: what `leanbayes.evaluate` returned for data that the model was not trained on.
        data: the name of these data.
        name: the name of the model; by default that of its class.
        usage: code that loads the model.
        tags: further tags.
    """
    core = unwrap(bnn)
    if not isinstance(core, Bayesian):
        raise InputError(f"a model card is about a lb.Bayesian, got a {type(core).__name__}; convert the model first")
    if evaluation is not None and not isinstance(evaluation, Evaluation):
        raise InputError(
            f"evaluation must be what lb.evaluate returns, got a {type(evaluation).__name__}; measure the model: "
            "lb.evaluate(bnn, batches, likelihood=...)"
        )
    if data is not None and not isinstance(data, str):
        raise InputError(f"data must be the name of the data, got a {type(data).__name__}")
    if isinstance(tags, str):
        raise InputError(f"tags must be a list of words, got the text {tags!r}; give [{tags!r}]")
    inner = type(core.model).__name__
    title = name or inner
    metadata = ModelCardData(
        library_name="leanbayes",
        tags=sorted({"leanbayes", "bayesian", "uncertainty", *tags}),
        model_name=title if evaluation is not None and data is not None else None,
        eval_results=_results(evaluation, data) if evaluation is not None and data is not None else None,
    )
    body = [
        f"# {title}",
        f"This {inner} has random weights, so it says how sure it is of each prediction. "
        f"[LeanBayes](https://pypi.org/project/leanbayes) {_version()} made it.",
        "## What is random",
        _facts(core),
        "## Measured uncertainty",
        _figures(evaluation, data),
    ]
    if usage is not None:
        body += ["## Use it", f"```python\n{usage.strip()}\n```"]
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n\n".join(body) + "\n")


def _facts(bnn: Bayesian) -> str:
    summary = bnn.summary()
    share = summary.random / max(summary.size, 1)
    rows = {
        "random weights": f"{summary.random:,} of {summary.size:,} ({share:.2%})",
        "posterior": bnn.posterior,
        "prior": bnn.prior,
        "training draws by": bnn.propagate,
        "prediction by": bnn.predict_by,
        "KL": bnn.kl_estimator,
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | `{value}` |" for name, value in rows.items())


def _figures(evaluation: Evaluation | None, data: str | None) -> str:
    if evaluation is None:
        return "Nobody has measured the uncertainty of this model yet."
    head = f"Measured on {evaluation.examples:,} examples{'' if data is None else f' of {data}'}.\n\n"
    rows = []
    for full_name, value in sorted(evaluation.metrics.items()):
        metric = metric_named(full_name)
        direction = _DIRECTIONS[metric.better]
        rows.append(f"| `{full_name}` | {value:.4g} | {metric.meaning}{f' ({direction})' if direction else ''} |")
    notes = "".join(f"\n- {note}" for note in evaluation.notes)
    return head + "| metric | value | meaning |\n|---|---|---|\n" + "\n".join(rows) + (f"\n{notes}" if notes else "")


def _results(evaluation: Evaluation, data: str | None) -> list[Any]:
    return [
        EvalResult(
            task_type="other",
            dataset_type="custom",
            dataset_name=data,
            metric_type=full_name,
            metric_name=metric_named(full_name).title,
            metric_value=value,
        )
        for full_name, value in sorted(evaluation.metrics.items())
    ]


def _version() -> str:
    try:
        return version("leanbayes")
    except PackageNotFoundError:
        return ""
