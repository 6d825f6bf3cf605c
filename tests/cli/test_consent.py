"""`pate-fed hospital terms` and `accept`: read first, then a yes that is asked for and recorded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_label_terms, make_scored_terms

from clients.policy import Policy
from clients.state_dir import default_state_dir
from pate_fed.cli.consent import allow_counts, confirm_in
from pate_fed.cli.terms import open_pool
from pate_fed.identity import Admission, Authority, make_request, read_request
from pate_fed.kinds.terms import Terms


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


ACCEPT = ("hospital", "accept", "own/north.admission", "--dir", "own")


def _consents(own: Path) -> list[dict[str, Any]]:
    path = own / "consent.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("typed", ["no\n", "y\n", "\n", ""])
def test_whoever_does_not_say_yes_has_accepted_nothing(
    typed: str, own: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in own.iterdir())
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    code, out, err = run(*ACCEPT)
    assert code == 2 and "not accepted: nothing was changed" in err
    assert out.index("WHO SEES IT") < out.index("Type yes to accept")
    assert sorted(path.name for path in own.iterdir()) == before


def test_a_yes_is_recorded_with_the_terms_it_is_for(
    own: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("Yes\n"))
    code, out, _ = run(*ACCEPT)
    assert code == 0 and "north may connect to" in out and "by telephone, first" in out
    admission = Admission.read(own / "admission.json")
    [consent] = _consents(own)
    assert consent["terms"] == admission.terms_digest and consent["authority"] == admission.fingerprint
    assert consent["answer"] == "asked at the terminal" and consent["fingerprint_given"] is False
    assert run(*ACCEPT, "--yes", "--fingerprint", admission.words)[0] == 0
    first, second = _consents(own)
    assert first == consent
    assert (second["answer"], second["fingerprint_given"]) == ("--yes", True)


def test_the_page_shows_the_others_and_accept_pins_what_they_read_out(
    masked: dict[str, str], own: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run("hospital", "terms", "own/north.admission")[1]
    page = out[out.index("THE OTHER HOSPITALS") : out.index("WHAT IT CAN COST")]
    assert all(words in page for name, words in masked.items() if name != "north")
    assert page.count("not confirmed") == 3 and "2 of 3 must be confirmed" in page and "0 are." in page
    assert "one hospital made up, and these can spoil" in " ".join(page.split())
    # Three that read nothing else out would be asked for; east was telephoned, south is not there now.
    monkeypatch.setattr("sys.stdin", Terminal(f"\n{masked['west'].upper()}\nyes\n"))
    code, out, _ = run(*ACCEPT, "--confirm", f"east={masked['east'].replace('-', ' ')}")
    assert code == 0 and "What south reads to you" in out and "What east reads" not in out
    assert Policy.load(own / "policy.toml").trusted == {name: masked[name] for name in ("east", "west")}
    page = run("hospital", "terms", "own")[1]
    assert page.count("not confirmed") == 1 and "2 are." in page
    values = json.loads(run("hospital", "terms", "own", "--format", "json")[1])
    assert values["must_confirm"] == 2 and values["other_hospitals"] == {
        name: {"fingerprint": words, "confirmed": name != "south"}
        for name, words in masked.items()
        if name != "north"
    }


def test_whoever_reads_out_other_words_than_the_coordinator_says_stops_it(
    masked: dict[str, str], own: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in own.iterdir())
    for name, words, code, told in (
        ("east", masked["west"], 6, f"the coordinator says {masked['east']}"),
        ("east", "lusab", 2, "five words of five letters"),
        ("north", masked["north"], 2, "of another hospital is meant"),
        ("", masked["east"], 2, "NAME=WORDS"),
    ):
        found, _, err = run(*ACCEPT, "--yes", "--confirm", f"{name}={words}")
        assert found == code and told in err
    monkeypatch.setattr("sys.stdin", Terminal(f"{masked['west']}\n\n\nyes\n"))
    assert run(*ACCEPT)[0] == 6
    assert sorted(path.name for path in own.iterdir()) == before
    assert Policy.load(own / "policy.toml") == Policy()


def test_a_hospital_that_is_admitted_with_new_keys_is_confirmed_again(
    masked: dict[str, str], own: Path, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm_in(own / "policy.toml", {name: words for name, words in masked.items() if name != "north"})
    authority = Authority(Path("ca"))
    authority.revoke("east")
    new = make_request(tmp_path / "east-again", "east")
    authority.admit(new, days=9)
    authority.admit(own / "north.req", days=9).write(own / "north.admission")
    words = read_request(new).fingerprint
    page = run("hospital", "terms", "own/north.admission")[1]
    assert words in page and "ANOTHER KEY" in page and "2 are." in page
    monkeypatch.setattr("sys.stdin", Terminal("\nno\n"))
    out = run(*ACCEPT)[1]
    assert "What east reads to you" in out and "What west reads" not in out
    assert run(*ACCEPT, "--yes", "--confirm", f"east={words}")[0] == 0
    assert Policy.load(own / "policy.toml").trusted["east"] == words
    assert "ANOTHER KEY" not in run("hospital", "terms", "own")[1]


def test_a_yes_to_a_page_with_counts_lets_them_leave(
    own: Path, demonstration: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of before counts is given its line by a yes alone; one that says no to them stays as it is."""
    authority = Authority.init(Path("ca"), address="a.example:9", terms=make_scored_terms().to_json(), days=9)
    request = demonstration / "identity-north" / "north.req"
    [admission] = authority.admit_all([request], days=9)
    admission.write(own / "north.admission")
    policy = own / "policy.toml"
    policy.write_text("most_sums = 3\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert run(*ACCEPT)[0] == 2 and Policy.load(policy) == Policy(most_sums=3)
    code, out, _ = run(*ACCEPT, "--yes")
    assert code == 0 and Policy.load(policy) == Policy(most_sums=3, counts=True)
    assert out.index("counted once") < out.index("counts = true is written into own/policy.toml")
    policy.write_text("counts = false\n", encoding="utf-8")
    code, out, _ = run(*ACCEPT, "--yes")
    assert code == 0 and "is written" not in out and Policy.load(policy) == Policy()


def test_without_a_terminal_a_script_must_say_yes(
    own: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    code, out, err = run(*ACCEPT)
    assert code == 2 and "give --yes" in err and "WHO SEES IT" in out
    assert not (own / "admission.json").exists() and _consents(own) == []
    assert run(*ACCEPT, "--yes")[0] == 0


def test_a_consent_that_cannot_be_recorded_accepts_nothing(own: Path, run: Any) -> None:
    (own / "consent.jsonl").mkdir()
    code, _, err = run(*ACCEPT, "--yes")
    assert code == 2 and "consent.jsonl: cannot be written" in err
    assert not (own / "admission.json").exists()


def test_terms_are_read_from_an_admission_a_folder_and_a_file(
    own: Path, run: Any, demonstration: Path
) -> None:
    code, from_admission, _ = run("hospital", "terms", "own/north.admission")
    assert code == 0 and "Signed by the authority" in from_admission
    assert run("hospital", "terms", str(demonstration / "identity-north"))[1] == from_admission
    admission = Admission.read(own / "north.admission")
    Path("terms.json").write_text(admission.terms)
    code, out, _ = run("hospital", "terms", "terms.json", "--pool", str(demonstration / "pool.csv"))
    assert code == 0 and "Not signed" in out and "mean radius 12.25" in out
    # A pool that the coordinator sent before is shown without being named.
    terms = admission.study_terms
    assert isinstance(terms, Terms)
    state = default_state_dir("north", terms, admission.fingerprint)
    state.mkdir(parents=True)
    assert "No copy is here" in from_admission
    np.save(state / "pool.npy", open_pool(demonstration / "pool.csv", terms))
    assert "mean radius 12.25" in run("hospital", "terms", "own/north.admission")[1]
    values = json.loads(run("hospital", "terms", "own/north.admission", "--format", "json")[1])
    assert values["terms_digest"] == admission.terms_digest and values["signed"] is True
    assert values["epsilon"]["coordinator"] is None and values["about"]["purpose"] == ""
    assert values["must_confirm"] == 0  # votes that the coordinator sees
    Path("labels.json").write_text(make_label_terms().to_json())
    assert "randomised response" in run("hospital", "terms", "labels.json")[1]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("{}", 2, "neither an admission nor the terms"),
        ("not JSON", 2, "neither an admission nor the terms"),
        ('{"certificate": 1}', 2, "not an admission"),
        ("forged", 6, "not signed by the study's authority"),
    ],
)
def test_what_is_no_offer_is_named(content: str, code: int, words: str, own: Path, run: Any) -> None:
    if content == "forged":
        content = (own / "north.admission").read_text().replace("breast-cancer", "another")
    Path("offer").write_text(content)
    found = run("hospital", "terms", "offer")
    assert found.code == code and words in found.err


def test_a_policy_that_is_written_to_stays_what_it_was(tmp_path: Path) -> None:
    """A link to a shared file, its mode, its comments; a no of its own stays, and is said."""
    terms, shared, link = make_scored_terms(), tmp_path / "shared.toml", tmp_path / "policy.toml"
    shared.write_text("# ours\nleast_hospitals = 4\n[trusted]\n", encoding="utf-8")
    shared.chmod(0o640)
    link.symlink_to(shared)
    assert allow_counts(link, terms) and not allow_counts(link, terms)
    assert link.is_symlink() and shared.stat().st_mode & 0o777 == 0o640
    assert shared.read_text(encoding="utf-8") == "counts = true\n# ours\nleast_hospitals = 4\n[trusted]\n"
    shared.write_text("counts = false\n", encoding="utf-8")
    assert "will refuse the study" in allow_counts(link, terms)
    assert shared.read_text(encoding="utf-8") == "counts = false\n"
