"""The figures of the report: which arrays each figure needs, and the words that explain how to read it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from leanbayes.lab.report import plots
from leanbayes.lab.report.cases import cases
from leanbayes.lab.report.gallery import examples, overlays
from leanbayes.lab.report.guarantee import coverage, risk, sizes
from leanbayes.lab.report.read import Arrays, Numbers
from leanbayes.lab.report.section import LegendEntry, Panel, Section
from leanbayes.lab.report.showcase import showcase
from leanbayes.lab.report.table import COST, Row, describe, direction
from leanbayes.metrics.ranking import risk_coverage

__all__ = ["headline_metric", "sections"]

_BLUE, _VERMILLION = plots.PALETTE[:2]
_MOST_LAYERS = 20
_LONGEST_NAME = 22  # characters of a layer's name that fit beside its bar


def sections(results: Mapping[str, Any], rows: Sequence[Row], arrays: Arrays) -> list[Section]:
    """Return every figure for which the results and arrays suffice."""
    names = [row.method for row in rows]
    task = results["task"]
    classes = [str(name) for name in task.get("classes", [])]
    groups = [str(name) for name in task.get("subgroups", [])]
    candidates = (
        showcase(names, results.get("shown", []), arrays),
        _tradeoff(results, rows),
        _reliability(names, arrays),
        _risk(names, arrays),
        cases(names, arrays),
        _entropy_of_errors(names, arrays),
        _entropy_of_shifted(names, list(task.get("shifted", {})), arrays),
        _intervals(names, arrays),
        sizes(rows),
        coverage(names, classes, groups, arrays),
        risk(names, groups, arrays),
        _layers(results["methods"]),
        _sigma(names, arrays),
        examples(names, classes, arrays),
        overlays(names, classes, arrays),
    )
    return [section for section in candidates if section is not None and section.panels]


def headline_metric(rows: Sequence[Row]) -> str | None:
    """Return the metric by which the page ranks methods: NLL if it was measured, else the first one."""
    metrics = [name for name in rows[0].cells if not name.startswith(COST)] if rows else []
    return "nll" if "nll" in metrics else next(iter(metrics), None)


def _legend_of_methods(names: Sequence[str], shown: Sequence[int]) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(plots.PALETTE[i % 6], plots.GLYPHS[i % 6], names[i]) for i in shown)


def _vectors(arrays: Arrays, prefix: str, *names: str) -> list[Numbers] | None:
    """The named vectors, without the examples for which one of them is not finite; None if nothing is left."""
    vectors = arrays.take(prefix, **dict.fromkeys(names, (1,)))
    if vectors is None:
        return None
    finite = np.all([np.isfinite(vector) for vector in vectors], axis=0)
    return [vector[finite] for vector in vectors] if finite.any() else None


def _tradeoff(results: Mapping[str, Any], rows: Sequence[Row]) -> Section | None:
    metric = headline_metric(rows)
    if metric is None:
        return None
    title, _ = describe(metric)
    better = direction(metric, results) or ""
    words = {"low": "lower is better", "high": "higher is better"}.get(better, "")
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
            values = "; ".join(f"{rows[p.method].method}: {plots.short(p.cost)}, {p.quality:.3g}" for p in points)
            plot = plots.tradeoff(points, label, f"{title} ({words})" if words else title)
            panels.append(Panel(plot=plot, alternative=f"{title} against {label}. {values}"))
    corner = {"low": "lower left", "high": "upper left"}.get(better)
    good = f"Methods in the {corner} corner are good and cheap. " if corner else "Methods on the left are cheap. "
    several = any(row.cells[metric].half for row in rows)
    bars = "Bars are 95 % intervals over seeds." if several else ""
    return Section(
        "cost",
        "Quality against cost",
        f"Each mark is a method. Its height is its quality ({title}{', ' if words else ''}{words}), and it "
        f"stands further to the right the more it costs. {good}{bars}",
        tuple(panels),
        _legend_of_methods([row.method for row in rows], sorted(shown)),
    )


def _reliability(names: Sequence[str], arrays: Arrays) -> Section:
    panels = []
    for name in names:
        if vectors := _vectors(arrays, name, "confidence", "correct"):
            confidence, correct = vectors
            x, y, share = plots.reliability_bins(confidence, correct)
            gap = float(np.sum(share * np.abs(x - y)))
            values = f"mean confidence {confidence.mean():.3f}, share right {correct.mean():.3f}, mean gap {gap:.3f}"
            panels.append(
                Panel(
                    name,
                    f"mean gap to the line: {gap:.3f}",
                    plots.reliability(confidence, correct),
                    f"Reliability diagram of {name}: {values}",
                )
            )
    return Section(
        "reliability",
        "Does confidence match the truth?",
        "When a method is 80 % confident, it should be right 80 % of the time. Marks on the dashed line show honest "
        "confidence. Below the line the method is too confident, and above it too cautious. A larger mark stands for "
        "more inputs.",
        tuple(panels),
    )


def _risk(names: Sequence[str], arrays: Arrays) -> Section | None:
    curves, values = [], []
    for index, name in enumerate(names):
        if vectors := _vectors(arrays, name, "confidence", "correct"):
            doubt, wrong = (torch.from_numpy(1 - vector) for vector in vectors)
            curve = risk_coverage(doubt, wrong)
            risk = np.asarray(curve.risk)
            curves.append((index, np.asarray(curve.coverage), risk))
            values.append(f"{name}: {100 * risk[-1]:.2g} % errors when every input is kept")
    if not curves:
        return None
    return Section(
        "risk",
        "Errors left when unsure inputs are set aside",
        "Suppose that a person decides the inputs that a method is least sure of, and the method decides the others. "
        "The curve shows how often the method then errs. The lower the curve stays while most inputs are kept, the "
        "more useful is the method's doubt.",
        (Panel(plot=plots.risk_coverage(curves), alternative=f"Risk-coverage curves. {'; '.join(values)}"),),
        _legend_of_methods(names, [index for index, _, _ in curves]),
    )


def _entropy_of_errors(names: Sequence[str], arrays: Arrays) -> Section:
    groups = {}
    for name in names:
        if vectors := _vectors(arrays, name, "entropy", "correct"):
            entropy, correct = vectors
            halves = [(_BLUE, entropy[correct > 0.5]), (_VERMILLION, entropy[correct <= 0.5])]
            groups[name] = [(colour, values) for colour, values in halves if len(values)]
    return Section(
        "errors",
        "Is it less sure when it is wrong?",
        "How uncertain each method is about the inputs that it gets right and wrong. Uncertainty is the entropy of the "
        "prediction in nats, and 0 means certain. The further apart the two shapes are, the better doubt warns of "
        "errors. The vertical axis is stretched near zero.",
        _entropy_panels(groups, "right and wrong answers"),
        (LegendEntry(_BLUE, "■", "right"), LegendEntry(_VERMILLION, "■", "wrong")),
    )


def _entropy_of_shifted(names: Sequence[str], shifted: Sequence[str], arrays: Arrays) -> Section:
    groups: dict[str, list[tuple[str, Numbers]]] = {}
    drawn: set[str] = set()
    colours = {other: plots.PALETTE[1:][index % 5] for index, other in enumerate(shifted)}
    for name in names:
        # An input of many pixels or labels has one entropy, the mean; so familiar inputs compare with unfamiliar ones.
        familiar = _vectors(arrays, name, "input_entropy") or _vectors(arrays, name, "entropy")
        unfamiliar = {other: _vectors(arrays, f"{name}/shifted/{other}", "entropy") for other in shifted}
        present = {other: vectors[0] for other, vectors in unfamiliar.items() if vectors}
        if familiar and present:
            groups[name] = [(_BLUE, familiar[0]), *((colours[other], values) for other, values in present.items())]
            drawn.update(present)
    legend = [LegendEntry(colours[other], "■", other) for other in shifted if other in drawn]
    return Section(
        "shifted",
        "Does it notice unfamiliar inputs?",
        "How uncertain each method is (entropy in nats) about the test set, and about data unlike anything in "
        "training. Unfamiliar data should lie further to the right. Where it overlaps the test set, the method does "
        "not notice that the inputs are unfamiliar. The vertical axis is stretched near zero.",
        _entropy_panels(groups, "familiar and unfamiliar inputs"),
        (LegendEntry(_BLUE, "■", "test set"), *legend),
    )


def _entropy_panels(groups: Mapping[str, list[tuple[str, Numbers]]], what: str) -> tuple[Panel, ...]:
    """One panel for each method, with the same axes in all of them so that methods can be compared."""
    limit = max((float(values.max()) for of in groups.values() for _, values in of), default=0.0)
    limit = max(limit, 1e-6)
    shares = {name: [(colour, plots.bin_shares(values, limit)) for colour, values in of] for name, of in groups.items()}
    top = 1.1 * max((float(share.max()) for of in shares.values() for _, share in of), default=1.0)
    panels = []
    for name, of in groups.items():
        means = " and ".join(f"{values.mean():.3f}" for _, values in of)
        plot = plots.histograms(shares[name], limit, top, "entropy (nats)")
        panels.append(Panel(name, plot=plot, alternative=f"Entropy of {what} for {name}: means {means}"))
    return tuple(panels)


def _intervals(names: Sequence[str], arrays: Arrays) -> Section:
    panels = []
    for name in names:
        if vectors := _vectors(arrays, name, "predicted", "deviation", "truth"):
            predicted, deviation, truth = vectors
            inside = 100 * float(np.mean(np.abs(truth - predicted) <= 1.96 * deviation))
            note = f"{inside:.0f} % of the truths lie within ±1.96 deviations (ideal: 95 %)"
            plot = plots.intervals(predicted, deviation, truth)
            panels.append(Panel(name, note, plot, f"Predictions of {name} against the truth: {note}"))
    return Section(
        "intervals",
        "Predictions with their own error bars",
        "Each dot is an example, and its bar reaches one predicted standard deviation up and down. Good predictions "
        "lie on the dashed line. Honest bars reach the line about two times in three.",
        tuple(panels),
    )


def _layers(methods: Sequence[Mapping[str, Any]]) -> Section:
    panels = []
    for method in methods:
        layers = [layer for layer in method.get("layers", []) if layer["random"] > 0]
        if not layers:
            continue
        by_count = sorted(range(len(layers)), key=lambda i, of=layers: -of[i]["random"])  # type: ignore[misc]
        shown = [layers[i] for i in sorted(by_count[:_MOST_LAYERS])]
        random, size = (np.array([float(layer[key]) for layer in shown]) for key in ("random", "size"))
        total = sum(layer["random"] for layer in layers)
        note = f"{plots.short(total)} random weights"
        if len(shown) < len(layers):
            note += f"; {len(layers) - len(shown)} layers with fewer of them are not drawn"
        values = ", ".join(f"{layer['name']} {layer['random']} of {layer['size']}" for layer in shown)
        plot = plots.layers([_shortened(layer["name"]) for layer in shown], random, size)
        panels.append(Panel(method["name"], note, plot, f"Random weights by layer: {values}"))
    return Section(
        "layers",
        "Where the random weights sit",
        "A random weight has a distribution instead of one value. Each bar is the share of a layer's weights that is "
        "random, with the first layer on top, and the number beside the bar counts them.",
        tuple(panels),
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]


def _sigma(names: Sequence[str], arrays: Arrays) -> Section:
    panels = []
    for name in names:
        matrices = arrays.take(name, sigma=(2,))
        if matrices is None or not np.isfinite(matrices[0]).any():
            continue
        (sigma,) = matrices
        finite = sigma[np.isfinite(sigma)]
        note = f"{finite.size:,} of {sigma.size:,} weights are random"
        values = f"σ from {finite.min():.3g} to {finite.max():.3g}, mean {finite.mean():.3g}"
        drawn = plots.pooled(sigma)
        plot = plots.sigma_map(sigma, float(np.nanmin(drawn)), float(np.nanmax(drawn)))
        panels.append(Panel(name, note, plot, f"σ of the first random layer of {name}: {note}, {values}"))
    return Section(
        "sigma",
        "How uncertain the first layer's weights are",
        "Each cell is a weight of the first layer that has random weights. A brighter cell means a wider distribution "
        "(a larger standard deviation σ), and grey means that the weight is not random. A large layer is drawn in "
        "blocks, each with the mean σ of its random weights.",
        tuple(panels),
    )
