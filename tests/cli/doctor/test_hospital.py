"""`pate-fed doctor` at a hospital: real files, and every fault with its code and its cure."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.doctor.machine import PROBLEM, WARNING
from pate_fed.config.sections import Aggregation
from pate_fed.config.study import read_study
from pate_fed.config.trust import TrustModel
from pate_fed.identity import Authority, HospitalIdentity, make_request

NORTH = ("--hospital", "north", "--tls-dir", "identity-north", "--data", "north.csv")


SERVER = (Path("authority/server.crt"), Path("authority/server.key"))


def test_a_hospital_that_is_ready(site: Any, serve: Any) -> None:
    before = site.snapshot()
    port = serve(*SERVER, authority=Path("authority/ca.crt"))
    found = site.hospital(*NORTH, "--server", f"127.0.0.1:{port}")
    assert list(found) == [
        *("identity", "terms", "policy", "data", "records", "columns", "teachers", "state"),
        *("coordinator", "TLS"),
    ]
    assert {row.severity for row in found.values()} == {"ok"}
    assert "95 records, 30 features: 33 malignant, 62 benign" in found["records"].text
    assert found["columns"].text == "30 looked at, beside nothing: the public inputs have not come yet"
    assert "random-forest" in found["teachers"].text
    assert "TLSv1.3 with certificates of this study's authority on both sides" in found["TLS"].text
    assert site.snapshot() == before


def test_what_a_file_gets_tells_nothing_of_the_records(site: Any) -> None:
    found = site.hospital(*NORTH)
    for check in ("records", "teachers"):
        assert found[check].file_text != found[check].text
        assert not any(letter.isdigit() for letter in found[check].file_text)
    text = Path("north.csv").read_text()
    Path("north.csv").write_text(text.replace("malignant", "malign", 1))
    row = site.hospital(*NORTH)["records"]
    assert (row.severity, row.exit_code) == (PROBLEM, 2)
    assert "north.csv row" in row.text and "did you mean 'malignant'" in row.text
    assert "malign" not in row.file_text and "terminal" in row.file_text


def _swap_ca(folder: Path) -> None:
    other = Authority.init(folder / "else", address="127.0.0.1:1", terms="{}", days=9)
    (folder / "identity-north" / "ca.crt").write_bytes((other.folder / "ca.crt").read_bytes())


def _unlike_columns(folder: Path) -> None:
    text = (folder / "north.csv").read_text()
    (folder / "north.csv").write_text(text.replace("mean radius", "radius", 1))


def _policy(text: str) -> Callable[[Path], None]:
    return lambda folder: void((folder / "policy.toml").write_text(text))


def void(_: object) -> None:
    """For a lambda that is a statement."""


@pytest.mark.parametrize(
    ("fault", "options", "check", "code", "words"),
    [
        (lambda f: (f / "identity-north/hospital.key").chmod(0o644), (), "identity", 2, "chmod 600"),
        (
            lambda f: (f / "identity-north/policy.toml").write_text(
                "plain_votes = true\nepsilon_public_total = 0.5\n"
            ),
            (),
            "policy",
            5,
            "over all its studies",
        ),
        (lambda f: (f / "identity-north/sum.key").chmod(0o640), (), "identity", 2, "chmod 600"),
        (lambda f: (f / "identity-north/admission.json").unlink(), (), "identity", 2, "hospital accept"),
        (lambda f: (f / "identity-north/ca.crt").unlink(), (), "identity", 2, "ca.crt: cannot be read"),
        (_swap_ca, (), "identity", 6, "not the authority of the admission"),
        (void, ("--hospital", "south"), "identity", 2, "is north's, not south's"),
        (void, ("--hospital", "a b"), "identity", 2, "1 to 64 letters"),
        (void, ("--data", "none.csv"), "data", 2, "no such file"),
        (_unlike_columns, (), "records", 2, "'mean radius' is missing; there is 'radius'"),
        (_policy("most_querys = 3"), ("--policy", "policy.toml"), "policy", 2, "did you mean most_queries"),
        (_policy("most_queries = 3"), ("--policy", "policy.toml"), "policy", 5, "plain_votes = true"),
        (
            _policy("plain_votes = true\nmost_queries = 3"),
            *(("--policy", "policy.toml"), "policy", 5, "policy.toml allows most_queries = 3"),
        ),
        (lambda f: (f / "identity-north/policy.toml").unlink(), (), "policy", 5, "line plain_votes = true"),
        (
            _policy('pools = ["00"]'),
            ("--policy", "policy.toml"),
            "policy",
            5,
            "is not in the list pools of policy.toml",
        ),
        (void, ("--state-dir", "north.csv/state"), "state", 2, "cannot be written"),
        (void, ("--pool", "west.csv"), "pool", 2, "not the study's public pool"),
        (void, ("--server", "127.0.0.1"), "coordinator", 2, "HOST:PORT is meant"),
        (void, ("--server", "coordinator..example:9092"), "coordinator", 1, "no address is known"),
    ],
)
def test_a_fault_is_named_with_its_cure(
    fault: Callable[[Path], object], options: tuple[str, ...], check: str, code: int, words: str, site: Any
) -> None:
    fault(site.folder)
    before = site.snapshot()
    row = site.hospital(*NORTH, *options)[check]
    assert (row.severity, row.exit_code) == (PROBLEM, code), row
    assert words in row.text
    assert site.snapshot() == before


def test_one_fault_hides_no_other(site: Any, serve: Any) -> None:
    (site.folder / "identity-north" / "sum.key").chmod(0o644)
    found = site.hospital(*NORTH, "--server", f"127.0.0.1:{serve(*SERVER)}")
    assert [check for check, row in found.items() if row.severity != "ok"] == ["identity"]
    assert "records" in found and "TLS" in found
    admission = site.folder / "identity-north" / "admission.json"
    admission.write_text(admission.read_text().replace("breast-cancer", "another"))
    found = site.hospital(*NORTH)
    assert (found["terms"].severity, found["terms"].exit_code) == (PROBLEM, 6)
    assert "not signed by the study's authority" in found["terms"].text
    assert found["data"].severity == WARNING and "mend the identity" in found["data"].text


def test_the_pool_that_is_meant_and_a_rehearsal(site: Any) -> None:
    assert site.hospital(*NORTH, "--pool", "pool.csv")["pool"].severity == "ok"
    found = site.hospital("--data", "part:0")
    assert list(found) == ["data"]
    row = site.hospital("--data", "north.csv")["data"]
    assert row.severity == WARNING and "--tls-dir or --config" in row.text
    found = site.hospital("--data", "north.csv", "--config", "study.toml")
    assert found["records"].severity == found["teachers"].severity == "ok"


def test_where_nothing_is_trained_a_model_of_its_own_is_tried(site: Any) -> None:
    study = read_study(Path("study.toml"))
    sums = replace(
        study,
        aggregation=Aggregation(aggregator="class-sums"),
        secrecy=TrustModel(secure_sum=True, noise_at="hospitals"),
    )
    Path("sums.toml").write_text(sums.to_toml(), encoding="utf-8")
    found = site.hospital("--data", "north.csv", "--config", "sums.toml")
    assert found["own model"].severity == "ok" and "teachers" not in found
    assert "random-forest" in found["own model"].text


def test_a_state_directory_in_use_or_open_to_others(site: Any) -> None:
    state = site.folder / "hospital-north"  # where an older release kept it
    state.mkdir(mode=0o755)
    assert "chmod 700" in site.hospital("--hospital", "north")["state"].text
    with open(state / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        row = site.hospital("--hospital", "north")["state"]
    assert (row.severity, row.exit_code) == (PROBLEM, 2)
    assert "another process" in row.text


def test_with_whom_a_policy_sums(site: Any) -> None:
    text = Path("study.toml").read_text() + "\n[secrecy]\nsecure_sum = true\n"
    Path("study.toml").write_text(text)
    from pate_fed.cli.terms import make_terms_of

    terms = make_terms_of(Path("study.toml"))
    authority = Authority.init(Path("masked"), address="127.0.0.1:9", terms=terms, days=90)
    authority.admit(make_request(Path("own"), "north"), days=90).write(Path("north.admission"))
    HospitalIdentity.offered(Path("own"), Path("north.admission")).take()
    for line, confirmed in (('east = "lusab-babad-gutih-tugad-babab"\n', 1), ("", 0)):
        Path("policy.toml").write_text(f"[trusted]\n{line}")
        row = site.hospital("--tls-dir", "own", "--policy", "policy.toml")["policy"]
        assert (row.severity, row.exit_code) == (PROBLEM, 5)
        assert f"2 of the other 3 must be confirmed, {confirmed} are" in row.text
        assert "pate-fed hospital accept --confirm NAME=WORDS" in row.text


def test_an_expired_identity_and_a_clock_behind_the_authoritys(site: Any, shift_clock: Any) -> None:
    with shift_clock(91):
        row = site.hospital(*NORTH)["identity"]
    assert row.exit_code == 2 and "expired on" in row.text
    with shift_clock(0.5):  # the authority's clock is half a day ahead of this one
        Authority(Path("authority")).admit(Path("identity-north/north.req"), days=9).write(Path("a"))
        HospitalIdentity.offered(Path("identity-north"), Path("a")).take()
    row = site.hospital(*NORTH)["identity"]
    assert row.exit_code == 2 and "720 minutes behind" in row.text
