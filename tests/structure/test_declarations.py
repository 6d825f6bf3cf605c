"""What a dataclass declares of its fields is there for options, files and errors."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from pate_fed.structure import SettingError, entries, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: float = setting(0.5, above=0, high=1, flags=("--share",), help="a share")
    count: int | None = setting(None, low=1, high=10)


def test_declarations_are_there_to_be_read() -> None:
    share, count = entries(Inner)
    assert (share.setting.flag, share.default, share.kinds) == ("--share", 0.5, (float,))
    assert (count.setting.flag, count.default, count.kinds) == (None, None, (int,))


def test_an_error_survives_another_process() -> None:
    error = SettingError("a.b", "one is meant", "2", "--b", "f")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "--b (a.b in f) is 2: one is meant"
