"""Every reader of files, each with a whole file to damage and a call that reads it."""

import gzip
import io
import json
import random
import shutil
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.cli.config import read_config
from leanbayes.lab.cli.saved import read_model
from leanbayes.lab.data import read
from leanbayes.lab.data.arrays import read_idx
from leanbayes.lab.data.images import read_image
from leanbayes.lab.data.named import _unpack
from leanbayes.lab.data.new_cases import NewCases
from leanbayes.lab.data.patients import subgroups_from
from leanbayes.lab.data.preparation import Preparation
from leanbayes.lab.data.sets.cifar import _records
from leanbayes.lab.data.sets.lidc import lidc
from leanbayes.lab.data.sets.svhn import _digits
from leanbayes.lab.data.sets.uci import _numbers
from leanbayes.lab.models import model_named
from leanbayes.lab.report.page import write_report
from leanbayes.lab.report.read import read_comparison
from leanbayes.lab.shards import cut, read_part
from leanbayes.lab.tune.study import open_study
from tests.fuzz.mutations import damage_bytes, damage_json, damage_text, forge_png, forge_tensors, forge_zip
from tests.fuzz.nnunet_readers import nnunet
from tests.fuzz.reader import Reader
from tests.fuzz.saved_readers import corrupted_images, folders, hub_folders, predictors
from tests.fuzz.scan_readers import scans
from tests.lab.data.makers import class_tree, mask_tree
from tests.lab.report.fixtures import regression_task


def all_readers(folder: Path) -> dict[str, Reader]:
    """Write a whole file for every reader, and return the readers by name."""
    readers: dict[str, Reader] = {}
    ours = (_models, _checkpoints, _arrays, _pictures, _texts, _comparisons, _studies, _archives)
    for make in (*ours, predictors, folders, corrupted_images, hub_folders, scans, nnunet):
        home = folder / make.__name__.strip("_")
        home.mkdir(parents=True)
        readers |= make(home)
    return readers


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def _models(home: Path) -> dict[str, Reader]:
    partial = lb.Bayesian(_network(), subspace=lb.random_k(rate=0.3), prior=lb.priors.CentredPrior(0.5))
    sparse = lb.Bayesian(_network(), subspace=lb.sparse(density=0.4), propagate="moments", kl=lb.MonteCarlo(10))
    ensemble = lb.baselines.Ensemble(lb.Bayesian(_network()), _network())
    readers = {}
    for name, model in {"partial": partial, "sparse": sparse, "ensemble": ensemble, "plain": _network()}.items():
        file = home / f"{name}.safetensors"
        lb.save(model, file, about={"note": [1, {"deep": "text"}]})

        def load(file: Path = file) -> None:
            lb.about(file)
            lb.load(file, _network())

        readers[f"load {name}"] = Reader(file, load, damage_bytes, 0.5)
        readers[f"load {name}, forged"] = Reader(file, load, forge_tensors(home))
    saved = home / "saved.safetensors"
    plan = Preparation("classes", (0.0,) * 3, (1.0,) * 3, ("a", "b"), features=("u", "v", "w"))
    small = lb.Bayesian(model_named("mlp", **plan.shape), subspace=lb.layers("*.bias"))
    lb.save(small, saved, about={"model": "mlp", "shape": plan.shape, "preparation": plan.to_json()})
    readers["saved by train"] = Reader(saved, lambda: read_model(saved), damage_bytes, 0.3)
    readers["saved by train, forged"] = Reader(saved, lambda: read_model(saved), forge_tensors(home))
    return readers


