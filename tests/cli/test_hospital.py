"""`pate-fed hospital`: its actions, what holds where nothing is said, and a request with its fingerprints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.hospital import add_hospital_command
from pate_fed.identity import sum_fingerprint
from pate_fed.identity.keys import read_request


@pytest.fixture
def parse() -> Any:
    parser = argparse.ArgumentParser()
    add_hospital_command(parser.add_subparsers())
    return lambda *words: parser.parse_args(["hospital", *words])


def test_a_request_says_whose_it_is_and_what_to_read_aloud(tmp_path: Path, run: Any) -> None:
    folder = tmp_path / "keys"
    code, out, _ = run("hospital", "request", "--name", "north", "--dir", str(folder))
    (request,) = folder.glob("*.req")
    assert code == 0 and str(request) in out and f"  {read_request(request).fingerprint}\n" in out
    assert f"  {sum_fingerprint(folder)}\n" in out and f"--dir {folder} --data RECORDS" in out
    assert read_request(request).name == "north"
    secret = {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077 == 0}
    assert {"hospital.key", "sum.key"} <= secret and request.name not in secret
    code, _, err = run("hospital", "request", "--name", "north", "--dir", str(folder))
    assert code == 2 and "hospital.key" in err  # no second keys over the first
    assert f"  {read_request(request).fingerprint}\n" in out


@pytest.mark.parametrize("name", ["", "north east", "../north", "-north", "n" * 65])
def test_a_name_that_none_can_have_makes_no_keys(tmp_path: Path, run: Any, name: str) -> None:
    code, _, err = run("hospital", "request", f"--name={name}", "--dir", str(tmp_path / "keys"))
    assert code == 2 and "1 to 64 letters" in err and not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("action", "missing"),
    [
        (["request"], "--name"),
        (["terms"], "FILE"),
        (["rehearse", "x"], "--data"),
        (["accept"], "NAME.admission"),
        (["join", "x"], "--data"),
        (["leave"], "STATE_DIR|STUDY"),
        ([], "ACTION"),
    ],
)
def test_what_an_action_cannot_do_without_is_asked_for(run: Any, action: list[str], missing: str) -> None:
    code, _, err = run("hospital", *action)
    assert code == 2 and missing in err


def test_what_holds_where_nothing_is_said(parse: Any) -> None:
    joined = parse("join", "north.admission", "--data", "n.csv")
    assert (joined.wait, joined.dir, joined.yes, joined.quiet) == (604800.0, ".", False, False)
    assert joined.state_dir is joined.server is joined.teachers is joined.pool is joined.policy is None
    assert parse("rehearse", "x", "--data", "n.csv").sample == 20
    accepted = parse("accept", "north.admission")
    assert accepted.fingerprint is None and not accepted.yes  # nobody says yes for a hospital
    left = parse("leave", "lungs")
    assert left.dir is None and not left.yes
