"""Pictures of the report: the most and least certain examples, and segmentations with their doubt."""

from collections.abc import Sequence

import numpy as np

from leanbayes.errors import FileError
from leanbayes.lab.report import pictures
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.render import Html, element, join
from leanbayes.lab.report.section import Panel, Section, legend

__all__ = ["examples", "overlays"]

_MOST = 6  # pictures of a kind


def examples(names: Sequence[str], classes: Sequence[str], arrays: Arrays) -> Section:
    """What each method is surest and least sure of."""

    def named(label: float) -> str:
        return classes[int(label)] if np.isfinite(label) and 0 <= label < len(classes) else f"{label:g}"

    panels = []
    for name in names:
        strips = []
        for key, words in (("certain", "most certain"), ("uncertain", "least certain")):
            found = arrays.take(f"{name}/{key}", image=(3, 4), label=(1,), predicted=(1,), entropy=(1,))
            if found is None:
                continue
            cards = []
            for image, label, predicted, entropy in list(zip(*found, strict=True))[:_MOST]:
                right = label == predicted
                says = f"{named(predicted)} ✓" if right else f"{named(predicted)} ✗"
                told = f"{named(label)}, predicted {named(predicted)}, entropy {entropy:.2g}"
                lines = [element("b", says), element("small", f"is {named(label)}") if not right else Html("")]
                lines.append(element("small", f"{entropy:.2f} nats" if entropy >= 0.01 else "<0.01 nats"))
                address = pictures.data_address(pictures.picture(image))
                picture = element("img", src=address, alt=f"Example of {told}")
                cards.append(element("li", picture, *lines, class_="right" if right else "wrong"))
            strips.append(join(element("h4", words), element("ul", *cards, class_="examples")))
        if strips:
            panels.append(Panel(join(*strips), name))
    return Section(
        "examples",
        "Most and least certain examples",
        "Test pictures each method is surest and least sure of: its answer, ✓ when right, ✗ with the true class when "
        "wrong, and its entropy. Errors among the most certain are the dangerous ones.",
        panels,
    )


def overlays(names: Sequence[str], classes: Sequence[str], arrays: Arrays) -> Section | None:
    """Found, invented and missed areas, with the entropy map beside (000, figure 3)."""
    taken = {
        name: arrays.take(f"{name}/overlay", image=(3, 4), truth=(3,), predicted=(3,), entropy=(3,)) for name in names
    }
    found = {name: of for name, of in taken.items() if of is not None}
    if not found:
        return None
    for name, of in found.items():
        if len({array.shape[:3] for array in of}) > 1:
            shapes = [array.shape for array in of]
            raise FileError(f"{arrays.path}: the pictures of {name}/overlay differ in size: {shapes}")
    high = max(float(np.nan_to_num(of[3][:_MOST]).max()) for of in found.values())
    panels = []
    for name, of in found.items():
        pairs = []
        for number, (image, truth, predicted, entropy) in enumerate(list(zip(*of, strict=True))[:_MOST], 1):
            if len(classes) > 1:  # what is no class was not to be judged (an index to ignore)
                truth = np.where(truth < len(classes), truth, -1)
            painted = pictures.data_address(pictures.overlay(image, truth, predicted))
            heated = pictures.data_address(pictures.heat(entropy, high))
            verdict = element("img", src=painted, alt=f"Picture {number}: found, invented and missed areas, by {name}")
            doubt = element("img", src=heated, alt=f"Picture {number}: entropy map of {name}")
            pairs.append(element("li", verdict, doubt))
        panels.append(Panel(element("ul", *pairs, class_="overlays"), name))
    ramp = element("span", class_="ramp", style=f"background: {pictures.scale()}", aria_hidden="true")
    colours = legend(
        [
            (pictures.TRUE_POSITIVE, "■", "true positive: found"),
            (pictures.FALSE_POSITIVE, "■", "false positive: invented"),
            (pictures.FALSE_NEGATIVE, "■", "false negative: missed"),
        ]
    )
    return Section(
        "overlays",
        "Segmentations and their uncertainty",
        "On the left, what was found, invented and missed; beside it, where the method is unsure (bright). "
        "Doubt should lie on the blue and red areas; those that stay dark are errors without a warning.",
        panels,
        join(colours, element("p", "entropy: sure ", ramp, f" unsure ({high:.2g} nats)", class_="legend")),
    )
