"""deploy/README.md, followed to the letter: its commands in its order, by four hospitals as processes."""

from __future__ import annotations

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
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS

PAGE = Path(__file__).resolve().parents[2] / "deploy" / "README.md"
MODULES = {"pate-fed": "pate_fed.cli", "pate-fed-coordinator": "pate_fed.server"}


def _commands() -> list[tuple[str, list[str]]]:
    """Who gives which command, in the page's order."""
    block = PAGE.read_text(encoding="utf-8").split("## A study, command by command")[1].split("```")[1]
    lines = [re.match(r"(\w+)\$\s+(.+)", line) for line in block.strip().splitlines()]
    return [(found[1], shlex.split(found[2])) for found in lines if found is not None]


class Sites:
    """A folder for the coordinator and one a hospital; files go between them as they would by mail."""

    def __init__(self, rehearsal: Any) -> None:
        self.rehearsal, folder = rehearsal, rehearsal.folder
        made = make_vote_study(folder / "demo")
        self.coordinator = folder / "coordinator"
        self.coordinator.mkdir()
        study = (made.folder / "study.toml").read_text(encoding="utf-8")
        about = '[about]\nrequester = "Dr. Ada Example"\npurpose = "triage"\n'
        text = f"{study}\n{about}\n[secrecy]\nsecure_sum = true\n"
        (self.coordinator / "study.toml").write_text(text, encoding="utf-8")
        shutil.copy(made.folder / "pool.csv", self.coordinator)
        for name in HOSPITALS:
            (folder / name).mkdir()
            shutil.copy(made.folder / f"{name}.csv", folder / name / "records.csv")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"localhost:{probe.getsockname()[1]}"
        self.fingerprint = ""
        self.words: dict[str, str] = {}  # that each hospital reads out
        self.joined: list[Any] = []

    def give(self, who: str, command: list[str]) -> None:
        """Give one command of the page; one that names north is given for each hospital."""
        if command[0] == "pip":
            return  # what is tested is installed
        words = ["-m", MODULES[command[0]], *command[1:]]
        if who == "coordinator" and not any("north" in word for word in words):
            self._at_coordinator(words)
            return
        for name in HOSPITALS:
            self._for_hospital(who, name, [word.replace("north", name) for word in words])

    def _filled(self, words: list[str]) -> list[str]:
        values = {"coordinator.example:9092": self.address, "FINGERPRINT": self.fingerprint}
        return [values.get(word, word) for word in words]

    def _at_coordinator(self, words: list[str]) -> None:
        requests = sorted(path.name for path in self.coordinator.glob("*.req"))  # as the shell does
        words = [name for word in words for name in (requests if word == "*.req" else [word])]
        done = self.rehearsal.start("coordinator", *self._filled(words), folder=self.coordinator)
        assert done.wait(400) == 0, done.text + "".join(party.text for party in self.joined)
        if "admit" in words:
            for name in HOSPITALS:
                shutil.copy(self.coordinator / f"{name}.admission", self.rehearsal.folder / name)
        if "init" in words:
            self.fingerprint = done.text.split("to tell every hospital by telephone:")[1].split()[0]

    def _for_hospital(self, who: str, name: str, words: list[str]) -> None:
        own = self.rehearsal.folder / name
        if "join" in words:
            self._join(name, words, own)
            return
        folder = own if who == "hospital" else self.coordinator
        done = self.rehearsal.start(f"{who}-{name}", *self._filled(words), folder=folder)
        assert done.wait(60) == 0, done.text
        if "request" in words:
            shutil.copy(own / "identity" / f"{name}.req", self.coordinator)
            self.words[name] = done.text.split("by telephone:")[1].split()[0]

    def _join(self, name: str, words: list[str], own: Path) -> None:
        """At a terminal, where somebody types what the others read out, and says yes."""
        master, terminal = pty.openpty()
        party = self.rehearsal.start(name, *self._filled(words), folder=own, stdin=terminal)
        os.close(terminal)
        for other in sorted(HOSPITALS):
            if other != name:
                party.wait_for(f"What {other} reads to you", 60)
                os.write(master, f"{self.words[other]}\n".encode())
        party.wait_for("Type yes to accept", 60)
        os.write(master, b"yes\n")
        party.wait_for("connecting to", 120)
        os.close(master)
        self.joined.append(party)


@pytest.mark.slow
def test_the_pages_commands_in_its_order_end_a_study(rehearsal: Any) -> None:
    sites, given = Sites(rehearsal), _commands()
    assert [who for who, _ in given].count("hospital") <= 4
    for who, command in given:
        sites.give(who, command)
    assert [party.wait(90) for party in sites.joined] == [0] * 4
    for party in sites.joined:
        assert "Dr. Ada Example" in party.text and "answered under masks: " in party.text
        [consent] = (rehearsal.folder / party.name / "identity" / "consent.jsonl").read_text().splitlines()
        assert json.loads(consent)["answer"] == "asked at the terminal"
        assert json.loads(consent)["fingerprint_given"] is True
        assert (rehearsal.state_of(party.name) / "log.jsonl").is_file()
        assert not (rehearsal.folder / party.name / f"hospital-{party.name}").exists()
    with np.load(sites.coordinator / "run" / "labels.npz") as labels:
        assert labels["answered"].any()
