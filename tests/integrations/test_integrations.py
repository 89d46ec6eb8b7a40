"""The adapters are imported when they are used, and say what to install if their tool is missing."""

import pkgutil
import subprocess
import sys

import pytest

from leanbayes import integrations
from leanbayes.errors import MissingPackage
from leanbayes.integrations._optional import optional

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