def _checkpoints(home: Path) -> dict[str, Reader]:
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    batches = [(x, torch.tensor([0, 1, 0, 1]))]
    whole = home / "whole"

    def fit(folder: Path, epochs: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lb.fit(
                lb.Bayesian(_network()),
                batches,
                likelihood=lb.Categorical(),
                epochs=epochs,
                validate=batches,
                checkpoint=lb.Checkpointing(folder, keep=1),
            )

    fit(whole, 1)
    readers = {}
    for kept in sorted(path for path in whole.iterdir() if path.is_file() and not path.name.startswith(".")):
        for kind, damage in {"": damage_bytes, ", forged": forge_tensors(home)}.items():
            copy = home / f"copy {kept.stem}{kind}"

            def resume(copy: Path = copy, name: str = kept.name) -> None:
                damaged = (copy / name).read_bytes()
                shutil.rmtree(copy)
                shutil.copytree(whole, copy)
                (copy / name).write_bytes(damaged)
                fit(copy, 1)

            shutil.copytree(whole, copy)
            if kept.suffix == ".safetensors" or kind == "":
                readers[f"checkpoint {kept.suffix or kept.name}{kind} {len(readers)}"] = Reader(
                    copy / kept.name, resume, damage
                )
    return readers


def _arrays(home: Path) -> dict[str, Reader]:
    x = np.random.default_rng(0).integers(0, 256, (30, 6, 6)).astype(np.uint8)
    npz, packed, idx = home / "a.npz", home / "b.npz", home / "images.gz"
    np.savez(npz, x=x, y=np.arange(30) % 3)
    np.savez_compressed(packed, x_train=x, y_train=np.arange(30) % 3, x_test=x, y_test=np.arange(30) % 3)
    idx.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 30, 0, 0, 0, 6, 0, 0, 0, 6]) + x.tobytes()))
    plain = home / "labels"
    plain.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 30]) + bytes(30))
    cifar, matlab = home / "data.bin", home / "digits.mat"
    (np.arange(3 * 3073) % 10).astype(np.uint8).tofile(cifar)
    from scipy.io import savemat

    savemat(matlab, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1), np.uint8)})
    packed_matlab = home / "packed.mat"
    savemat(
        packed_matlab, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1), np.uint8)}, do_compression=True
    )

    lidc_file = home / "LIDC" / "lidc_128x128_4raters.npz"
    lidc_file.parent.mkdir()
    nodules = np.random.default_rng(0).integers(0, 2, (16, 4, 8, 8)).astype(np.uint8)
    np.savez(lidc_file, images=x[:16], masks=nodules[..., :6, :6].copy(), patient=np.arange(16) % 8)
    new = home / "new.npz"
    np.savez(new, x=x[:3])
    plan = Preparation("classes", (0.0,), (1.0,), ("a", "b"), size=(6, 6))

    def new_cases() -> None:
        cases = NewCases(plan, new)
        for index in range(len(cases)):
            cases[index].image.sum()

    archive = home / "samples.tar"
    with tarfile.open(archive, "w") as tar:
        for number in range(3):
            buffer = io.BytesIO()
            np.save(buffer, x[number][None])
            member = tarfile.TarInfo(f"{number}.npy")
            member.size = len(buffer.getvalue())
            buffer.seek(0)
            tar.addfile(member, buffer)

    def samples() -> None:
        for part in cut(archive, plan, 2):
            cases = read_part(archive, part, plan)
            for index in range(len(cases)):
                cases[index].image.sum()

    def inner_idx(data: bytes, source: random.Random) -> bytes:
        return gzip.compress(damage_bytes(gzip.decompress(data), source))

    return {
        "npz": Reader(npz, lambda: read(npz), damage_bytes),
        "npz, forged": Reader(npz, lambda: read(npz), forge_zip),
        "npz, packed": Reader(packed, lambda: read(packed), damage_bytes),
        "lidc": Reader(lidc_file, lambda: lidc(home), forge_zip),
        "new arrays": Reader(new, new_cases, forge_zip),
        "tar": Reader(archive, samples, damage_bytes),
        "idx": Reader(plain, lambda: read_idx(plain.with_suffix(".gz")), damage_bytes),
        "idx.gz": Reader(idx, lambda: read_idx(idx), damage_bytes),
        "idx.gz, inside": Reader(idx, lambda: read_idx(idx), inner_idx),
        "cifar": Reader(cifar, lambda: _records(cifar), damage_bytes, 0.3),
        "mat": Reader(matlab, lambda: _digits(matlab), damage_bytes),
        "mat, packed": Reader(packed_matlab, lambda: _digits(packed_matlab), damage_bytes),
    }


def _pictures(home: Path) -> dict[str, Reader]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3)).astype(np.uint8)
    readers = {}
    for ending in ("png", "jpg", "bmp", "gif", "tiff", "webp"):
        file = home / f"picture.{ending}"
        Image.fromarray(pixels).save(file)
        readers[f"image {ending}"] = Reader(file, lambda file=file: read_image(file, 3, (12, 12)), damage_bytes, 0.6)
    png = home / "picture.png"
    readers["image png, forged"] = Reader(png, lambda: read_image(png, 3, (12, 12)), forge_png)
    masks = mask_tree(home / "masks", count=8)
    first = masks / "masks" / "i0.png"

    def read_masks() -> None:
        source = read(masks)
        for part in (source.train, source.validation, source.test):
            for row in range(len(part.targets)):
                part.targets[row]

    readers["mask"] = Reader(first, read_masks, damage_bytes)
    readers["mask, forged"] = Reader(first, read_masks, forge_png)
    tree = class_tree(home / "classes", (4, 4))
    one = tree / "cat" / "0.png"
    readers["class folder"] = Reader(one, lambda: read(tree), damage_bytes, 0.5)
    return readers


