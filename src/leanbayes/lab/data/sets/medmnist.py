"""MedMNIST (Yang et al. 2023): twelve data sets of medical images, each an .npz file with three sets."""

from functools import partial
from pathlib import Path

from leanbayes.errors import InputError
from leanbayes.lab.data.arrays import array_sets, load_npz
from leanbayes.lab.data.named import DataSet, Origin, Remote, with_classes
from leanbayes.lab.data.source import Source, from_arrays
from leanbayes.lab.data.splits import SPLITS
from leanbayes.lab.data.targets import kind_of, one_axis

__all__ = ["medmnist"]

_PAGE = "https://zenodo.org/records/10519652"
_ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left",
    "lung-right", "pancreas", "spleen",
)  # fmt: skip
_CLASSES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
        "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
    ),
    "chestmnist": (
        "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
        "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
    ),
    "dermamnist": (
        "actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions",
        "dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions",
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal, benign"),
    "bloodmnist": (
        "basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte", "neutrophil",
        "platelet",
    ),
    "tissuemnist": (
        "collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cells",
        "interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments", "thick ascending limb",
    ),
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}  # fmt: skip
_SUMS = {  # MD5 sums, as version 3.0.2 of the package medmnist lists them
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "pathmnist_224": "2c51a510bcdc9cf8ddb2af93af1eadec",
    "chestmnist": "02c8a6516a18b556561a56cbdd36c4a8",
    "chestmnist_224": "45bd33e6f06c3e8cdb481c74a89152aa",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "dermamnist_224": "8974907d8e169bef5f5b96bc506ae45d",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "octmnist_224": "abc493b6d529d5de7569faaef2773ba3",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "pneumoniamnist_224": "d6a3c71de1b945ea11211b03746c1fe1",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "retinamnist_224": "eae7e3b6f3fcbda4ae613ebdcbe35348",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "breastmnist_224": "b56378a6eefa9fed602bb16d192d4c8b",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "bloodmnist_224": "b718ff6835fcbdb22ba9eacccd7b2601",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "tissuemnist_224": "b077128c4a949f0a4eb01517f9037b9c",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organamnist_224": "50747347e05c87dd3aaf92c49f9f3170",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1",
    "organcmnist_224": "050f5e875dc056f6768abf94ec9995d1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1",
    "organsmnist_224": "b354719e553fbbb2513d5533f52a4cb1",
}
_ORIGINS = {
    name: Origin(name, _PAGE, (Remote(f"{_PAGE}/files/{name}.npz?download=1", md5, (f"MedMNIST/{name}.npz",)),))
    for name, md5 in _SUMS.items()
}


def medmnist(folder: Path | str | None = None, name: str = "breastmnist", seed: int = 0) -> Source:
    """Read a data set of MedMNIST with its published sets.

    ChestMNIST has 14 labels, each of which is present or absent. All others have one class of several.

    Args:
        folder: the data directory, by default `data_dir()`.
        name: the name of the file, such as "breastmnist" or "chestmnist_224".
        seed: changes nothing, because the sets are published.
    """
    origin = _ORIGINS.get(name) or Origin(name, _PAGE)
    path = origin.find(folder, f"MedMNIST/{name}.npz", f"{name}.npz")
    sets = {split: (x, one_axis(y, None)) for split, (x, y) in array_sets(load_npz(path), path).items()}
    if sets.keys() != SPLITS.keys():
        raise InputError(f"{path} should hold images and labels for train, val and test; copy it again from {_PAGE}")
    x, y = sets["train"]
    if x.ndim > 3 and x.shape[-1] != 3:
        raise InputError(f"{path} holds volumes {x.shape[1:]}, which are not supported; give 2D images")
    source = from_arrays(path, sets, kind_of(y), seed=seed)
    names = _CLASSES.get(name.partition("_")[0])
    return source if names is None else with_classes(source, names)


SETS = tuple(DataSet(name, partial(medmnist, name=name), origin) for name, origin in _ORIGINS.items())
