"""A catalogue finds members by package, entry point and registration, in any thread, and refuses two of one name."""

import sys
import threading
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from leanbayes import _catalogue
from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError, UnknownName


class Animal:
    """What the catalogues of these tests hold: subclasses of this class."""


def name_of(value: object) -> str | None:
    if isinstance(value, type) and issubclass(value, Animal) and value is not Animal:
        return value.__name__.lower()
    return None


def animals(**options: str) -> Catalogue[type[Animal]]:
    return Catalogue("animal", name_of, **options)


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package with two animals, one of them in a package below."""
    package = tmp_path / "zoo_of_tests"
    (package / "birds").mkdir(parents=True)
    head = "from tests.test__catalogue import Animal\n"
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("raise SystemExit('the catalogue ran the program')\n")
    (package / "cat.py").write_text(f"{head}class Cat(Animal):\n    pass\n")
    (package / "again.py").write_text("from zoo_of_tests.cat import Cat\nNUMBER = 3\n")
    (package / "birds" / "__init__.py").write_text("from zoo_of_tests.birds.owl import Owl\n")
    (package / "birds" / "owl.py").write_text(f"{head}class Owl(Animal):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("zoo_of_tests")]:
        del sys.modules[name]


def plug_in(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [EntryPoint(name, value, "zoo") for name, value in values.items()]
    monkeypatch.setattr(_catalogue, "entry_points", lambda group: [p for p in points if p.group == group])


class Dog(Animal):
    """Found by entry points."""


def test_members_lie_in_modules_of_the_package_and_in_packages_below_it(zoo: Path) -> None:
    assert list(animals(package="zoo_of_tests")) == ["cat", "owl"]


def test_nothing_is_imported_before_the_first_question(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")
    assert "zoo_of_tests" not in sys.modules
    assert len(catalogue) == 2
    assert "zoo_of_tests.cat" in sys.modules


def test_a_catalogue_is_a_mapping(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")
    assert catalogue["cat"].__name__ == "Cat"
    assert "dog" not in catalogue
    assert catalogue.get("dog") is None
    assert repr(catalogue) == "Catalogue(animal: cat, owl)"
    with pytest.raises(KeyError):
        catalogue["dog"]


def test_register_is_a_decorator_and_keeps_the_order(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")

    @catalogue.register
    class Bear(Animal):
        pass

    assert catalogue.named("bear") is Bear
    assert list(catalogue) == ["bear", "cat", "owl"]
    assert catalogue.register(Bear) is Bear  # the same member twice is no clash


def test_register_refuses_what_is_not_of_the_kind() -> None:
    with pytest.raises(InputError, match="expected an object of kind animal, got 3"):
        animals().register(3)  # type: ignore[arg-type]


def test_a_tuple_holds_several(zoo: Path) -> None:
    lines = (
        "from tests.test__catalogue import Animal\n",
        'YOUNG = tuple(type(n, (Animal,), {}) for n in ("Cub", "Kid"))\n',
    )
    (zoo / "young.py").write_text("".join(lines) + "for young in YOUNG:\n    young.__module__ = __name__\n")
    assert list(animals(package="zoo_of_tests")) == ["cat", "cub", "kid", "owl"]


def test_replacing_lasts_as_long_as_its_block(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")
    other = type("Cat", (Animal,), {})
    with catalogue.replacing(other), catalogue.replacing(Dog):
        assert catalogue["cat"] is other
        assert list(catalogue) == ["cat", "dog", "owl"]
    assert catalogue["cat"] is not other
    assert list(catalogue) == ["cat", "owl"]
    with pytest.raises(InputError, match="expected an object of kind animal"), catalogue.replacing(3):  # type: ignore
        pass


def test_two_of_one_name_are_refused(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")
    assert len(catalogue) == 2
    with pytest.raises(
        InputError, match=r"two of kind animal are called 'cat', one in zoo_of_tests.cat and one in the"
    ):
        catalogue.register(type("Cat", (Animal,), {}))
    assert list(catalogue) == ["cat", "owl"]
    early = animals(package="zoo_of_tests")
    early.register(type("Cat", (Animal,), {}))
    with pytest.raises(InputError, match=r"one in the running program and one in zoo_of_tests\.cat"):
        len(early)


def test_two_of_one_name_in_a_package_are_refused_at_every_question(zoo: Path) -> None:
    (zoo / "double.py").write_text("from tests.test__catalogue import Animal\nclass Cat(Animal):\n    pass\n")
    catalogue = animals(package="zoo_of_tests")
    for _ in range(2):
        with pytest.raises(InputError, match=r"one in zoo_of_tests\.cat and one in zoo_of_tests\.double"):
            list(catalogue)


def test_an_unknown_name_brings_a_suggestion(zoo: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown animal 'cta'; choose from \['cat', 'owl'\]; did you mean 'cat'\?"):
        animals(package="zoo_of_tests").named("cta")


def test_entry_points_add_members(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, rex="tests.test__catalogue:Dog")
    catalogue = animals(group="zoo")
    assert catalogue["dog"] is Dog
    with pytest.raises(InputError, match="one in the entry point 'rex' of an unknown package and one in the running"):
        catalogue.register(type("Dog", (Animal,), {}))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tests.no_such_module:Dog", "No module named"),
        ("tests.test__catalogue:Nothing", "Nothing"),
        ("tests.test__catalogue:animals", "the group 'zoo' is for every animal, got"),
    ],
)
def test_a_broken_plug_in_warns_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    plug_in(monkeypatch, broken=value, rex="tests.test__catalogue:Dog")
    catalogue = animals(group="zoo")
    with pytest.warns(RuntimeWarning, match=f"the entry point 'broken' of .* is left out: .*{reason}"):
        assert list(catalogue) == ["dog"]
    with warnings.catch_warnings(action="error"):
        assert list(catalogue) == ["dog"]


def test_a_module_may_ask_the_catalogue_while_it_is_imported(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = animals(package="zoo_of_tests")
    monkeypatch.setattr(sys.modules[__name__], "ASKED", catalogue, raising=False)
    (zoo / "asks.py").write_text("from tests import test__catalogue\nKNOWN = list(test__catalogue.ASKED)\n")
    assert list(catalogue) == ["cat", "owl"]


def test_threads_see_all_members_or_wait(zoo: Path) -> None:
    (zoo / "slow.py").write_text("import time\ntime.sleep(0.2)\n")
    catalogue = animals(package="zoo_of_tests")
    answers: list[list[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(list(catalogue))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [["cat", "owl"]] * 4


def test_a_member_may_be_added_during_an_iteration(zoo: Path) -> None:
    catalogue = animals(package="zoo_of_tests")
    for name in catalogue:
        catalogue.register(type(f"Young{name}", (Animal,), {}))
    assert list(catalogue) == ["cat", "owl", "youngcat", "youngowl"]
