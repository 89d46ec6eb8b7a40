"""Patients and subgroups: what each example belongs to, from a CSV file or from the name of its file."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from leanbayes.errors import InputError
from leanbayes.lab.data.tables import read_csv

__all__ = ["PatientOf", "Patients", "composed", "one_case_each", "patients_from", "subgroups_from", "without_suffix"]

PatientOf = Callable[[str], str]
"""Returns the patient of the example with this name. A name is the path of a file below the folder of its set."""

_SUFFIXES = (".nii.gz",)  # two suffixes that are one


class Patients:
    """The patient of each example by its name.

    Args:
        of: returns the patient of a name, or None if it is not known.
        where: what says so, for errors.
        advice: what a user can do about a name without a patient.
        word: what is looked up, for errors: a patient, or a subgroup.
    """

    def __init__(self, of: Callable[[str], str | None], where: str, advice: str, word: str = "patient") -> None:
        self.of, self.where, self.advice, self.word = of, where, advice, word

    def __call__(self, name: str) -> str:
        """Return the patient of an example; one without a patient is an error."""
        patient = self.of(name)
        if not patient:
            raise InputError(f"{self.where} gives no {self.word} for {name}; {self.advice}")
        return patient


def patients_from(groups: str) -> Patients:
    r"""Read which example belongs to which patient.

    Args:
        groups: a CSV file, or a pattern. The first column of the file names the examples, with or without their folder
            and suffix, and its second column (or the one called patient) names the patient of each. A pattern is a
            regular expression that is found in the name of a file; its group in parentheses is the patient, such as
            ``"(P\d+)_"``.

    >>> patients_from(r"^(\w+?)_")("anna_left.png")
    'anna'
    """
    return _labels_from(groups, "groups", "patient")


def subgroups_from(subgroups: str) -> Patients:
    """Read which example belongs to which subgroup, such as its hospital, as `patients_from` reads patients.

    >>> subgroups_from("^(a|b)_")("b_left.png")
    'b'
    """
    return _labels_from(subgroups, "subgroups", "subgroup")


def _labels_from(text: str, option: str, word: str) -> Patients:
    """Read labels of examples from a CSV file or by a pattern; ``option`` and ``word`` are for errors."""
    if text.lower().endswith(".csv"):
        return _from_table(Path(text), option, word)
    try:
        pattern = re.compile(composed(text))
    except re.error as error:
        raise InputError(f"{option}={text!r} is neither a .csv file nor a pattern that can be used: {error}") from error
    if pattern.groups > 1:
        raise InputError(f"{option}={text!r} has {pattern.groups} groups in parentheses; put one around the {word}")

    def of(name: str) -> str | None:
        match = pattern.search(composed(name))
        return None if match is None else match[pattern.groups]

    return Patients(of, f"{option}={text!r}", "give a pattern that occurs in every name, or a .csv file", word)


def one_case_each(patients: Sequence[str]) -> str | None:
    """Return a remark if no patient has two examples, because such groups change nothing; else None."""
    if max(Counter(patients).values(), default=0) > 1:
        return None
    return (
        f"each of the {len(patients)} patients has one case only, so groups change nothing; check them if some "
        "patients should have several"
    )


def composed(name: str) -> str:
    r"""Return a name in which an accent and its letter are one character, so that names compare as they look.

    Names that were copied from a Mac may have an accent as a character of its own, and other programs write one.

    >>> composed("a\u0308") == "\u00e4"
    True
    """
    return unicodedata.normalize("NFC", name)


def without_suffix(name: str) -> str:
    """Return the name of a file without its suffix, of which ``.nii.gz`` is one.

    >>> without_suffix("a/scan.nii.gz"), without_suffix("b.1.png")
    ('a/scan', 'b.1')
    """
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return PurePosixPath(name).with_suffix("").as_posix() if name else name


def _from_table(path: Path, option: str, word: str) -> Patients:
    if not path.is_file():
        raise InputError(f"there is no file {path} for {option}=; give a CSV file with the columns name and {word}")
    table = read_csv(path)
    if len(table.names) < 2:
        raise InputError(f"{path} has one column only; it needs the names of the examples and the {word} of each")
    column = word if word in table.names[1:] else table.names[1]
    patient_of: dict[str, str] = {}
    for name, patient in zip(table.texts(table.names[0]), table.texts(column), strict=True):
        if patient_of.setdefault(composed(name), patient) != patient:
            known = patient_of[composed(name)]
            raise InputError(f"{path} gives {name} two {word}s, {known} and {patient}; keep one of them")

    def of(name: str) -> str | None:
        name = composed(name)
        plain = without_suffix(name)
        spellings = (name, plain, PurePosixPath(name).name, PurePosixPath(plain).name)
        return next((patient_of[spelling] for spelling in spellings if spelling in patient_of), None)

    return Patients(of, str(path), f"add a row for it, whose cell in the column {table.names[0]!r} is its name", word)
