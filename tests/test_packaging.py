"""The sdist holds all files of the repository, and the wheel holds the library and works by itself.

The packages are built from a copy of the files that git tracks, because setuptools writes beside its sources.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

import leanbayes
from tests.integrations.matrix import shows
from tests.test_minimal_environment import link, required

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = """
import sys
from setuptools import build_meta

target = sys.argv[1]  # setuptools changes sys.argv
build_meta.build_sdist(target)
build_meta.build_wheel(target)
"""


def tracked() -> list[str]:
    """The files of the repository that exist here."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no clone, so there is no list of files to compare with")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("packages")
    for name in tracked():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "tree" / name)
    (folder / "dist").mkdir()
    command = [sys.executable, "-c", BUILD, str(folder / "dist")]
    done = subprocess.run(command, cwd=folder / "tree", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Deprecat" not in done.stderr, done.stderr
    return folder / "dist"


def wheel(built: Path) -> zipfile.ZipFile:
    """The one wheel of the folder."""
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(built: Path) -> Message:
    """What the wheel says about itself."""
    with wheel(built) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@shows("setuptools", "The sdist holds every file of the repository.")
def test_the_sdist_is_complete(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert sorted(set(tracked()) - inside) == []


def test_a_wheel_from_the_sdist_is_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    (tmp_path / "dist").mkdir()
    code = "import sys\nfrom setuptools import build_meta\nbuild_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "dist")], cwd=tree, capture_output=True, text=True, check=True
    )
    with wheel(built) as first, wheel(tmp_path / "dist") as second:
        sums = [{item.filename: item.CRC for item in archive.infolist()} for archive in (first, second)]
    assert sums[0] == sums[1]


def test_the_wheel_holds_the_library_and_nothing_else(built: Path) -> None:
    with wheel(built) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}


@shows("setuptools", "The wheel needs torch, numpy and safetensors alone, and works by itself.")
def test_the_wheel_asks_for_three_packages_and_says_what_it_is(built: Path) -> None:
    about = metadata(built)
    asked = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.split(r"[^\w-]", text)[0] for text in asked} == {"torch", "numpy", "safetensors"}
    assert set(about.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert about["Version"] == leanbayes.__version__
    assert about["License-Expression"] == "Apache-2.0"


@shows("setuptools", "The wheel needs torch, numpy and safetensors alone, and works by itself.")
def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    link(required(["torch", "numpy", "safetensors"]), tmp_path)
    with wheel(built) as archive:
        archive.extractall(tmp_path)
    code = (
        "import torch, leanbayes as lb\n"
        "bnn = lb.Bayesian(torch.nn.Linear(3, 2), subspace=lb.everything())\n"
        "print(lb.__file__, tuple(lb.predict(bnn, torch.zeros(4, 3)).mean.shape))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-W", "ignore", "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1) == [str(tmp_path / "leanbayes" / "__init__.py"), "(4, 2)\n"]


def test_importing_the_library_imports_no_other_package_than_it_needs() -> None:
    """So `import leanbayes` stays quick; sympy, which torch imports with the first distribution, takes .3 s alone."""
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import leanbayes\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    added = {name for name in done.stdout.split() if "cython" not in name}  # numpy's random numbers are in Cython
    assert "leanbayes" in added
    assert added <= {"leanbayes", "numpy", "safetensors"}


def test_only_versions_of_python_that_are_tested_are_declared() -> None:
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    used = set(re.findall(r'python-version: "([\d.]+)"', (ROOT / ".github/workflows/release.yml").read_text()))
    assert set(declared) == used
    assert PROJECT["requires-python"] == f">={min(declared)}"


def recipe() -> dict[str, Any]:
    """The conda recipe, rendered as conda-build renders it."""
    jinja2 = pytest.importorskip("jinja2", reason="a recipe is a template")
    yaml = pytest.importorskip("yaml", reason="a recipe is YAML")
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string((ROOT / "conda/meta.yaml").read_text())
    rendered: dict[str, Any] = yaml.safe_load(template.render(PYTHON="python"))
    return rendered


def test_the_conda_recipe_agrees_with_the_project() -> None:
    rendered = recipe()
    assert rendered["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    python = f"python {PROJECT['requires-python']}"
    wanted = {re.sub(r"^torch\b", "pytorch", text) for text in PROJECT["dependencies"]}
    assert {text.replace(" ", "") for text in rendered["requirements"]["run"]} == wanted | {python.replace(" ", "")}
    built_by = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {text.replace(" ", "") for text in rendered["requirements"]["host"]} == {
        python.replace(" ", ""), "pip", *built_by,
    }  # fmt: skip
    assert rendered["build"]["entry_points"] == [f"{name} = {value}" for name, value in PROJECT["scripts"].items()]
    assert rendered["about"]["summary"] == PROJECT["description"]
    assert rendered["about"]["license"] == PROJECT["license"]
    assert (ROOT / "conda" / rendered["source"]["path"] / rendered["about"]["license_file"]).is_file()


def workflow() -> dict[str, Any]:
    """The release workflow."""
    yaml = pytest.importorskip("yaml", reason="the workflow is YAML")
    parsed: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    return parsed


def test_the_release_is_in_order() -> None:
    """Jobs wait for jobs that exist, files go up before they come down, and bash can read each step."""
    jobs = workflow()["jobs"]
    for job in jobs.values():
        assert set(job.get("needs", [])) <= set(jobs)
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        for step in job["steps"]:
            subprocess.run(["bash", "-n"], input=step.get("run", ""), text=True, check=True)
    assert {"build", "test"} == set(jobs["publish"]["needs"])
    actions = {name: [str(step.get("uses")).partition("@")[0] for step in job["steps"]] for name, job in jobs.items()}
    assert "actions/upload-artifact" in actions["build"]
    assert "actions/download-artifact" in actions["publish"]
    assert not any("secrets." in str(job) for job in jobs.values()), "PyPI trusts the workflow, without a password"


def test_the_release_writes_addresses_that_can_be_read(tmp_path: Path) -> None:
    (step,) = [step for step in workflow()["jobs"]["build"]["steps"] if "addresses" in step.get("name", "")]
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    environment = {**os.environ, "GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name"}
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Repository"] == "https://host/owner/name"
    assert project["urls"]["Issues"] == "https://host/owner/name/issues"


def test_the_image_copies_only_files_that_exist_and_are_sent_to_docker() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert names == sent
    assert all((ROOT / name).exists() for name in names)
