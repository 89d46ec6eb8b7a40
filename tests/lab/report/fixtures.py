"""Comparison folders that look like real ones: six methods on digits, a segmentation, a regression.

``python -m tests.lab.report.fixtures FOLDER`` writes all three and their reports.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from leanbayes._files import write_tensors

Arrays = dict[str, np.ndarray]

# name: how sharp its confidence is, accuracy, cost factor, share of random weights
METHODS = {
    "deterministic": (3.2, 0.962, 1.0, 0.0),
    "ensemble": (2.0, 0.978, 5.0, 0.0),
    "dropout": (2.4, 0.968, 1.2, 0.0),
    "vi": (1.3, 0.955, 2.3, 1.0),
    "partial": (2.1, 0.972, 1.9, 0.01),
    "last-layer": (2.7, 0.966, 1.4, 0.08),
}
LAYERS = {"stem.weight": 576, "block.0.weight": 9216, "block.1.weight": 18432, "head.weight": 1280}
BETTER = {
    **dict.fromkeys(("accuracy", "dice", "coverage"), "high"),
    **dict.fromkeys(("nll", "brier", "ece", "rmse", "crps"), "low"),
    **{f"ood/{name}/auroc": "high" for name in ("letters", "noise")},
    **{f"ood/{name}/fpr95": "low" for name in ("letters", "noise")},
}
FAILED = "NonFinite: the loss became nan at step 212; the term is nll, the layer block.1"


def results(kind: str, metrics: dict[str, float], classes: list[str], seeds: int = 3) -> dict[str, Any]:
    """``results.json`` with these metrics, each method and seed a little off."""
    rng = np.random.default_rng(1)
    methods: list[dict[str, Any]] = []
    for place, (name, (_, accuracy, factor, share)) in enumerate(METHODS.items()):
        runs = []
        for seed in range(seeds):
            noise = {key: 1 + 0.02 * rng.standard_normal() + 0.05 * (accuracy - 0.966) * place for key in metrics}
            measured = {
                key: value * noise[key] * (accuracy if BETTER.get(key) == "high" else 0.2 / (accuracy - 0.8))
                for key, value in metrics.items()
            }
            size = sum(LAYERS.values())
            cost = {
                "parameters": int(size * (5 if name == "ensemble" else 1) * (1 + share)),
                "random": int(share * size),
                "bytes": int(4 * size * (5 if name == "ensemble" else 1) * (1 + 2 * share)),
                "train_seconds": 6.1 * factor * (1 + 0.05 * rng.random()),
                "predict_seconds": 0.08 * factor,
                "flops_forward": 1.3e8,
                "flops_train": 3.9e11 * factor,
                "flops_formula": None,
                "peak_memory": 2.1e8,
            }
            runs.append({"seed": seed, "metrics": measured, "cost": cost})
        layers = [
            {"name": layer, "random": int(n * min(1, share * weight)), "size": n}
            for (layer, n), weight in zip(LAYERS.items(), (6, 0.7, 0.3, 4), strict=True)
        ]
        recipe = {"epochs": 30, "learning_rate": 0.001, "rate": share}
        layers = layers if share else []
        methods.append({"name": name, "recipe": recipe, "error": None, "runs": runs, "layers": layers})
    methods.append({"name": "laplace", "recipe": {"subset": "last"}, "error": FAILED, "runs": [], "layers": []})
    shifted = {"letters": 500, "noise": 500} if kind == "classes" else {}
    return {
        "format": 1,
        "command": f"leanbayes compare {kind} --methods {','.join(METHODS)},laplace --seeds 3",
        "date": "2025-03-14 10:21",
        "commit": "4f1c2ab",
        "machine": {"cpu": "2 cores", "torch": "2.13.0", "device": "cpu"},
        "task": {
            "name": {"classes": "digits", "pixels": "lesions", "regression": "diabetes"}[kind],
            "kind": kind,
            "classes": classes,
            "train": 1200,
            "validation": 200,
            "test": 397,
            "shifted": shifted,
        },
        "budget": {"epochs": 30, "batch_size": 64},
        "samples": 32,
        "methods": methods,
        "better": BETTER,
        "tests": {
            "anova": {"nll": {"F": 18.2, "p": 2.1e-5}},
            "paired": {"nll": {"deterministic vs ensemble": {"t": 7.1, "p": 0.019, "corrected": 0.038}}},
        },
    }


def confidences(rng: np.random.Generator, name: str, n: int, classes: int) -> Arrays:
    sharp, accuracy, _, _ = METHODS[name]
    correct = rng.random(n) < accuracy
    level = np.where(correct, rng.gamma(2.0 * sharp, 0.9, n), rng.gamma(1.2 * sharp, 0.45, n))
    confidence = np.clip(1 - (1 - 1 / classes) * np.exp(-level), 1 / classes, 1 - 1e-6)
    rest = (1 - confidence) / (classes - 1)
    entropy = -confidence * np.log(confidence) - (classes - 1) * rest * np.log(rest)
    return {
        f"{name}/confidence": confidence.astype(np.float32),
        f"{name}/correct": correct.astype(np.uint8),
        f"{name}/entropy": entropy.astype(np.float32),
    }


def classes_task(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    digits = load_digits()
    arrays: Arrays = {}
    for name, (sharp, _, _, share) in METHODS.items():
        arrays |= confidences(rng, name, 2000, 10)
        for other, shift in (("letters", 0.9), ("noise", 1.4)):
            arrays[f"{name}/shifted/{other}/entropy"] = np.clip(rng.normal(shift * 2.2 / sharp, 0.4, 500), 0, 2.3)
        if share:
            sigma = 0.02 + 0.05 * rng.random((64, 576)) * np.exp(-((np.arange(576) - 288) ** 2) / 3e4)
            sigma[rng.random(sigma.shape) > min(1, 4 * share)] = np.nan
            arrays[f"{name}/sigma"] = sigma.astype(np.float32)
        for key, high in (("certain", 0.001), ("uncertain", 1.5)):
            chosen = rng.choice(len(digits.images), 6, replace=False)
            predicted = digits.target[chosen].copy()
            if key == "uncertain":
                predicted[::2] = (predicted[::2] + 5) % 10
            arrays |= {
                f"{name}/{key}/image": (digits.images[chosen] / 16).astype(np.float32),
                f"{name}/{key}/label": digits.target[chosen],
                f"{name}/{key}/predicted": predicted,
                f"{name}/{key}/entropy": np.linspace(high, 0.8 * high, 6),
            }
    metrics = {"accuracy": 1.0, "nll": 0.1, "brier": 0.05, "ece": 0.012}
    metrics |= {
        f"ood/{name}/{metric}": value
        for name in ("letters", "noise")
        for metric, value in (("auroc", 0.94), ("fpr95", 0.2))
    }
    return save(folder, results("classes", metrics, [str(digit) for digit in range(10)]), arrays)


def pixels_task(folder: Path) -> Path:
    rng = np.random.default_rng(2)
    arrays: Arrays = {}
    y, x = np.mgrid[:96, :96]
    for name in METHODS:
        arrays |= confidences(rng, name, 3000, 2)
        pictures = []
        for k in range(4):
            centre = np.random.default_rng(k).uniform(35, 60, 2)
            distance = np.hypot(y - centre[0], x - centre[1]) + 4 * np.sin(np.arctan2(y - 48, x - 48) * (3 + k))
            guess = np.hypot(y - centre[0] - rng.normal(0, 4), x - centre[1] - rng.normal(0, 4)) - rng.normal(0, 2)
            image = np.clip(0.3 + 0.35 * (distance < 24) + 0.06 * rng.standard_normal((96, 96)), 0, 1)
            p = 1 / (1 + np.exp((guess - 24) / 2.0))
            entropy = -p * np.log(p + 1e-9) - (1 - p) * np.log(1 - p + 1e-9)
            pictures.append((image, distance < 24, guess < 24, entropy))
        image, truth, predicted, entropy = (np.stack(parts) for parts in zip(*pictures, strict=True))
        arrays |= {
            f"{name}/overlay/image": image.astype(np.float32),
            f"{name}/overlay/truth": truth.astype(np.int64),
            f"{name}/overlay/predicted": predicted.astype(np.int64),
            f"{name}/overlay/entropy": entropy.astype(np.float32),
        }
    metrics = {"dice": 0.9, "nll": 0.2, "ece": 0.03}
    record = results("pixels", metrics, ["background", "lesion"])
    for index, name in enumerate(METHODS):
        arrays |= shown_arrays(name, index)
    return save(folder, record | {"shown": [{"case": k, "name": n} for k, n in SHOWN.items()]}, arrays)


SHOWN = {0: "scan0.nii.gz", 3: "<b>scan3</b>", 4: "scan4.nii.gz", 7: "scan7.nii.gz", 9: "scan9.nii.gz"}


def shown_arrays(method: str, index: int) -> Arrays:
    """Five cases: the larger the number, the better the segmentation; number 3 is bad and surely predicted."""
    arrays: Arrays = {}
    y, x = np.mgrid[:40, :30]
    for number in SHOWN:
        truth = np.hypot(y - 20, x - 15) < 9
        predicted = np.hypot(y - 20 - (9 - number) - index / 4, x - 15) < 9
        total = 0.05 + 0.3 * (truth != predicted) if number != 3 else np.full(truth.shape, 0.01)
        dice = 2 * (truth & predicted).sum() / (truth.sum() + predicted.sum())
        grey = (80 + 100 * truth).astype(np.uint8)[..., None]
        facts = np.array([dice, total.mean(), 11, 24, 1.5], np.float32)
        parts = {"image": grey, "truth": truth, "predicted": predicted, "facts": facts}
        doubts = {"total": total.astype(np.float16), "epistemic": (total / 3).astype(np.float16)}
        raters = {"raters": np.stack([truth, np.roll(truth, 2, 0)]).astype(np.uint8)}
        arrays |= {f"{method}/shown/{number}/{key}": array for key, array in (parts | doubts | raters).items()}
    return arrays


def regression_task(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    arrays: Arrays = {}
    for name, (sharp, *_) in METHODS.items():
        truth = rng.uniform(50, 300, 400)
        deviation = rng.uniform(15, 45, 400)
        arrays |= {
            f"{name}/truth": truth,
            f"{name}/deviation": deviation * 2 / sharp,
            f"{name}/predicted": truth + deviation * rng.standard_normal(400),
        }
    return save(folder, results("regression", {"rmse": 40.0, "nll": 4.9, "crps": 22.0, "coverage": 0.95}, []), arrays)


def save(folder: Path, record: dict[str, Any], arrays: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(record))
    tensors = {key: torch.tensor(array) for key, array in arrays.items()}
    (folder / "arrays").mkdir(exist_ok=True)
    write_tensors(folder / "arrays" / "all.safetensors", tensors, {"kind": "arrays", "format": 1})
    return folder


TASKS = {"classes": classes_task, "pixels": pixels_task, "regression": regression_task}

if __name__ == "__main__":
    from leanbayes.lab.report import write_report

    for kind, make in TASKS.items():
        print(write_report(make(Path(sys.argv[1]) / kind)))
