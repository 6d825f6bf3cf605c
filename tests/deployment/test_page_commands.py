"""deploy/README.md, followed to the letter, in its order: from four dialects of CSV to predictions."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.demo import HOSPITALS

PAGE = Path(__file__).resolve().parents[2] / "deploy" / "README.md"
MODULES = {"pate-fed": "pate_fed.cli", "pate-fed-coordinator": "pate_fed.server"}
HEAD = ["patient", "age", "sex", "cholesterol", "smoker", "outcome"]
ABOUT = (
    "4",
    "400",
    "Dr. Ada Example",
    "triage",
    "",
    "ada@example.org",
    "ten years",
    "",
)  # to study new's questions
CHECKED = {  # what each hospital answers to `hospital check`
    "north": [],
    "east": [("age: the file has no such column", "Alter"), ("sex: read", "yes")],
    "south": [("its code 1 mean", "male"), ("its code 2 mean", "female"), ("(mmol/l to mg/dl)", "yes")],
    "west": [("smoker: the file has no such column", "missing")],
}


def _commands() -> list[tuple[str, list[str]]]:
    """Who gives which command, in the page's order."""
    block = PAGE.read_text(encoding="utf-8").split("## A study, command by command")[1].split("```")[1]
    lines = [re.match(r"(\w+)\$\s+(.+)", line) for line in block.strip().splitlines()]
    return [(found[1], shlex.split(found[2], comments=True)) for found in lines if found is not None]


def _patients(rng: np.random.Generator, count: int, age: int) -> list[list[Any]]:
    rows = []
    for number in range(count):
        own = [
            f"P{number:04}",
            int(np.clip(rng.normal(age, 12), 18, 95)),
            str(rng.choice(["female", "male"])),
        ]
        own += [round(rng.normal(205, 35)), str(rng.choice(["yes", "no"], p=[0.3, 0.7]))]
        odds = 0.06 * (own[1] - 55) + 0.01 * (own[3] - 205) + 0.9 * (own[4] == "yes")
        rows.append([*own, "sick" if rng.random() < 1 / (1 + np.exp(-odds)) else "well"])
    return rows


def _write(
    path: Path,
    rows: list[list[Any]],
    *,
    names: dict[str, str],
    without: str = "",
    code: str = "utf-8",
    sep: str,
) -> None:
    kept = [place for place, name in enumerate(HEAD) if name != without]
    text = io.StringIO(newline="")
    table = csv.writer(text, delimiter=sep)
    table.writerow([names.get(HEAD[place], HEAD[place]) for place in kept])
    table.writerows([[row[place] for place in kept] for row in rows])
    path.write_bytes(text.getvalue().encode(code))


def _in_dialect(name: str, path: Path, rows: list[list[Any]]) -> None:
    """As four hospitals' programs write their tables; north as the study does."""
    if name == "east":  # semicolons, decimal commas, another name, letters for codes
        rows = [[a, f"{b},0", c[0], *others] for a, b, c, *others in rows]
        _write(path, rows, names={"age": "Alter"}, sep=";", code="cp1252")
    elif name == "south":  # tabs, digits for codes, another unit
        sexes = {"male": 1, "female": 2}
        rows = [[a, b, sexes[c], round(d / 38.67, 1), *others] for a, b, c, d, *others in rows]
        _write(path, rows, names={}, sep="\t")
    elif name == "west":  # a spreadsheet's UTF-16, and a column less
        _write(path, rows, names={}, without="smoker", sep=";", code="utf-16")
    else:
        _write(path, rows, names={}, sep=",")


