"""What a dataclass declares of its fields is there for options, files and errors."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NewType, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

import pate_fed
from pate_fed.structure import SettingError, entries, from_plain, from_record, setting

D = TypeVar("D", bound=np.generic)
ArrayAlias = TypeAliasType(
    "ArrayAlias", np.ndarray[Any, np.dtype[D]], type_params=(D,)
)  # NumPy's from 2.5 on
Counts = TypeAliasType("Counts", ArrayAlias[np.int64])
Votes = NewType("Votes", np.ndarray[Any, np.dtype[np.int64]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: float = setting(0.5, "a share", "--share", above=0, high=1)
    count: int | None = setting(None, low=1, high=10)


def test_declarations_are_there_to_be_read() -> None:
    share, count = entries(Inner)
    assert (share.setting.flag, share.default, share.kinds) == ("--share", 0.5, (float,))
    assert (count.setting.flag, count.default, count.kinds) == (None, None, (int,))


def test_an_error_survives_another_process() -> None:
    error = SettingError("a.b", "one is meant", "2", "--b", "f")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "--b (a.b in f) is 2: one is meant"


FORMS = {
    "today's alias": NDArray[np.int64],
    "TypeAliasType": ArrayAlias[np.int64],
    "an alias of an alias, or none": Counts | None,
    "a string": "NDArray[np.int64]",
    "Annotated": Annotated[NDArray[np.int64], "of each class"],
    "Annotated inside": Annotated[Counts, "of each class"] | None,
    "NewType": Votes,
}


@pytest.mark.parametrize("form", FORMS)
def test_an_array_is_read_whatever_form_declares_it(form: str) -> None:
    kind = make_dataclass(
        "Told", [("votes", FORMS[form])], namespace={"kind": "told", "__module__": __name__}
    )
    votes = np.arange(3)
    assert from_record(kind, {"kind": "told", "votes": votes}).votes is votes  # type: ignore[attr-defined]
    with pytest.raises(SettingError):
        from_record(kind, {"kind": "told", "votes": votes.astype(np.float64)})


def test_lists_and_tables_are_read_through_aliases_within_them() -> None:
    whole = TypeAliasType("whole", int)
    hint = tuple[Annotated[whole, "of one"], ...] | dict[str, NewType("Text", str)]  # type: ignore[valid-newtype]
    kind = make_dataclass("Told", [("of", hint)])
    assert [from_plain(kind, {"of": each}, where="").of for each in ([1, 2], {"a": "b"})] == [
        (1, 2),
        {"a": "b"},
    ]  # type: ignore[attr-defined]
    for wrong in (["1"], {"a": 1}):
        with pytest.raises(SettingError):
            from_plain(kind, {"of": wrong}, where="")


@pytest.mark.parametrize(
    "hint",
    [
        list[int],
        D,
        NDArray[Any],
        NDArray[D],
        type[int],
        dict[int, str],
        "complex[1]",
        tuple[make_dataclass("Within", [("of", list[int])]), ...],
    ],
)
def test_a_declaration_that_no_reader_knows_is_an_error_of_the_code(hint: Any) -> None:
    kind = make_dataclass("Told", [("of", hint)])
    with pytest.raises(TypeError):
        entries(kind)


def test_every_declared_field_of_the_product_is_known_on_this_python() -> None:
    declared = [kind for kind in _dataclasses() if any("setting" in each.metadata for each in fields(kind))]
    assert len(declared) > 20
    for kind in declared:
        entries(kind)


def _dataclasses() -> Iterator[type]:
    root = Path(pate_fed.__file__).parent.parent
    for path in sorted(
        path for room in ("pate_fed", "clients", "server") for path in (root / room).rglob("*.py")
    ):
        if "setting(" in path.read_text(encoding="utf-8"):
            module = importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
            yield from (
                each for each in vars(module).values() if isinstance(each, type) and is_dataclass(each)
            )
