"""Seeded studies of every kind release and state what they always did, on any Python, NumPy and torch.

When this fails, something that is released or promised is another than before. If that is meant, renew what
is stored, by the rule in `tests/support/seeded_studies.py`, in a commit of its own that says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from seeded_studies import STUDIES, differences, observe, stored

from pate_fed.config.sections import AGGREGATORS
from pate_fed.kinds.label_dp.options import METHODS
from pate_fed.learning import RIDGE, STUDENTS, TABLE_STUDENTS

# Of these others show the same: a budget that ends confident GNMax, and PATE-FM under another learner.
ALIKE = ("votes gnmax budget stop", *(f"labels pate-fm+{each}" for each in ("normal", "ssl", "denoise-ssl")))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in STUDIES]
)
def test_a_seeded_study_releases_and_states_what_is_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = list(differences(stored()[name], observe(name)))
    assert not changed, "\n".join((name, *changed))


def test_every_aggregator_student_method_unit_and_trust_is_among_them() -> None:
    forms = stored()
    assert list(forms) == list(STUDIES) and len(STUDIES) >= 20
    mechanisms = {row["mechanism"]["name"] for form in forms.values() for row in form["rows"]}
    named = " ".join(STUDIES)
    for name in (*STUDENTS, *TABLE_STUDENTS, RIDGE, *METHODS, *AGGREGATORS):
        assert name in named, name
    assert len(mechanisms) > 8
    assert {(form["unit"], form["adjacency"]) for form in forms.values()} >= {
        (unit, adjacency)
        for unit in ("record", "patient", "hospital")
        for adjacency in ("replace-one", "add-or-remove-one")
    }


def test_a_change_is_told_by_its_place_with_both_figures() -> None:
    old = {"epsilon": 2.0, "rows": [{"asked": 3, "released": "3:ab"}]}
    new = {"epsilon": 2.0 + 1e-9, "rows": [{"asked": 3, "released": "3:cd"}]}
    assert list(differences(old, new)) == ["rows[0].released: stored '3:ab', now '3:cd'"]
    assert "epsilon: stored 2.0, now 2.1" in differences(old, {**new, "epsilon": 2.1})
    assert list(differences(old, {"epsilon": 2.0})) == [f"rows: stored {old['rows']!r}, now 'nothing'"]