def _texts(home: Path) -> dict[str, Reader]:
    table, classes, numbers, config = home / "a.csv", home / "b.csv", home / "data.txt", home / "c.yaml"
    rows = [f"{i},{i * 0.5},{i % 3}" for i in range(30)]
    table.write_text("\n".join(["a,b,c", *rows]) + "\n")
    classes.write_text("\n".join(["a,b,kind", *(f"{i},{-i},{'xyz'[i % 3]}" for i in range(30))]) + "\n")
    numbers.write_text("1.0 2.0 3.0\n" * 10)
    config.write_text("data: digits\nmethods:\n  - vi\n  - {partial: {rate: 0.02}}\nseeds: 3\nepochs: 5\n")
    known = ("data", "methods", "seeds", "epochs")
    hospitals = home / "hospitals.csv"
    hospitals.write_text("".join(f"{name}\n" for name in ["name,subgroup", *(f"i{i}.png,h{i % 2}" for i in range(9))]))
    new = home / "new.csv"
    new.write_text("\n".join(["a,b", *(f"{i},{i * 0.5}" for i in range(5))]) + "\n")
    plan = Preparation("classes", (0.0,) * 2, (1.0,) * 2, ("u", "v"), features=("a", "b"))
    return {
        "csv": Reader(table, lambda: read(table, target="b"), damage_text),
        "csv of classes": Reader(classes, lambda: read(classes, target="kind"), damage_text),
        "subgroups": Reader(hospitals, lambda: subgroups_from(str(hospitals))("i3.png"), damage_text, 0.3),
        "new rows": Reader(new, lambda: NewCases(plan, new)[0], damage_text, 0.5),
        "uci": Reader(numbers, lambda: _numbers(numbers, float), damage_text, 0.3),
        "yaml": Reader(config, lambda: read_config(config, known), damage_text),
    }


def _comparisons(home: Path) -> dict[str, Reader]:
    folder = regression_task(home / "regression")
    results = folder / "results.json"
    arrays = sorted(folder.rglob("*.safetensors"))[0]
    copy = home / "copy"
    shutil.copytree(folder, copy)
    return {
        "results.json": Reader(results, lambda: read_comparison(folder), damage_json),
        "arrays": Reader(arrays, lambda: read_comparison(folder), damage_bytes, 0.5),
        "arrays, forged": Reader(arrays, lambda: read_comparison(folder), forge_tensors(home), 0.5),
        "report": Reader(copy / "results.json", lambda: write_report(copy), damage_json, 0.3),
    }


def _studies(home: Path) -> dict[str, Reader]:
    file = home / "study.db"
    about = {"data": "digits"}

    def use(file: Path = file) -> Any:
        with open_study(file, "study", about, "minimize") as study, study.alone():
            return study.rows()

    from optuna.distributions import FloatDistribution

    with open_study(file, "study", about, "minimize") as study:
        slot, trial = study.claim(2, {"rate": FloatDistribution(0.0, 1.0)}, 0)
        study.done(trial, 0.5, metrics={"nll": 0.5}, seconds=1.0, slot=slot)
    return {"study": Reader(file, use, damage_bytes)}


def _archives(home: Path) -> dict[str, Reader]:
    archive, top = home / "a.tar.gz", home / "unpacked"
    (home / "one.txt").write_text(json.dumps(list(range(200))))
    for kind, file in {"gz": archive, "": home / "b.tar"}.items():
        with tarfile.open(file, f"w:{kind}") as tar:
            tar.add(home / "one.txt", "one.txt")
            tar.add(home / "one.txt", "sub/two.txt")

    def unpack(file: Path) -> None:
        from leanbayes.errors import FileError

        shutil.rmtree(top, ignore_errors=True)
        top.mkdir()
        try:
            _unpack(file, top, ("one.txt", "sub/two.txt"))
        except (OSError, ValueError, KeyError, EOFError, tarfile.TarError) as error:  # as `_fetch` does
            raise FileError(str(error)) from error

    return {
        "tar.gz": Reader(archive, lambda: unpack(archive), damage_bytes),
        "tar": Reader(home / "b.tar", lambda: unpack(home / "b.tar"), damage_bytes),
    }
