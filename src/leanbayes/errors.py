"""Every error that LeanBayes raises on purpose, and the warnings that it gives.

Each message says what happened, what the code got and what to do. Every error is a `LeanBayesError` and, at the same
time, the built-in error that a Python programmer expects: an `InputError` is a `ValueError`, a `FileError` is an
`OSError`.

>>> try:
...     raise UnknownName.of("kernel", "nubma", ["csr", "dense", "numba"])
... except LeanBayesError as error:
...     print(error)
unknown kernel 'nubma'; choose from ['csr', 'dense', 'numba']; did you mean 'numba'?
"""

from difflib import get_close_matches
from typing import Any, Self

__all__ = [
    "DamagedCheckpoint",
    "FileError",
    "ForeignFile",
    "InputError",
    "LeanBayesError",
    "MissingPackage",
    "MissingRule",
    "NewerFile",
    "NoClosedForm",
    "NonFinite",
    "NotExportable",
    "OtherTraining",
    "PerformanceWarning",
    "ScalesDidNotMove",
    "SelectionError",
    "ShapeMismatch",
    "TruncatedFile",
    "UncheckedCheckpoint",
    "UnknownName",
    "WrongModel",
]


class LeanBayesError(Exception):
    """The base class of all errors here: catch it to catch every one of them."""


class InputError(LeanBayesError, ValueError):
    """Raised when an argument cannot be used; the message says which values can."""


class UnknownName(InputError):
    """Raised when a name is not one of the names that exist; the message lists them."""

    @classmethod
    def of(cls, kind: str, name: object, known: Any) -> Self:
        """Build the error for a name that does not exist.

        Args:
            kind: what the name is one of, such as "recipe".
            name: the name that was asked for.
            known: the names that exist. The message suggests the most similar one.
        """
        names = sorted(known)
        similar = get_close_matches(str(name), map(str, names), n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        return cls(f"unknown {kind} {name!r}; choose from {names}{hint}")


class MissingPackage(InputError, ImportError):
    """Raised when what was asked for needs an optional package; the message names the extra to install."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> Self:
        """Build the error for an optional package that is not installed.

        Args:
            what: what needs the package, such as "the kernel 'numba'".
            package: the name of the package.
            extra: the extra of LeanBayes that installs the package, such as "fast".

        >>> print(MissingPackage.of("mixed precision", "accelerate", "distributed"))
        mixed precision needs the package accelerate; install it with: pip install 'leanbayes[distributed]'
        """
        return cls(f"{what} needs the package {package}; install it with: pip install 'leanbayes[{extra}]'")


class SelectionError(InputError):
    """Raised when a subspace cannot be chosen: no weight matches, the rate is impossible or the scores do not fit."""


class ShapeMismatch(InputError):
    """Raised when tensors do not belong together, such as outputs and targets of different sizes."""


class NonFinite(LeanBayesError, ArithmeticError):
    """Raised when a number is NaN or infinite where a finite one is needed.

    In training, lower the learning rate or the initial scales, and look for NaN in the data.
    """


class MissingRule(LeanBayesError, NotImplementedError):
    """Raised when an operation meets a random tensor and no rule says how mean and variance pass through it.

    Predict by draws instead (``predict_by="sample"``), or add the rule as CONTRIBUTING.md describes.
    """


class NoClosedForm(LeanBayesError, NotImplementedError):
    """Raised when no exact KL divergence is known for a pair of distributions; use `lb.MonteCarlo` instead."""


class NotExportable(LeanBayesError, NotImplementedError):
    """Raised when a model cannot become a graph of ONNX or torch.export; the message names the operation."""


class FileError(LeanBayesError, OSError):
    """Raised when a file cannot be read or written."""


class ForeignFile(FileError):
    """Raised when LeanBayes did not write the file; check the path."""


class TruncatedFile(FileError):
    """Raised when a file is cut short or damaged; copy it again or save the model anew."""


class NewerFile(FileError):
    """Raised when a later version of LeanBayes wrote the file; upgrade LeanBayes to read it."""


class WrongModel(FileError):
    """Raised when a file holds another architecture than the model that it is loaded into; build the saved one."""


class OtherTraining(FileError, InputError):
    """Raised when a folder holds the checkpoints of a training with other settings; the message names those."""


class DamagedCheckpoint(UserWarning):
    """Given when the newest checkpoint cannot be read, and training goes on from the one before it."""


class UncheckedCheckpoint(UserWarning):
    """Given when an older version wrote a checkpoint, which does not say with which settings."""


class ScalesDidNotMove(UserWarning):
    """Given when the scales of the random weights ended where they began, so that they say nothing about the data.

    The spread of the predictions is then that of the initial scales. Choose the optimizer by its name ("adam", "sgd" or
    "ivon"), so that `leanbayes.fit` trains the scales by Adam or by natural gradients; raise ``scale_lr``; or train for
    longer.
    """


class PerformanceWarning(UserWarning):
    """Given once when a result is right but could come faster, such as when numba is not installed."""
