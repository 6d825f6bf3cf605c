"""What a study needs is asked for before it starts: nothing where it is of tables and in one process."""

from __future__ import annotations

import importlib.util

import pytest

from pate_fed.config.libraries import require_study_libraries
from pate_fed.config.study import study_from_dict
from pate_fed.errors import InputError

TABLE = {
    "data": {
        "dataset": "table",
        "pool": "pool.csv",
        "table": {"label": "y", "classes": ["no", "yes"], "columns": {"x": "number"}},
    }
}


def test_what_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inline, ray = {"engine": {"backend": "inline"}}, {"engine": {"backend": "ray"}}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_study_libraries(study_from_dict({**TABLE, **inline}))
    with pytest.raises(InputError, match=r"ray.*pate-fed\[simulation\]"):
        require_study_libraries(study_from_dict({**TABLE, **ray}))
    with pytest.raises(InputError, match=r"a study of images needs torch.*pate-fed\[images\]"):
        require_study_libraries(study_from_dict(inline))
