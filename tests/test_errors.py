"""Every error can be caught as `LeanBayesError` and as a built-in error, and says when it is raised."""

import pytest

from leanbayes import errors
from leanbayes.errors import InputError, LeanBayesError, MissingPackage, UnknownName

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", [cls for cls in CLASSES if issubclass(cls, LeanBayesError)])
def test_every_error_is_ours_and_has_a_built_in_parent(error):
    assert error is LeanBayesError or issubclass(error, (ValueError, ArithmeticError, NotImplementedError, OSError))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_when_it_appears(cls):
    assert cls is LeanBayesError or cls.__doc__.startswith(("Raised when", "Given once when"))


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        (
            "nromal",
            ["normal", "radial"],
            "unknown law 'nromal'; choose from ['normal', 'radial']; did you mean 'normal'?",
        ),
        ("x", {"b": 1, "a": 2}, "unknown law 'x'; choose from ['a', 'b']"),
        (19, (18, 34), "unknown law 19; choose from [18, 34]"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_suggests_one(name, known, message):
    error = UnknownName.of("law", name, known)
    assert str(error) == message
    assert isinstance(error, InputError)


def test_a_missing_package_names_its_extra():
    error = MissingPackage.of("this", "numba", "fast")
    assert str(error) == "this needs the package numba; install it with: pip install 'leanbayes[fast]'"
    assert isinstance(error, ValueError)
    assert isinstance(error, ImportError)
