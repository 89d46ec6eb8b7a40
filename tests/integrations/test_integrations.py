"""The adapters are imported when they are used, and say what to install if their tool is missing."""

import pkgutil
import subprocess
import sys

import pytest
import torch

import leanbayes as lb
from leanbayes import integrations
from leanbayes.errors import MissingPackage
from leanbayes.integrations._optional import optional
from tests.integrations.matrix import shows

ADAPTERS = [module.name for module in pkgutil.iter_modules(integrations.__path__) if not module.name.startswith("_")]

NO_TOOLS = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "torch", "numpy", "safetensors", "leanbayes",
                                          "typing_extensions", "sympy", "mpmath", "torchgen", "functorch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import leanbayes as lb

for name in lb.integrations._ADAPTERS:
    try:
        getattr(lb.integrations, name)
    except lb.errors.MissingPackage as error:
        assert "pip install 'leanbayes[" in str(error), error
        print(name)
"""


def test_without_the_tools_the_library_works_and_each_adapter_names_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", NO_TOOLS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ADAPTERS


def test_importing_the_library_imports_no_tool() -> None:
    code = "import sys, leanbayes as lb; dir(lb.integrations); print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tools = {"lightning", "transformers", "peft", "huggingface_hub", "monai", "sklearn", "torchmetrics", "pandas"}
    assert not tools & set(done.stdout.split())


def test_an_adapter_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="has no adapter 'keras'"):
        _ = integrations.keras
    assert set(ADAPTERS) <= set(dir(integrations))


def test_an_error_inside_a_tool_is_not_a_missing_tool() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'deeper'") as caught, optional("x", "y", "tool"):
        raise ModuleNotFoundError("No module named 'deeper'", name="deeper")
    assert not isinstance(caught.value, MissingPackage)
    with pytest.raises(MissingPackage, match=r"x needs the package tool; .*leanbayes\[y\]"), optional("x", "y", "tool"):
        raise ModuleNotFoundError("No module named 'tool.part'", name="tool.part")


@shows("PyTorch", "torch.export turns the mean, draws or one pass of moments into a program for batches of any size.")
@pytest.mark.parametrize("what", ["mean", "draws", "moments"])
def test_a_program_of_torch_export_predicts_as_the_network_does(what: str) -> None:
    """`tests/export` has the tests of what the graphs compute; this one shows the row of the matrix."""
    torch.manual_seed(0)
    bnn = lb.Bayesian(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))).eval()
    source = torch.Generator().manual_seed(1)
    graph, x = lb.export.program(bnn, torch.randn(4, 3), what, 4, generator=source).module(), torch.randn(7, 3)
    if what == "mean":
        expected = bnn.model(x).softmax(1)
    elif what == "moments":
        expected = lb.predict(bnn, x, by="moments", samples=4).mean
    else:
        expected = graph(x)["samples"].mean(0)
        assert graph(x)["samples"].std(0).min() > 0
    torch.testing.assert_close(graph(x)["mean"], expected, rtol=1e-5, atol=1e-6)
