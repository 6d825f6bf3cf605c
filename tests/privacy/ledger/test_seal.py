"""Hostile edits of a run that came to its end: `pate-fed ledger verify` finds every one of them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import KEY, PUBLIC, forge, run, tamper
from seeded_studies import CONFIDENT, NearestMean, images

from pate_fed import simulate
from pate_fed.cli.main import main
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.privacy.ledger.seal import SEAL, new_key, public_hex, read_seal, seal_run
from pate_fed.report.log import read_result

Edit = Callable[[Path], object]
_STUDY: dict[str, Any] = {
    "parties": {"num_clients": 8},
    "aggregation": CONFIDENT,
    "queries": {"labels": 40, "max_queries": 40, "batch_size": 10},
    "privacy": {"allow_weak": True},
    "engine": {"backend": "inline"},
}


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `first`, `second` and, whose rows are signed, `signed`, as the program leaves them."""
    from server.app import Coordinator

    folder = tmp_path_factory.mktemp("sealed")

    def with_key(*given: Any, **options: Any) -> Coordinator:
        return Coordinator(*given, **options, key=KEY)

    for name in ("first", "second", "signed"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "signed":
                patch.setattr("server.app.Coordinator", with_key)
            # Another number of epochs is another student, also where the noise leaves the same labels.
            epochs = {"first": 1, "second": 2, "signed": 1}[name]
            study = {**_STUDY, "study": {"name": name}, "student": {"name": "supervised", "epochs": epochs}}
            simulate(study, run_dir=folder / name, quiet=True, teacher=NearestMean, dataset=images)
    return folder


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Callable[[str], Path]:
    def of(name: str) -> Path:
        return Path(shutil.copytree(sealed / name, tmp_path / name))

    return of


# The edits, each of a run directory, whose sibling `other` is another run.


def _sql(*statements: str) -> Edit:
    return lambda run_dir: tamper(run_dir / "ledger.sqlite", run(*statements))


def _anew(edit: Edit) -> Edit:
    """The same, and the whole chain computed anew."""

    def change(run_dir: Path) -> None:
        edit(run_dir)
        forge(run_dir / "ledger.sqlite")

    return change


def _terms(**values: Any) -> Edit:
    """Other values in the terms; those of a table are put into it."""

    def change(connection: sqlite3.Connection) -> None:
        [[text]] = connection.execute("SELECT body FROM entries WHERE seq = 0")
        body = json.loads(text)
        for name, value in values.items():
            part = body["terms"]["mechanisms"][0] if name in ("name", "parameters") else body["terms"]
            part[name] = {**part[name], **value} if isinstance(value, dict) else value
        connection.execute("UPDATE entries SET body = ? WHERE seq = 0", (_canonical(body),))

    return lambda run_dir: tamper(run_dir / "ledger.sqlite", change)


def _rows(**values: Any) -> Edit:
    """Other values in a column of every charge."""

    def change(connection: sqlite3.Connection) -> None:
        for name, value in values.items():
            rows = connection.execute(f"SELECT seq, {name} FROM entries WHERE seq > 0").fetchall()
            for seq, held in rows:
                new = _canonical({**json.loads(held), **value}) if isinstance(value, dict) else value
                connection.execute(f"UPDATE entries SET {name} = ? WHERE seq = ?", (new, seq))

    return lambda run_dir: tamper(run_dir / "ledger.sqlite", change)


def _canonical(values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _both(*edits: Edit) -> Edit:
    def change(run_dir: Path) -> None:
        for edit in edits:
            edit(run_dir)

    return change


def _metrics(change: Callable[[Any], object]) -> Edit:
    def write(run_dir: Path) -> None:
        figures = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        change(figures)
        (run_dir / "metrics.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")

    return write


def _labels(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Edit:
    def write(run_dir: Path) -> None:
        with np.load(run_dir / "labels.npz") as held:
            columns = dict(held)
        np.savez(run_dir / "labels.npz", **change(columns))

    return write


def _bytes(name: str, change: Callable[[bytes], bytes]) -> Edit:
    return lambda run_dir: (run_dir / name).write_bytes(change((run_dir / name).read_bytes()))


def _flip(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _of_another_run(name: str) -> Edit:
    return lambda run_dir: shutil.copy(run_dir.with_name("other") / name, run_dir / name)


def _drop_trigger(run_dir: Path) -> None:
    with sqlite3.connect(run_dir / "ledger.sqlite") as connection:
        connection.execute("DROP TRIGGER entries_no_update")
    connection.close()


def _seal(change: Callable[[dict[str, Any]], object]) -> Edit:
    def write(run_dir: Path) -> None:
        seal = json.loads((run_dir / SEAL).read_text(encoding="utf-8"))
        change(seal)
        (run_dir / SEAL).write_text(json.dumps(seal, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    return write


def _names_the_new_head(run_dir: Path) -> None:
    """A chain computed anew, and its head put into the seal, which its maker cannot sign."""
    _anew(_rows(epsilon=0.1))(run_dir)
    with sqlite3.connect(run_dir / "ledger.sqlite") as connection:
        [[head]] = connection.execute("SELECT hash FROM head")
    connection.close()
    _seal(lambda seal: seal.update(head=head))(run_dir)


_PLAIN_NOISE = "discrete Gaussian, another generator"
_CHANGES: dict[str, tuple[Any, Any]] = {
    # what: in the terms, in the rows
    "σ": ({"parameters": {"sigma2": 3.0}}, {"parameters": {"sigma2": 3.0}}),
    "unit": ({"protection": {"unit": "hospital"}}, {"protection": {"unit": "hospital"}}),
    "adjacency": (
        {"protection": {"adjacency": "add-or-remove-one"}},
        {"protection": {"adjacency": "add-or-remove-one"}},
    ),
    "mechanism": ({"name": "interactive-gnmax"}, {"mechanism": "interactive-gnmax"}),
    "noise": ({"noise": _PLAIN_NOISE}, {"noise": _PLAIN_NOISE}),
    "coordinator": ({"coordinator": {"kind": "secure-sum"}}, {"coordinator": {"kind": "secure-sum"}}),
}
_OF_THE_CHAIN: dict[str, Edit] = {
    "ε of a row": _sql("UPDATE entries SET epsilon = 0.1 WHERE seq = 2"),
    "ε of a row, larger": _sql("UPDATE entries SET epsilon = epsilon + 1 WHERE seq = 2"),
    "ε of the last row": _sql("UPDATE entries SET epsilon = 0.1 WHERE seq = 4"),
    "ε of the last row, larger": _sql("UPDATE entries SET epsilon = epsilon + 1e-6 WHERE seq = 4"),
    "ε of the terms": _terms(epsilon=50.0),
    "caps": _terms(most_asked=400, most_answered=400),
    "caps, fewer": _terms(most_answered=40, most_asked=41),
    "δ": _terms(delta=1e-4),
    **{
        f"{what} in the {where}": edit
        for what, (terms, rows) in _CHANGES.items()
        for where, edit in (
            ("terms", _terms(**terms)),
            ("rows", _rows(**rows)),
            ("terms and rows", _both(_terms(**terms), _rows(**rows))),
        )
    },
    "a row removed": _sql(
        "DELETE FROM released WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 2",
        "UPDATE released SET seq = seq - 1 WHERE seq > 2",
        "UPDATE entries SET seq = seq - 1 WHERE seq > 2",
        "UPDATE head SET seq = 3",
    ),
    "a row copied": _sql(
        "CREATE TEMP TABLE copied AS SELECT * FROM entries WHERE seq = 4",
        "UPDATE copied SET seq = 5, batch_digest = substr(batch_digest, 2) || '0'",
        "UPDATE copied SET previous = 'x', hash = 'y'",
        "INSERT INTO entries SELECT * FROM copied",
        "INSERT INTO released SELECT 5, position, query, answered, label FROM released WHERE seq = 4",
        "UPDATE head SET seq = 5",
    ),
    "rows reordered": _sql(
        *(
            f"UPDATE {table} SET seq = {new} WHERE seq = {old}"
            for table in ("entries", "released")
            for old, new in ((2, -1), (3, 2), (-1, 3))
        )
    ),
    "cut at the end": _sql(
        "DELETE FROM released WHERE seq = 4",
        "DELETE FROM entries WHERE seq = 4",
        "UPDATE head SET seq = 3, hash = (SELECT hash FROM entries WHERE seq = 3)",
    ),
    "a label of the ledger": _sql("UPDATE released SET label = 2 - label WHERE seq = 3 AND label >= 0"),
}
_OF_FILES: dict[str, Edit] = {
    "a bit of the ledger": _bytes("ledger.sqlite", _flip),
    "a trigger dropped": _drop_trigger,
    **{f"a bit of {name}": _bytes(name, _flip) for name in ("labels.npz", "student.pt", "log.jsonl")},
    **{
        f"{name} cut short": _bytes(name, lambda content: content[: len(content) // 2])
        for name in ("ledger.sqlite", "labels.npz", "student.pt", "metrics.json", "report.html")
    },
    "a label beside": _labels(lambda held: {**held, "label": np.roll(held["label"], 1)}),
    "one label more": _labels(lambda held: {name: np.append(each, each[-1:]) for name, each in held.items()}),
    "one label less": _labels(lambda held: {name: each[:-1] for name, each in held.items()}),
    "ε stated": _metrics(lambda made: made["privacy"]["student"].update(data_independent=1.0)),
    "ε stated 1e-6 lower": _metrics(
        lambda made: made["privacy"]["student"].update(
            data_independent=made["privacy"]["student"]["data_independent"] - 1e-6
        )
    ),
    "ε stated higher": _metrics(lambda made: made["privacy"]["student"].update(data_independent=99.0)),
    "ε stated as NaN": _metrics(
        lambda made: made["privacy"]["student"].update(data_independent=float("nan"))
    ),
    "ε stated as null": _metrics(lambda made: made["privacy"]["student"].update(data_independent=None)),
    "counts stated": _metrics(lambda made: made.update(queries_answered=made["queries_answered"] - 1)),
    "accuracy stated": _metrics(lambda made: made["accuracy"].update(student=0.99)),
    "accuracy stated 1e-6 lower": _metrics(
        lambda made: made["accuracy"].update(student=made["accuracy"]["student"] - 1e-6)
    ),
    "accuracy stated as null": _metrics(lambda made: made["accuracy"].update(student=None)),
    "status stated": _metrics(lambda made: made.update(status="failed")),
    **{
        f"{name} of another run": _of_another_run(name)
        for name in ("student.pt", "student.ts", "report.html", "study.toml", "metrics.json", "log.jsonl")
    },
    "report and log of another run": _both(_of_another_run("report.html"), _of_another_run("log.jsonl")),
    "the signature taken away": _seal(lambda seal: seal.pop("signature")),
    "the signature emptied": _seal(lambda seal: seal.update(signature="")),
    "the signature in capitals": _seal(lambda seal: seal.update(signature=seal["signature"].upper())),
    "the seal taken away": lambda run_dir: (run_dir / SEAL).unlink(),
    "a file left out of the seal": _seal(lambda seal: seal["files"].pop("student.pt")),
    "the head put into the seal": _names_the_new_head,
    "another key in the seal": _seal(lambda seal: seal.update(public_key=PUBLIC)),
}
EDITS = {
    **{f"{name}, the chain as it was": edit for name, edit in _OF_THE_CHAIN.items()},
    **{f"{name}, the chain anew": _anew(edit) for name, edit in _OF_THE_CHAIN.items()},
    **_OF_FILES,
}


@pytest.mark.parametrize("name", EDITS)
def test_a_hostile_edit_is_found(
    name: str, copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copy("second").rename((run_dir := copy("first")).with_name("other"))
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    EDITS[name](run_dir)
    assert before != {path.name: path.read_bytes() for path in run_dir.iterdir()}
    assert main(["ledger", "verify", str(run_dir)]) == 6
    assert capsys.readouterr().err.startswith(f"error: {run_dir}")


def test_there_are_more_edits_than_the_fifty_that_were_asked_for() -> None:
    assert len(EDITS) >= 50


def test_an_untouched_run_is_as_it_was_sealed_and_the_run_told_its_key(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = copy("first")
    outcome = read_result(run_dir).outcome
    assert main(["ledger", "verify", str(run_dir)]) == 0
    told = capsys.readouterr().out
    assert "seal: 10 of 10 files and the ledger's last row as at the run's end" in told
    assert f"sealed by {outcome.sealed_by}: compare" in told and "does not prove" in told
    assert f"last row's hash {outcome.ledger_head}" in told
    assert main(["ledger", "verify", str(run_dir), "--public-key", str(outcome.sealed_by)]) == 0
    assert "the key that was given" in capsys.readouterr().out
    assert main(["ledger", "verify", str(run_dir), "--public-key", PUBLIC]) == 6


def test_a_run_sealed_anew_is_told_from_the_first_by_its_key_alone(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, key = copy("first"), new_key()
    first, _ = read_seal(run_dir), EDITS["accuracy stated"](run_dir)
    assert first is not None
    seal_run(run_dir, key=key, head=first.head, more={})
    assert main(["ledger", "verify", str(run_dir)]) == 0
    assert f"sealed by {public_hex(key)}: compare" in capsys.readouterr().out
    assert main(["ledger", "verify", str(run_dir), "--public-key", first.public_key]) == 6


def test_a_signed_ledger_is_sealed_with_its_own_key(copy: Callable[[str], Path]) -> None:
    run_dir = copy("signed")
    assert verify_run(run_dir, public_key=PUBLIC).sealed_by == PUBLIC
    head = verify_run(run_dir).chain.head
    seal_run(run_dir, key=new_key(), head=head, more={})
    assert main(["ledger", "verify", str(run_dir)]) == 6
    seal_run(run_dir, key=KEY, head=head, more={})
    assert main(["ledger", "verify", str(run_dir), "--public-key", PUBLIC]) == 0
    stripped = _both(
        _sql(
            "UPDATE entries SET signature = NULL",
            f"UPDATE entries SET body = replace(body, '\"{PUBLIC}\"', 'null')",
        ),
    )
    _anew(stripped)(run_dir)
    assert main(["ledger", "verify", str(run_dir)]) == 6
    (run_dir / SEAL).unlink()
    assert main(["ledger", "verify", str(run_dir), "--unsealed"]) == 0
    assert main(["ledger", "verify", str(run_dir), "--unsealed", "--public-key", PUBLIC]) == 6


def test_a_report_written_again_passes_and_one_of_another_log_does_not(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = copy("first")
    (run_dir / "report.html").unlink()
    assert main(["ledger", "verify", str(run_dir)]) == 0
    assert "sealed, and not there: report.html" in capsys.readouterr().out
    assert main(["report", str(run_dir)]) == main(["report", str(run_dir), "--publishable"]) == 0
    assert main(["ledger", "verify", str(run_dir)]) == 0
    assert "from the sealed log: report-publishable.html" in capsys.readouterr().out
    page = run_dir / "report-publishable.html"
    page.write_text(page.read_text(encoding="utf-8").replace("ε", "e"), encoding="utf-8")
    assert main(["ledger", "verify", str(run_dir)]) == 6
    assert f"error: {page}: neither" in capsys.readouterr().err


def test_a_copy_by_backup_is_as_it_was_sealed(copy: Callable[[str], Path]) -> None:
    path = copy("first") / "ledger.sqlite"
    saved = path.with_name("saved")
    with sqlite3.connect(path) as source, sqlite3.connect(saved) as target:
        source.backup(target)
    source.close()
    target.close()
    assert saved.read_bytes() != path.read_bytes()
    saved.replace(path)
    assert main(["ledger", "verify", str(path.parent)]) == 0


def test_a_name_in_a_seal_leads_to_no_other_folder(copy: Callable[[str], Path]) -> None:
    run_dir = copy("first")
    (run_dir.parent / "secret").write_text("secret")
    first = read_seal(run_dir)
    assert first is not None
    seal_run(run_dir, key=new_key(), head=first.head, more={"../secret": b"secret"})
    assert main(["ledger", "verify", str(run_dir)]) == 6
