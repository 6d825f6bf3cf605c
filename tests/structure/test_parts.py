"""Parts are found by name and told apart by digest, and every fault is one sentence that names them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.structure.parts import (
    PartIdentity,
    entry_points,
    load_part,
    own_files,
    part_identity,
    require_same_part,
    search_folder,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A user's folder with a module and a package of parts; nothing of it stays imported, all else does."""
    path = list(sys.path)
    (tmp_path / "own_part.py").write_text("def make(shape, classes):\n    return shape, classes\n")
    package = tmp_path / "own_package"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("class Nets:\n    small = 3\n")
    (package / "deep" / "more.py").write_text("x = 1\n")
    (tmp_path / "broken_part.py").write_text("raise RuntimeError('half written')\n")
    (tmp_path / "needy_part.py").write_text("import no_such_library_here\n")
    search_folder(tmp_path)
    yield tmp_path
    search_folder(None)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_part_of_the_user_s_folder_is_found_when_it_is_named(folder: Path) -> None:
    search_folder(None)
    with pytest.raises(InputError, match="no module own_part among what is installed, install it here first"):
        load_part("own_part:make", "teacher")
    search_folder(folder)
    assert load_part("own_part:make", "teacher")((28, 28, 1), 10) == ((28, 28, 1), 10)
    assert load_part("own_package.models:Nets.small", "student") == 3


def test_the_folder_is_searched_last(folder: Path) -> None:
    (folder / "colorsys.py").write_text("raise RuntimeError('never imported')\n")
    (folder / "json.py").write_text("raise RuntimeError('never imported')\n")
    assert load_part("colorsys:rgb_to_hsv", "teacher")(0, 0, 0) == (0.0, 0.0, 0)
    assert load_part("own_part:make", "teacher")
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_part:maek", r"'own_part:maek': own_part has no maek; did you mean make\?"),
        ("own_prat:make", "no module own_prat among what is installed, nor in "),
        ("own_package.nothing:make", "no module own_package.nothing"),
        (
            "broken_part:make",
            r"broken_part fails when it is imported \(RuntimeError: half written, at .*_part\.py, line 1\)",
        ),
        ("needy_part:make", "needy_part needs no_such_library_here, which is not installed"),
        ("pate_fed.learning:TEACHERS", "what is built in has a name of its own"),
        ("server.app:Coordinator", "what is built in has a name of its own"),
        ("own_part", "module:attribute is meant"),
        ("own part:make", "module:attribute is meant"),
        ("../own_part:make", "module:attribute is meant"),
        ("own_part:" + "a" * 200, "module:attribute is meant"),
    ],
)
def test_a_wrong_name_is_one_sentence(folder: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        load_part(name, "teacher")
    assert str(refused.value).startswith(f"teacher {name!r}: ")


def test_a_part_s_identity_follows_its_source(folder: Path) -> None:
    one = part_identity("own_part:make", "teacher")
    text = (folder / "own_part.py").read_bytes()
    assert one.name == "own_part:make" and one.version is None
    assert one.digest == hashlib.sha256(f"own_part.py\n{len(text)}\n".encode() + text).hexdigest()
    package = part_identity("own_package.models:Nets", "teacher")
    (folder / "own_package" / "deep" / "more.py").write_text("x = 2\n")
    changed = part_identity("own_package.models:Nets", "teacher")
    assert changed.digest != package.digest
    require_same_part(package, PartIdentity(name=package.name, version=None, digest=package.digest))
    with pytest.raises(IntegrityError, match=f"{changed.digest}.*{package.digest}"):
        require_same_part(changed, package)


def test_an_installed_part_has_a_version() -> None:
    found = part_identity("sklearn.linear_model:LogisticRegression", "teacher")
    import sklearn

    assert found.version == sklearn.__version__ and len(found.digest) == 64


def test_what_is_compiled_has_no_source_to_compare() -> None:
    with pytest.raises(InputError, match="math has no Python source"):
        part_identity("math:sqrt", "teacher")


def test_entry_points_have_short_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = folder / "own-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[pate_fed.teachers]\nown-net = own_part:make\n")
    monkeypatch.syspath_prepend(str(folder))
    assert load_part("own-net", "teacher")(1, 2) == (1, 2)
    assert part_identity("own-net", "teacher").name == "own_part:make"
    with pytest.raises(InputError, match=r"pate_fed\.teachers; did you mean own-net\?"):
        load_part("own-nets", "teacher")


def test_entry_points_are_looked_for_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every study that names a part asks for them, and all packages are looked through."""
    found = entry_points("teacher")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.entry_points", pytest.fail)
        assert entry_points("teacher") == found


def test_files_of_ones_own_are_those_that_were_imported_from_the_folder(folder: Path) -> None:
    assert own_files() == {}
    load_part("own_part:make", "teacher")
    load_part("own_package.models:Nets", "teacher")
    found = own_files()
    # Of a package all files, as its digest is over all; nothing that was not imported.
    assert set(found) == {
        "own_part.py",
        "own_package/__init__.py",
        "own_package/models.py",
        "own_package/deep/more.py",
    }
    assert found["own_part.py"] == (folder / "own_part.py").read_bytes()
    search_folder(None)
    assert own_files() == {}


def test_what_is_installed_is_looked_through_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hospital compares the source with every message; the search takes a quarter of a second."""
    part_identity("sklearn.tree:DecisionTreeClassifier", "teacher")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.metadata.packages_distributions", pytest.fail)
        assert part_identity("sklearn.neighbors:KNeighborsClassifier", "student").version is not None
        assert part_identity("own_part:make", "teacher").version is None
    installed = folder / "own-1.0.dist-info"  # after which it is looked through again
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (installed / "top_level.txt").write_text("own_package\n")
    assert part_identity("own_package.models:Nets", "teacher").version == "1.0"