class Sites:
    """A folder for the coordinator and one a hospital; files go between them as they would by mail."""

    def __init__(self, rehearsal: Any) -> None:
        self.rehearsal, folder, rng = rehearsal, rehearsal.folder, np.random.default_rng(7)
        self.coordinator = folder / "coordinator"
        for name in ("coordinator", *HOSPITALS):
            (folder / name).mkdir()
        _in_dialect("coordinator", self.coordinator / "pool.csv", _patients(rng, 400, 55))
        for name, age in zip(HOSPITALS, (40, 60, 70, 50), strict=True):
            _in_dialect(name, folder / name / "records.csv", _patients(rng, 400, age))
            _in_dialect(name, folder / name / "patients.csv", _patients(rng, 50, age))
            shutil.copy(self.coordinator / "pool.csv", folder / name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"localhost:{probe.getsockname()[1]}"
        self.fingerprint = ""
        self.words: dict[str, str] = {}  # that each hospital reads out
        self.joined: list[Any] = []

    def give(self, who: str, command: list[str]) -> None:
        """Give one command of the page: the coordinator's once, a hospital's at each."""
        if command[0] == "pip":
            return  # what is tested is installed
        words = ["-m", MODULES[command[0]], *command[1:]]
        if who == "coordinator":
            self._at_coordinator(words)
            return
        for name in HOSPITALS:
            self._at_hospital(name, [word.replace("north", name) for word in words])

    def _typed(self, who: str, words: list[str], folder: Path, answers: list[tuple[str, str]]) -> Any:
        """A command at a terminal, where somebody answers what is asked."""
        values = {"coordinator.example:9092": self.address, "FINGERPRINT": self.fingerprint}
        master, terminal = pty.openpty()
        filled = [values.get(word, word) for word in words]
        home = {"XDG_STATE_HOME": str(folder / "state")}  # each site has its own
        party = self.rehearsal.start(who, *filled, folder=folder, stdin=terminal, **home)
        os.close(terminal)
        for question, answer in answers:
            party.wait_for(question, 120)
            os.write(master, f"{answer}\n".encode())
        return party, master

    def _at_coordinator(self, words: list[str]) -> None:
        requests = sorted(path.name for path in self.coordinator.glob("*.req"))  # as the shell does
        words = [name for word in words for name in (requests if word == "*.req" else [word])]
        answers = [("An empty line leaves it open", text) for text in ABOUT] if "new" in words else []
        done, master = self._typed("coordinator", words, self.coordinator, answers)
        assert done.wait(400) == 0, done.text + "".join(party.text for party in self.joined)
        os.close(master)
        if "admit" in words:
            for name in HOSPITALS:
                shutil.copy(self.coordinator / f"{name}.admission", self.rehearsal.folder / name)
        if "init" in words:
            self.fingerprint = done.text.split("to tell every hospital by telephone:")[1].split()[0]

    def _at_hospital(self, name: str, words: list[str]) -> None:
        own, answers = self.rehearsal.folder / name, list[tuple[str, str]]()
        if "check" in words:
            answers = CHECKED[name]
        elif "join" in words:
            others = [other for other in sorted(HOSPITALS) if other != name]
            answers = [(f"What {other} reads to you", self.words[other]) for other in others]
            answers += [("Type yes to accept", "yes")]
        elif "predict" in words:
            assert [party.wait(90) for party in self.joined] == [0] * 4
        party, master = self._typed(name, words, own, answers)
        if "join" in words:
            party.wait_for("connecting to", 120)
            self.joined.append(party)
        else:
            assert party.wait(90) == 0, party.text
        os.close(master)
        if "request" in words:
            shutil.copy(own / "identity" / f"{name}.req", self.coordinator)
            self.words[name] = party.text.split("by telephone:")[1].split()[0]


@pytest.mark.slow
def test_the_pages_commands_in_its_order_end_in_predictions_at_four_hospitals(rehearsal: Any) -> None:
    sites, given = Sites(rehearsal), _commands()
    distinct = {tuple(word for word in command[:3] if re.fullmatch(r"[a-z-]+", word)) for _, command in given}
    assert len(distinct - {("pip", "install")}) <= 10
    for who, command in given:
        sites.give(who, command)
    for name in HOSPITALS:
        folder = rehearsal.folder / name
        [consent] = (folder / "identity" / "consent.jsonl").read_text().splitlines()
        assert json.loads(consent)["answer"] == "asked at the terminal"
        assert json.loads(consent)["fingerprint_given"] is True
        said = (rehearsal.folder / f"{name}.out").read_text(encoding="utf-8")
        assert "Dr. Ada Example" in said and "answered under masks: " in said and "ada@example.org" in said
        [state] = (folder / "state" / "pate_fed").glob(f"*/{name}")
        assert (state / "log.jsonl").is_file() and (state / "compare.json").is_file()
        assert not (folder / f"hospital-{name}").exists()
        with (folder / "patients.predictions.csv").open(newline="", encoding="utf-8") as file:
            told = list(csv.DictReader(file))
        assert len(told) == 50 and {"sick", "well"} >= {row["predicted"] for row in told}
        assert "accuracy" in said.rsplit("SUCCESS", 1)[1]
