"""The review page: every predicted case in order of doubt, slice by slice, with outlines and maps.

The page is one file that fetches nothing, as long as its pictures have at most 24 MB together. The pictures of more
cases lie in the folder ``review`` beside the page, which must then stay beside it.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from leanbayes._files import write_bytes
from leanbayes.lab.report.outlines import outline
from leanbayes.lab.report.pictures import Pixels
from leanbayes.lab.report.render import fill_template, package_text
from leanbayes.lab.report.sheets import FAINTEST, Thinning, doubt_colours, doubt_gradient, sheet, sheet_columns
from leanbayes.lab.slices import Values, View, largest_slice, reduced, reduced_labels, shades

__all__ = ["OUTLINES", "Review", "ReviewCase"]

OUTLINES = ("#4cc9f0", "#7ae582", "#ff8fab", "#f9f871", "#c8b6ff", "#ffffff")
"""The colours of outlines, which differ from those of the maps and of grey images."""

_IN_PAGE = 24 * 2**20  # bytes of pictures in the page itself
_OURS = re.compile(r"^\d{4,}_(image|total|epistemic)\.webp$|^\.\d{4,}_epistemic\.npz$")
_ORDERS = {
    "draw_disagreement": "Disagreement of draws",
    "expected_dice_loss": "Expected loss of Dice",
    "total": "Total uncertainty",
    "epistemic": "Epistemic uncertainty",
}


@dataclass(frozen=True)
class ReviewCase:
    """One case of the page. Arrays have the axes of the case itself; the view says how they become slices.

    Args:
        name: the name of the case.
        image: the image or scan, (channels, ...), as its file has it.
        labels: the predicted classes.
        total: the total uncertainty.
        epistemic: its epistemic part.
        view: how the arrays become slices.
        doubts: what the case can be ordered by; see the columns of ``predictions.csv``.
        facts: lines about the case: a label and a text each.
        masks: further masks that are outlined, by name: the outer and the inner mask of conformal risk control.
    """

    name: str
    image: Values
    labels: Values
    total: Values
    epistemic: Values
    view: View
    doubts: Mapping[str, float]
    facts: Sequence[tuple[str, str]] = ()
    masks: Mapping[str, Values] = field(default_factory=dict)


class Review:
    """Collects cases one by one, and keeps only their outlines in memory.

    Args:
        folder: where ``review.html`` goes. A page of an earlier run is removed at once.
        classes: the names of the classes; the first one is the background.
        highest: the total uncertainty that is drawn brightest, which is log C nats for C classes.
    """

    def __init__(self, folder: Path, classes: Sequence[str], highest: float) -> None:
        self.page, self.pictures = folder / "review.html", folder / "review"
        self.classes, self.highest = tuple(classes), highest
        self.cases: list[dict[str, Any]] = []
        self.highest_epistemic = 0.0
        self.page.unlink(missing_ok=True)
        self._clear()
        self.pictures.mkdir(parents=True, exist_ok=True)

    def add(self, case: ReviewCase) -> None:
        """Take in one case."""
        number = f"{len(self.cases):04}"
        view = case.view
        labels, total, epistemic = (view.slices(values) for values in (case.labels, case.total, case.epistemic))
        thin = Thinning.of(*labels.shape)
        every = slice(None, None, thin.step)
        shown = largest_slice(labels[every], total[every])
        image = np.stack([reduced(channel[every], thin.factor) for channel in view.slices(_channels(case.image))], -1)
        labels = reduced_labels(labels[every], thin.factor)
        doubts = [reduced(values[every].astype(np.float32), thin.factor) for values in (total, epistemic)]
        write_bytes(self.pictures / f"{number}_image.webp", sheet(_rgb(image)))
        write_bytes(self.pictures / f"{number}_total.webp", sheet(doubt_colours(doubts[0], self.highest)))
        self.highest_epistemic = max(self.highest_epistemic, float(np.nan_to_num(doubts[1]).max()))
        # The epistemic parts of all cases share a scale that is only known at the end.
        np.savez_compressed(self.pictures / f".{number}_epistemic.npz", doubts[1].astype(np.float16))
        masks = {name: reduced_labels(view.slices(values)[every], thin.factor) for name, values in case.masks.items()}
        self.cases.append(
            {
                "name": case.name,
                "facts": [list(fact) for fact in case.facts],
                "doubts": {name: value for name, value in case.doubts.items() if np.isfinite(value)},
                "note": " ".join(filter(None, (self._nothing(case.labels), thin.words))),
                "slices": len(labels),
                "step": thin.step,
                "columns": sheet_columns(len(labels)),
                "width": labels.shape[2],
                "height": labels.shape[1],
                "aspect": view.aspect,
                "sides": list(view.sides),
                "shown": shown,
                "paths": self._paths(labels, masks),
            }
        )

    def write(self, about: Sequence[tuple[str, str]] = ()) -> Path:
        """Write the page and return its path.

        Args:
            about: lines about the model and the command: a label and a text each.
        """
        self.highest_epistemic = max(self.highest_epistemic, FAINTEST * self.highest)
        for index in range(len(self.cases)):
            number = f"{index:04}"
            kept = self.pictures / f".{number}_epistemic.npz"
            with np.load(kept) as arrays:
                values = arrays["arr_0"]
            colours = doubt_colours(values, self.highest_epistemic)
            write_bytes(self.pictures / f"{number}_epistemic.webp", sheet(colours))
            kept.unlink()
        files = [file for file in self.pictures.iterdir() if _OURS.match(file.name)]
        embedded = sum(file.stat().st_size for file in files) <= _IN_PAGE
        for index, case in enumerate(self.cases):
            for kind in ("image", "total", "epistemic"):
                file = self.pictures / f"{index:04}_{kind}.webp"
                case[kind] = _data_address(file) if embedded else f"{self.pictures.name}/{file.name}"
        orders = self._orders()
        first = next(iter(orders), "")
        self.cases.sort(key=lambda case: -case["doubts"].get(first, 0))
        # JSON may hold half of a surrogate pair, which is no text; it becomes a question mark.
        write_bytes(self.page, self._html(orders, about, embedded).encode("utf-8", "replace"))
        if embedded:
            self._clear()
        return self.page

    def _orders(self) -> dict[str, str]:
        """What the cases can be ordered by: doubts that all of them have and that differ, unless there is one case."""
        values = {name: {case["doubts"].get(name) for case in self.cases} for name in _ORDERS}
        return {
            name: title
            for name, title in _ORDERS.items()
            if None not in values[name] and (len(values[name]) > 1 or len(self.cases) == 1)
        }

    def _html(self, orders: Mapping[str, str], about: Sequence[tuple[str, str]], embedded: bool) -> str:
        style, script = package_text("review.css"), package_text("review.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        sources = "data:" if embedded else "data: file: 'self'"
        return fill_template(
            "review.html",
            {
                "title": f"{len(self.cases)} case{'' if len(self.cases) == 1 else 's'} to review",
                # The policy forbids the browser to fetch anything, and to run any script but this one.
                "policy": f"default-src 'none'; img-src {sources}; style-src 'unsafe-inline'; "
                f"script-src 'sha256-{digest}'",
                "style": Markup(style),
                "script": Markup(script),
                "cases": Markup(_json_in_page(self.cases)),
                "orders": orders,
                "about": about,
                "gradient": doubt_gradient(),
                "total": f"{self.highest:.3g} nats",
                "epistemic": f"{self.highest_epistemic:.2g} nats",
            },
        )

    def _nothing(self, labels: Values) -> str:
        """Say so if nothing is predicted, because a picture without an outline looks like one that is switched off."""
        return "" if (labels > 0).any() else f"The model predicts no {' or '.join(self.classes[1:])} in this case."

    def _paths(self, labels: Values, masks: Mapping[str, Values]) -> list[dict[str, Any]]:
        """The outline of each class in each slice, and those of further masks, which are dashed or dotted."""
        paths = [
            {
                "name": name,
                "colour": OUTLINES[(label - 1) % len(OUTLINES)],
                "line": "solid",
                "slices": [outline(plane == label) for plane in labels],
            }
            for label, name in enumerate(self.classes)
            if label > 0
        ]
        for (name, mask), line in zip(masks.items(), cycle(("dashed", "dotted"))):
            slices = [outline(plane > 0) for plane in mask]
            paths.append({"name": name, "colour": OUTLINES[-1], "line": line, "slices": slices})
        return paths

    def _clear(self) -> None:
        """Remove the pictures of this page, or of an earlier one; other files stay."""
        if not self.pictures.is_dir():
            return
        for file in self.pictures.iterdir():
            if _OURS.match(file.name):
                file.unlink()
        if not any(self.pictures.iterdir()):
            self.pictures.rmdir()


def _channels(image: Values) -> Values:
    """Return the channels that are shown, from 0 to 1: red, green and blue, or else the first one."""
    return shades(image if len(image) == 3 else image[:1])


def _rgb(image: Values) -> Pixels:
    pixels: Pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    return pixels if pixels.shape[-1] == 3 else np.repeat(pixels, 3, -1)


def _data_address(file: Path) -> str:
    return f"data:image/webp;base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"


def _json_in_page(values: Any) -> str:
    """JSON that cannot end the element of the page that holds it."""
    text = json.dumps(values, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
