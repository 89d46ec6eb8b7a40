"""The figures of the report: which arrays each one needs, and how to read it in plain words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from leanbayes.lab.report import plots
from leanbayes.lab.report.gallery import examples, overlays
from leanbayes.lab.report.read import Arrays, Numbers
from leanbayes.lab.report.render import Html
from leanbayes.lab.report.section import Panel, Section, legend
from leanbayes.lab.report.table import COST, Row, describe
from leanbayes.metrics.ranking import risk_coverage

__all__ = ["headline_metric", "sections"]

_BLUE, _VERMILLION = plots.PALETTE[:2]
_MOST_LAYERS = 20


def sections(results: Mapping[str, Any], rows: Sequence[Row], arrays: Arrays) -> list[Section]:
    """Every figure that the results and arrays suffice for."""
    names = [row.method for row in rows]
    task = results["task"]
    classes = [str(name) for name in task.get("classes", [])]
    found = (
        _tradeoff(rows, results.get("better", {})),
        _reliability(names, arrays),
        _risk(names, arrays),
        _entropy_of_errors(names, arrays),
        _entropy_of_shifted(names, list(task.get("shifted", {})), arrays),
        _intervals(names, arrays),
        _layers(results["methods"]),
        _sigma(names, arrays),
        examples(names, classes, arrays),
        overlays(names, classes, arrays),
    )
    return [section for section in found if section is not None and section.panels]


def headline_metric(rows: Sequence[Row]) -> str | None:
    """NLL where it was measured, else the first metric."""
    known = [name for name in rows[0].cells if not name.startswith(COST)] if rows else []
    return "nll" if "nll" in known else next(iter(known), None)


def _methods_legend(names: Sequence[str], used: Sequence[int]) -> Html:
    return legend([(plots.PALETTE[i % 6], plots.GLYPHS[i % 6], names[i]) for i in used])


def _finite(found: list[Numbers]) -> list[Numbers] | None:
    """The examples for which every array has a finite value."""
    keep = np.all([np.isfinite(array) for array in found], axis=0)
    return [array[keep] for array in found] if keep.any() else None


def _vectors(arrays: Arrays, prefix: str, *names: str) -> list[Numbers] | None:
    found = arrays.take(prefix, **dict.fromkeys(names, (1,)))
    return None if found is None else _finite(found)


def _tradeoff(rows: Sequence[Row], better: Mapping[str, str | None]) -> Section | None:
    metric = headline_metric(rows)
    if metric is None:
        return None
    title, _ = describe(metric)
    way = better.get(metric) or ""
    direction = {"low": "lower is better", "high": "higher is better"}.get(way, "")
    panels: list[Panel] = []
    shown: set[int] = set()
    for cost in ("train_seconds", "parameters", "flops_train"):
        points = []
        for index, row in enumerate(rows):
            x, y = row.cells.get(COST + cost), row.cells[metric]
            if x is None or x.mean is None or y.mean is None or not np.isfinite([x.mean, y.mean]).all():
                continue
            points.append(plots.Point(index, x.mean, y.mean, y.half or 0.0))
        if points:
            label, _ = describe(COST + cost)
            shown.update(point.method for point in points)
            told = "; ".join(f"{rows[p.method].method}: {plots.short(p.cost)}, {p.quality:.3g}" for p in points)
            body = plots.tradeoff(points, label, f"{title} ({direction})" if direction else title)
            panels.append(Panel(body, alternative=f"{title} against {label}. {told}"))
    corner = {"low": "lower left", "high": "upper left"}.get(way, "left")
    return Section(
        "cost",
        "Quality against cost",
        f"Each mark is a method: how good it is ({title}, {direction or 'upward is more'}) for what it costs. "
        f"The {corner} corner is good and cheap; bars are 95 % intervals over seeds.",
        panels,
        _methods_legend([row.method for row in rows], sorted(shown)),
    )


def _reliability(names: Sequence[str], arrays: Arrays) -> Section:
    panels = []
    for name in names:
        if found := _vectors(arrays, name, "confidence", "correct"):
            x, y, share = plots.reliability_bins(*found)
            gap = float(np.sum(share * np.abs(x - y)))
            body = plots.reliability(*found)
            told = f"{name}: mean confidence {found[0].mean():.3f}, share right {found[1].mean():.3f}, gap {gap:.3f}"
            panels.append(Panel(body, name, f"mean gap {gap:.3f}", f"Reliability diagram of {told}"))
    return Section(
        "reliability",
        "Does confidence match the truth?",
        "When a method says 80 %, it should be right 80 % of the time: marks on the dashed line are honest, marks "
        "below it are too sure, marks above it too modest. Large marks hold many inputs, small ones few.",
        panels,
    )


def _risk(names: Sequence[str], arrays: Arrays) -> Section | None:
    curves, told = [], []
    for index, name in enumerate(names):
        if found := _vectors(arrays, name, "confidence", "correct"):
            doubt, wrong = (torch.from_numpy(1 - values) for values in found)
            curve = risk_coverage(doubt, wrong)
            risk = np.asarray(curve.risk)
            curves.append((index, np.asarray(curve.coverage), risk))
            told.append(f"{name}: {100 * risk[-1]:.2g} % errors with every input kept")
    if not curves:
        return None
    return Section(
        "risk",
        "Errors left when unsure inputs are set aside",
        "Hand the least sure inputs to a person and keep the rest: the curve shows the errors among those kept. "
        "The lower a curve stays while most inputs are kept, the more useful the method's doubt.",
        [Panel(plots.risk_coverage(curves), alternative=f"Risk-coverage curves. {'; '.join(told)}")],
        _methods_legend(names, [index for index, _, _ in curves]),
    )


def _entropy_of_errors(names: Sequence[str], arrays: Arrays) -> Section:
    groups = {}
    for name in names:
        if found := _vectors(arrays, name, "entropy", "correct"):
            entropy, correct = found
            halves = [(_BLUE, entropy[correct > 0.5]), (_VERMILLION, entropy[correct <= 0.5])]
            groups[name] = [(colour, values) for colour, values in halves if len(values)]
    return Section(
        "errors",
        "Is it less sure when it is wrong?",
        "How uncertain (entropy, in nats: 0 is certain) each method is about the inputs it gets right and wrong. "
        "The further apart the two shapes, the better doubt warns of errors; heights near zero are stretched.",
        _entropy_panels(groups, "right and wrong answers"),
        legend([(_BLUE, "■", "right"), (_VERMILLION, "■", "wrong")]),
    )


def _entropy_of_shifted(names: Sequence[str], shifted: Sequence[str], arrays: Arrays) -> Section:
    groups: dict[str, list[tuple[str, Numbers]]] = {}
    seen: set[str] = set()
    colours = {other: plots.PALETTE[1:][index % 5] for index, other in enumerate(shifted)}
    for name in names:
        found = _vectors(arrays, name, "entropy")
        others = {other: _vectors(arrays, f"{name}/shifted/{other}", "entropy") for other in shifted}
        present = [(colours[other], values[0]) for other, values in others.items() if values]
        if found and present:
            groups[name] = [(_BLUE, found[0]), *present]
            seen.update(other for other, values in others.items() if values)
    entries = [(_BLUE, "■", "test set"), *((colours[other], "■", other) for other in shifted if other in seen)]
    return Section(
        "shifted",
        "Does it notice unfamiliar inputs?",
        "Uncertainty (entropy, in nats) on the test set and on data unlike anything in training. "
        "Unfamiliar data should lie further right; where it overlaps the test set, the method does not notice.",
        _entropy_panels(groups, "familiar and unfamiliar inputs"),
        legend(entries),
    )


def _entropy_panels(groups: Mapping[str, list[tuple[str, Numbers]]], what: str) -> list[Panel]:
    """One panel a method, all with one axis so that methods can be compared."""
    limit = max((float(values.max()) for of in groups.values() for _, values in of), default=0.0)
    limit = max(limit, 1e-6)
    shares = {name: [(colour, plots.bin_shares(values, limit)) for colour, values in of] for name, of in groups.items()}
    top = 1.1 * max((float(share.max()) for of in shares.values() for _, share in of), default=1.0)
    panels = []
    for name, of in groups.items():
        means = " and ".join(f"{values.mean():.3f}" for _, values in of)
        body = plots.histograms(shares[name], limit, top, "entropy (nats)")
        panels.append(Panel(body, name, alternative=f"Entropy of {what} for {name}: means {means}"))
    return panels


def _intervals(names: Sequence[str], arrays: Arrays) -> Section:
    panels = []
    for name in names:
        if found := _vectors(arrays, name, "predicted", "deviation", "truth"):
            predicted, deviation, truth = found
            inside = 100 * float(np.mean(np.abs(truth - predicted) <= 1.96 * deviation))
            note = f"{inside:.0f} % within ±1.96 deviations (ideal: 95 %)"
            panels.append(Panel(plots.intervals(*found), name, note, f"Predictions of {name} against truth: {note}"))
    return Section(
        "intervals",
        "Predictions with their own error bars",
        "Each dot is an example; the bar is one predicted standard deviation either way. "
        "Good predictions lie on the dashed line, and honest bars reach it about two times in three.",
        panels,
    )


def _layers(methods: Sequence[Mapping[str, Any]]) -> Section:
    panels = []
    for method in methods:
        layers = [layer for layer in method.get("layers", []) if layer["random"] > 0]
        if not layers:
            continue
        most = sorted(range(len(layers)), key=lambda i, of=layers: -of[i]["random"])[:_MOST_LAYERS]  # type: ignore[misc]
        shown = [layers[i] for i in sorted(most)]
        random, size = (np.array([float(layer[key]) for layer in shown]) for key in ("random", "size"))
        total = sum(layer["random"] for layer in layers)
        note = f"{plots.short(total)} random weights"
        if len(shown) < len(layers):
            note += f"; {len(layers) - len(shown)} layers with fewer of them are not drawn"
        told = ", ".join(f"{layer['name']} {layer['random']} of {layer['size']}" for layer in shown)
        names = [layer["name"] if len(layer["name"]) <= 22 else "…" + layer["name"][-21:] for layer in shown]
        panels.append(
            Panel(plots.layers(names, random, size), method["name"], note, f"Random weights by layer: {told}")
        )
    return Section(
        "layers",
        "Where the random weights sit",
        "The share of each layer's weights that has a distribution instead of one value, first layer on top; the "
        "number beside a bar counts them.",
        panels,
    )


def _sigma(names: Sequence[str], arrays: Arrays) -> Section:
    found = {name: taken[0] for name in names if (taken := arrays.take(name, sigma=(2,)))}
    found = {name: sigma for name, sigma in found.items() if np.isfinite(sigma).any()}
    panels = []
    for name, sigma in found.items():
        known = sigma[np.isfinite(sigma)]
        note = f"{known.size:,} of {sigma.size:,} weights random"
        told = f"σ from {known.min():.3g} to {known.max():.3g}, mean {known.mean():.3g}"
        drawn = plots.pooled(sigma)
        body = plots.sigma_map(sigma, float(np.nanmin(drawn)), float(np.nanmax(drawn)))
        panels.append(Panel(body, name, note, f"σ of the first random layer of {name}: {note}, {told}"))
    return Section(
        "sigma",
        "How uncertain the first layer's weights are",
        "Each cell is a weight of the first random layer: brighter means a wider distribution (σ), grey means not "
        "random. A large layer is drawn in blocks, each with the mean σ of its random weights.",
        panels,
    )
