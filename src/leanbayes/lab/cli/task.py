"""The options that say what data and which model a command works on, and the task that they make."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanbayes.errors import InputError
from leanbayes.lab.cli.progress import Bars
from leanbayes.lab.recipes import option

if TYPE_CHECKING:  # slow to import, and not needed for help
    from leanbayes.lab.data import Source, Task

__all__ = ["DataOptions", "read_task"]


@dataclass(frozen=True)
class DataOptions:
    """What the networks learn from, and which network it is."""

    data: str = option(
        "digits",
        "What to learn from: digits, the name of a data set, a folder with one folder for each class, a folder of "
        "images or of scans (NIfTI, DICOM) with --masks or --raters, an .npz file, or a .csv file (with --target).",
    )
    data_dir: str | None = option(
        None,
        "The folder that holds the data sets that have names. By default it is the folder that the environment "
        "variable LEANBAYES_DATA names, or ./data.",
    )
    download: bool = option(
        False, "Download the missing files of a data set that has a name, where its publisher allows programs to."
    )
    masks: str | None = option(
        None, "The folder of masks for segmentation. It holds one mask for each image of --data, under the same name."
    )
    raters: tuple[str, ...] = option(
        (),
        "The folders of masks of several raters, one folder for each, instead of --masks. A rater may lack images.",
    )
    rating: str | None = option(
        None,
        "How several raters are learnt from: random draws a rater in each step, and all makes an example of each pair "
        "of image and rater. By default it is random.",
    )
    groups: str | None = option(
        None,
        "Whose each example is, so that no patient is in two sets: a .csv file of names and patients, or a pattern in "
        "the names of the files such as '(P[0-9]+)_'. For a .csv of --data it is the column of the patients.",
    )
    subgroups: str | None = option(
        None,
        "The subgroup of each example, such as its hospital: a .csv file of names and subgroups, or a pattern in the "
        "names of the files. For a .csv of --data it is a column, which is then no input. Comparisons show the "
        "coverage of each subgroup, and +conformal:per=group guarantees it.",
    )
    window: tuple[int, ...] = option(
        (),
        "The sides of the windows on which segmentation is trained, such as 96 96 96. Whole images or scans are then "
        "predicted by sliding windows, and may differ in size.",
    )
    patches: int | None = option(None, "How many windows of each image an epoch has. By default it is 4.")
    spacing: tuple[float, ...] = option(
        (),
        "The distance of voxels to which scans are brought: three numbers in millimetres, to the right, to the front "
        "and up. By default all scans must have the same spacing.",
    )
    target: str | None = option(None, "The column of a .csv file to predict. All other columns are inputs.")
    size: int | None = option(
        None, "Resize images to this height and width, in pixels. By default all images must have the same size."
    )
    ignore: int | None = option(None, "The value of mask pixels that neither training nor scores count.")
    model: str | None = option(
        None,
        "The network: a name such as small_cnn, resnet18, unet, mlp or monai:UNet, or a function of your own as "
        "package.module:function. By default the data decide.",
    )
    split_seed: int = option(
        0, "The seed that divides data without a split of their own into training, validation and test sets."
    )


def read_task(options: DataOptions, bars: Bars) -> tuple["Task", dict[str, Any]]:
    """Read the data, and make the task.

    Args:
        options: the data and the model.
        bars: show how far the reading is.

    Returns:
        The task, and what must be saved beside a model that is trained on it, so that `predict` can use the model.
    """
    from dataclasses import replace
    from functools import partial

    from leanbayes.lab.data import DATA, Preparation, digits
    from leanbayes.lab.models import model_named

    if options.data == "digits":
        task = digits(options.split_seed)
        preparation = Preparation("classes", (0.0,), (1.0,), task.classes, size=(8, 8), resize=True)
        name = options.model or "small_cnn"
        if options.model is not None:
            task = replace(task, model=partial(model_named, name, **preparation.shape))
            task.model()  # a wrong name is an error now, not after the first training
    else:
        source = _named_set(options, bars) if options.data in DATA else _own_files(options, bars)
        preparation = source.preparation
        for remark in source.remarks:
            bars.remark(remark)
        name = options.model or source.usual_model
        task = source.task(name)
    return task, {"model": name, "shape": preparation.shape, "preparation": preparation.to_json()}


def _own_files(options: DataOptions, bars: Bars) -> "Source":
    from leanbayes.lab.data import read

    return read(
        options.data,
        masks=options.masks,
        target=options.target,
        size=options.size,
        ignore=options.ignore,
        raters=options.raters or None,
        rating=options.rating,  # type: ignore[arg-type]
        groups=options.groups,
        subgroups=options.subgroups,
        window=options.window or None,
        patches=options.patches,
        spacing=options.spacing or None,
        seed=options.split_seed,
        track=bars.track,
    )


def _named_set(options: DataOptions, bars: Bars) -> "Source":
    from leanbayes.lab.data import load_data

    names = ("masks", "raters", "rating", "groups", "subgroups", "window", "patches", "spacing", "target", "ignore")
    for name in names:
        if getattr(options, name):
            raise InputError(
                f"--{name} is for data of your own, but --data {options.data} is the name of a data set; "
                f"leave --{name} out, or write ./{options.data} if you mean a folder"
            )
    return load_data(
        options.data,
        options.data_dir,
        seed=options.split_seed,
        size=options.size,
        download=options.download,
        track=bars.track,
    )
