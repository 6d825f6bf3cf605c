"""`pate-fed study`: the coordinator's authority, from its making to a revoked hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pate_fed.identity import Authority


def test_from_a_new_study_to_a_revoked_hospital(
    demonstration: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demonstration)  # study.toml names its pool there
    authority, identity, admission = (str(tmp_path / name) for name in ("ca", "id", "north.admission"))
    init = ("study", "init", authority, "--config", "study.toml", "--address", "here.example:9092")
    code, out, _ = run(*init)
    assert code == 0
    fingerprint = out.split("authority's fingerprint, to tell every hospital by telephone:\n")[1].split()[0]
    assert "will not take part: refused by the hospital's policy: votes would be seen without masks" in out
    public = Authority(Path(authority)).ledger_key().public_key().public_bytes_raw().hex()
    assert f"--public-key {public}" in out
    code, shown, _ = run("hospital", "request", "--name", "north", "--dir", identity)
    assert code == 0
    code, out, _ = run("study", "admit", f"{identity}/north.req", "--dir", authority, "--out", admission)
    assert code == 0
    # Each side is shown both: the key's as the hospital made it, the authority's as it was made.
    own = shown.split("by telephone:\n")[1].split()[0]
    assert own in out and fingerprint in out and own != fingerprint
    accept = ("hospital", "accept", admission, "--yes", "--dir", identity, "--fingerprint")
    code, _, err = run(*accept, "lusab-babad-gutih-tugad-babab")
    assert code == 6
    assert "do not join" in err
    code, out, _ = run(*accept, fingerprint)
    assert (code, "here.example:9092" in out) == (0, True)
    assert "The study breast-cancer: what you would agree to" in out and "No bound" in out
    assert "recorded in" in out
    assert run("study", "list", "--dir", authority)[1] == "north  364 days left\n"
    assert "admissions are older" not in out
    late = str(tmp_path / "late")
    assert run("hospital", "request", "--name", "late", "--dir", late)[0] == 0
    out = run("study", "admit", f"{late}/late.req", "--dir", authority, "--out", f"{late}.admission")[1]
    assert "tell north: their admissions are older" in out
    assert "tell north:" in run("study", "revoke", "late", "--dir", authority)[1]
    assert run("study", "revoke", "north", "--dir", authority)[0] == 0
    assert run("study", "list", "--dir", authority)[1] == ""
    code, _, err = run("study", "revoke", "north", "--dir", authority)
    assert code == 2
    assert "admitted: none" in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("study", "init", "ca", "--config", "none.toml", "--address", "h:1"), "none.toml"),
        (("study", "init", "ca", "--config", "none.toml", "--address", "h"), "HOST:PORT"),
        (("study", "admit", "x.req", "--days", "0"), "1 to 3650 days"),
        (("study", "admit", "x.req"), "x.req"),
        (("hospital", "log", "."), "log.jsonl"),
        (("hospital", "request", "--name", "a/b"), "hospital's name"),
        (("hospital", "terms", "none"), "none: cannot be read"),
        (("hospital", "join", "none.admission", "--data", "x"), "none.admission: cannot be read"),
        (("hospital", "rehearse", "none", "--data", "x"), "none: cannot be read"),
    ],
)
def test_mistakes_are_named(
    command: tuple[str, ...],
    words: str,
    tmp_path: Path,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*command)
    assert code == 2
    assert words in err
    assert list(tmp_path.iterdir()) == []
