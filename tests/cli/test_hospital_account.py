"""`pate-fed hospital account`: what all studies cost together, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import THEIRS, make_label_terms, make_terms, own_map_terms, vary

from clients.account import Account

TERMS = make_terms(study="lungs", labels=4, max_queries=4)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Account("north")
    for terms in (TERMS, vary(TERMS, study="hearts"), vary(make_label_terms(), study="labels")):
        made.book(terms, state="here", data="records.csv", policy=None)
    return made


def test_studies_and_their_sum_in_words(account: Account, tmp_path: Path, run: Any) -> None:
    (tmp_path / "policy.toml").write_text("epsilon_public_total = 40.0\ndelta = 1e-6\n")
    code, out, _ = run("hospital", "account", "--policy", str(tmp_path / "policy.toml"))
    assert code == 0
    for words in (
        "privacy account of north",
        "ε at δ=1e-6",
        "  lungs (",
        "data records.csv",
        "no bound against the coordinators; protects one record, replace-one",
        "not in this sum, as features count as public there: labels",
        "protects one label, replace-one",
        "the policy allows ε=40 against the public over all studies, at δ=1e-6",
    ):
        assert words in out


def test_the_sum_is_less_than_the_parts_and_more_than_the_largest(account: Account, run: Any) -> None:
    code, out, _ = run("hospital", "account", "--hospital", "north", "--format", "json")
    assert code == 0
    found = json.loads(out)
    parts = {study["study"]: study["public"] for study in found["studies"]}
    total = {each["protects"]: each for each in found["totals"]}
    of_records, of_labels = total["record, replace-one"], total["label, replace-one"]
    assert parts["lungs"] < of_records["public"] < parts["lungs"] + parts["hearts"]
    assert of_records["public"] < of_labels["public"] and of_labels["not_in_this_sum"] == []
    assert of_records["not_in_this_sum"] == ["labels"] and of_records["coordinator"] is None


def test_whose_word_an_ε_rests_on_stands_beside_it(account: Account, run: Any) -> None:
    assert "NOT PROVEN" not in run("hospital", "account").out
    account.book(own_map_terms(study="sums"), state="here", data="records.csv", policy=None)
    out = run("hospital", "account").out
    assert f"NOT PROVEN: every ε rests on the word of {THEIRS.text}" in out
    assert "NOT PROVEN: it holds if the code that is none of ours keeps its word" in out


def test_a_studys_name_does_not_steer_the_terminal(account: Account, run: Any) -> None:
    evil = vary(TERMS, study="lungs\x1b[2J")
    account.book(evil, state="here", data="records.csv", policy=None)
    out = run("hospital", "account").out
    assert "lungs [2J" in out and "\x1b" not in out


def test_whose_account_is_asked_for(account: Account, tmp_path: Path, run: Any) -> None:
    Account("east").check()
    code, _, err = run("hospital", "account")
    assert code == 2 and "accounts here: east, north" in err
    code, out, _ = run("hospital", "account", "--hospital", "east")
    assert code == 0 and "no study was agreed to yet" in out
    assert run("hospital", "account", "--hospital", "east", "--delta", "1").code == 2
    code, _, err = run("hospital", "account", "--hospital", "nroth")
    assert code == 2 and "no account here is of that name (accounts here: east, north)" in err
    assert run("hospital", "account", "--dir", str(tmp_path / "nowhere")).code == 2
