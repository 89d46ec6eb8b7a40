"""The pictures of the report: the examples a method is most and least certain of, and segmentations."""

from collections.abc import Sequence

import numpy as np

from leanbayes.errors import FileError
from leanbayes.lab.report import pictures
from leanbayes.lab.report.read import Arrays, Numbers
from leanbayes.lab.report.section import Card, LegendEntry, Overlay, Panel, Ramp, Section, Strip

__all__ = ["examples", "overlays"]

_MOST = 6  # pictures in a strip


def examples(names: Sequence[str], classes: Sequence[str], arrays: Arrays) -> Section:
    """Show the test pictures that each method is most and least certain of."""
    panels = []
    for name in names:
        strips = []
        for key, title in (("certain", "most certain"), ("uncertain", "least certain")):
            columns = arrays.take(f"{name}/{key}", image=(3, 4), label=(1,), predicted=(1,), entropy=(1,))
            if columns is not None:
                rows = list(zip(*columns, strict=True))[:_MOST]
                strips.append(Strip(title, tuple(_card(classes, *row) for row in rows)))
        if strips:
            panels.append(Panel(name, strips=tuple(strips)))
    return Section(
        "examples",
        "Most and least certain examples",
        "These are the test pictures that each method is most and least certain of. Below each picture stand the "
        "method's answer (✓ if it is right, ✗ and the true class if it is wrong) and its uncertainty (entropy, in "
        "nats). Errors among the most certain pictures are the dangerous ones.",
        tuple(panels),
    )


def _card(classes: Sequence[str], image: Numbers, label: float, predicted: float, entropy: float) -> Card:
    truth, answer = _class_name(classes, label), _class_name(classes, predicted)
    return Card(
        address=pictures.data_address(pictures.picture(image)),
        alternative=f"Example of class {truth}, predicted {answer}, entropy {entropy:.2g}",
        answer=answer,
        truth=truth,
        right=bool(label == predicted),
        uncertainty=f"{entropy:.2f} nats" if entropy >= 0.01 else "<0.01 nats",
    )


def _class_name(classes: Sequence[str], label: float) -> str:
    return classes[int(label)] if np.isfinite(label) and 0 <= label < len(classes) else f"{label:g}"


def overlays(names: Sequence[str], classes: Sequence[str], arrays: Arrays) -> Section | None:
    """Show which areas each method finds, invents and misses, beside its entropy map (Abboud et al. 2024, fig. 3)."""
    by_method: dict[str, list[Numbers]] = {}
    for name in names:
        columns = arrays.take(f"{name}/overlay", image=(3, 4), truth=(3,), predicted=(3,), entropy=(3,))
        if columns is not None:
            by_method[name] = [column[:_MOST] for column in columns]
    if not by_method:
        return None
    for name, columns in by_method.items():
        if len({column.shape[:3] for column in columns}) > 1:
            shapes = [column.shape for column in columns]
            raise FileError(f"{arrays.path}: the pictures of {name}/overlay differ in size: {shapes}")
    highest = max(float(np.nan_to_num(entropy).max()) for *_, entropy in by_method.values())
    panels = [
        Panel(
            name,
            overlays=tuple(
                _overlay(f"Picture {number}, {name}", len(classes), highest, *row)
                for number, row in enumerate(zip(*columns, strict=True), 1)
            ),
        )
        for name, columns in by_method.items()
    ]
    return Section(
        "overlays",
        "Segmentations and their uncertainty",
        "The left picture of each pair shows which areas the method found, invented and missed. The right picture "
        "shows where the method is unsure (bright). Blue and orange areas on the left should be bright on the right. "
        "Where they are dark, the method errs without a warning.",
        tuple(panels),
        (
            LegendEntry(pictures.TRUE_POSITIVE, "■", "found (true positive)"),
            LegendEntry(pictures.FALSE_POSITIVE, "■", "invented (false positive)"),
            LegendEntry(pictures.FALSE_NEGATIVE, "■", "missed (false negative)"),
        ),
        (Ramp(pictures.scale(), "Entropy: 0, sure", f"{highest:.2g} nats, unsure"),),
    )


def _overlay(
    words: str, classes: int, highest: float, image: Numbers, truth: Numbers, predicted: Numbers, entropy: Numbers
) -> Overlay:
    if classes > 1:  # a label that is no class marks pixels that are not judged
        truth = np.where(truth < classes, truth, -1)
    return Overlay(
        verdict=pictures.data_address(pictures.overlay(image, truth, predicted)),
        verdict_alternative=f"{words}: areas found, invented and missed",
        uncertainty=pictures.data_address(pictures.heat(entropy, highest)),
        uncertainty_alternative=f"{words}: map of the entropy",
    )
