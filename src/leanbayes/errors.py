"""Every error that LeanBayes raises on purpose: what happened, what it got, what to do."""

__all__ = [
    "FileError",
    "ForeignFile",
    "InputError",
    "LeanBayesError",
    "MissingRule",
    "NewerFile",
    "NoClosedForm",
    "NonFinite",
    "SelectionError",
    "ShapeMismatch",
    "TruncatedFile",
    "UnknownName",
    "WrongModel",
]


class LeanBayesError(Exception):
    """The root: catch this to catch them all."""


class InputError(LeanBayesError, ValueError):
    """An argument that cannot be used."""


class UnknownName(InputError):
    """A name that is in no list of ours."""

    @classmethod
    def of(cls, what: str, got: object, known: object) -> "UnknownName":
        """Say which ``what`` was asked for and which there are."""
        return cls(f"unknown {what} {got!r}; choose from {sorted(known)}")  # type: ignore[call-overload]


class SelectionError(InputError):
    """A subspace that cannot be chosen: no match, an impossible rate, scores that do not fit."""


class ShapeMismatch(InputError):
    """Outputs and targets that do not belong together."""


class NonFinite(LeanBayesError, ArithmeticError):
    """NaN or infinity where a number was needed."""


class MissingRule(LeanBayesError, NotImplementedError):
    """An operation met a random tensor, and nothing says how mean and variance pass through it."""


class NoClosedForm(LeanBayesError, NotImplementedError):
    """No exact KL divergence is known for this pair of distributions."""


class FileError(LeanBayesError, OSError):
    """A file that cannot be read or written."""


class ForeignFile(FileError):
    """A file that LeanBayes did not write."""


class TruncatedFile(FileError):
    """A file that is cut short or damaged."""


class NewerFile(FileError):
    """A file of a later format than this version knows."""


class WrongModel(FileError):
    """A file that holds another architecture than the model given."""
