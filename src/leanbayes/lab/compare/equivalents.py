"""The deep-ensemble equivalent of each method, from the members of an ensemble that is in the same comparison."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leanbayes.metrics.equivalent import ensemble_equivalent

__all__ = ["equivalents"]


def equivalents(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many plain networks each method is worth, as ``results.json`` holds it.

    All NLLs are means over the seeds. Of several ensembles the one with the most members counts.

    Args:
        methods: the methods of the record, with their runs.

    Returns:
        ``ensemble`` names the ensemble, and ``nll`` is that of 1, 2, … of its members. ``methods`` has for each method
        its ``value``, and the ``text`` that tables show: "<1" if one network is better, and ">M" if all M members
        together are worse. Then ``value`` is None. Without an ensemble, ``reason`` says what is missing.
    """
    curves = {method["name"]: curve for method in methods if (curve := _curve(method)) is not None}
    if not curves:
        return {"reason": _reason(methods)}
    name = max(curves, key=lambda name: len(curves[name]))
    by_method = {method["name"]: _equivalent(method, curves[name]) for method in methods}
    known = {method: value for method, value in by_method.items() if value is not None}
    return {"ensemble": name, "nll": curves[name], "methods": known, "reason": None}


def _curve(method: Mapping[str, Any]) -> list[float] | None:
    """The NLL by the number of members, averaged over seeds; None if a seed has none or its members differ."""
    curves = [run.get("nll_by_members") for run in method["runs"]]
    if not curves or not all(curves) or len({len(curve) for curve in curves}) > 1:
        return None
    means = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    return means if all(map(math.isfinite, means)) else None


def _reason(methods: Sequence[Mapping[str, Any]]) -> str:
    if any(method["recipe"].get("name") == "ensemble" and method["runs"] for method in methods):
        return (
            "No ensemble of this comparison has an NLL for each number of plain networks: its members are no plain "
            "networks, or an older version judged it."
        )
    return "No ensemble of plain networks was compared: add ensemble to the methods."


def _equivalent(method: Mapping[str, Any], curve: Sequence[float]) -> dict[str, Any] | None:
    values = [run["metrics"].get("nll") for run in method["runs"]]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    number = ensemble_equivalent(sum(values) / len(values), curve)
    if math.isfinite(number):
        return {"value": number, "text": f"{number:.1f}"}
    return {"value": None, "text": "<1" if number < 0 else f">{len(curve)}"}
