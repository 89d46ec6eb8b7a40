"""The laboratory behind the command ``leanbayes``: data, models, recipes, comparisons, reports and tuning.

It needs packages that the library itself does not need: ``pip install 'leanbayes[lab]'`` installs them.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]

# The packages of the extra "lab" by the names under which Python imports them.
_PACKAGES = ("PIL", "accelerate", "jinja2", "matplotlib", "numba", "rich", "scipy", "sklearn", "tyro", "yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``leanbayes``, or say which extra must be installed first.

    Args:
        arguments: the words after ``leanbayes``; by default those of the running process.

    Returns:
        The exit code; see `leanbayes.lab.cli.main`.
    """
    try:
        from leanbayes.lab.cli import main as run

        return run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        sys.stderr.write(f"leanbayes: this needs the package {package}; run pip install 'leanbayes[lab]'\n")
        return 2
