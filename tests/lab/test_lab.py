"""The command without the packages of the extra, and with them."""

import subprocess
import sys

import pytest

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
from leanbayes.lab import main
sys.exit(main({arguments}))
"""


def run(arguments: list[str], *packages: str) -> subprocess.CompletedProcess[str]:
    """Run the command where these packages cannot be imported."""
    code = BLOCK.format(packages=set(packages), arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("package", ["tyro", "rich", "yaml", "PIL"])
def test_a_missing_package_is_one_line_that_names_the_extra(package: str, tmp_path: object) -> None:
    done = run(["compare", "--methods", "deterministic", "--epochs", "1", "--out", str(tmp_path)], package)
    assert done.returncode == 2
    assert done.stderr == f"leanbayes: this needs the package {package}; run pip install 'leanbayes[lab]'\n"


def test_the_digits_need_scikit_learn(tmp_path: object) -> None:
    done = run(["compare", "--out", str(tmp_path)], "sklearn")
    assert done.returncode == 2
    message = "the data set of digits needs the package scikit-learn; install it with: pip install 'leanbayes[lab]'"
    assert done.stderr == f"leanbayes: {message}\n"


def test_another_missing_package_is_a_bug_and_not_hidden() -> None:
    done = run(["--help"], "shlex")
    assert done.returncode == 1
    assert "No module named 'shlex'" in done.stderr
