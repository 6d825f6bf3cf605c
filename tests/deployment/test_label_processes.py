"""Private labels at hospitals with processes of their own: each has its own file, noise and disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.main import main

NAMES = ("north", "east", "south", "west")
CLI = ("-m", "pate_fed.cli")


def _write_records(folder: Path) -> np.ndarray:
    """240 public images whose bright stripe tells the class, of three; a file of labels a hospital."""
    rng, label = np.random.default_rng(0), np.arange(240) % 3
    images = rng.integers(0, 50, (240, 16, 16, 1))
    for row in range(4):
        images[np.arange(240), 5 * label + row] += 150
    np.save(folder / "images.npy", images.astype(np.uint8))
    for name, part in zip(NAMES, np.array_split(rng.permutation(240), 4), strict=True):
        rows = "".join(f"{index},{label[index]}\n" for index in part)
        (folder / f"{name}.csv").write_text(f"index,label\n{rows}")
    return label


def _command(method: str, *more: str) -> list[str]:
    records = ["--dataset", "files", "--images", "images.npy", "--classes", "3"]
    records += ["--clusters", "6"] if method == "noise-cluster" else []
    return ["label-dp", *records, "--epsilon", "3", "--method", method, "--hospitals", "4", *more]


@pytest.mark.slow
def test_hospitals_answer_once_and_the_same_again(rehearsal: Any) -> None:
    truth, folder = _write_records(rehearsal.folder), rehearsal.folder
    labels = []
    for attempt in ("first", "again"):
        more = ["--address", rehearsal.address, "--insecure", "--out", attempt]
        server = rehearsal.start(attempt, *CLI, *_command("randres+normal", *more))
        hospitals = [
            rehearsal.start(
                f"{name}-{attempt}",
                *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv", "--insecure"),
                *("--server", rehearsal.address, "--state-dir", f"hospital-{name}"),
            )
            for name in NAMES
        ]
        assert server.wait() == 0, server.text
        assert [party.wait(60) for party in hospitals] == [0] * 4
        assert f"answered{' again' * (attempt == 'again')}: 240 rows" in hospitals[0].text
        assert hospitals[0].last_line.startswith("SUCCESS  hospital=north ε=3 δ=0 labels=240")
        assert "hospitals: 4 of 4 answered" in server.text and "true labels" not in server.text
        labels.append(np.load(folder / attempt / "labels.npz")["label"])
    np.testing.assert_array_equal(*labels)
    assert 0.8 < (labels[0] == truth).mean() < 1
    metrics = json.loads((folder / "again" / "metrics.json").read_text())
    assert metrics["privacy"]["private"] and metrics["hospitals"]["backend"] == "grpc"
    assert metrics["from_true_labels_do_not_publish"] == {}
    # A larger ε for the same labels is refused by all of them.
    more = ["--address", rehearsal.address, "--insecure", "--out", "more", "--wait", "30"]
    server = rehearsal.start("more", *CLI, *_command("lp-1st", "--epsilon", "4", *more))
    for name in NAMES:
        rehearsal.start(
            f"{name}-more",
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv", "--insecure"),
            *("--server", rehearsal.address, "--state-dir", f"hospital-{name}"),
        )
    assert server.wait() == 4, server.text
    assert [party.wait(60) for party in rehearsal.parties[-4:]] == [4] * 4
    assert "asked about its labels before, under other terms" in server.text
    assert not len(np.load(folder / "more" / "labels.npz")["label"])


ALONE = "least_confirmed = 0\nleast_colluders = 0\n"  # nobody is there to be telephoned


@pytest.mark.slow
def test_admitted_hospitals_count_under_masks_over_tls(
    rehearsal: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rehearsal.folder
    truth = _write_records(folder)
    monkeypatch.chdir(folder)
    address = rehearsal.address.replace("127.0.0.1", "localhost")
    assert main(_command("noise-cluster", "--init", "keys", "--address", address)) == 0
    assert "admit each hospital with pate-fed study admit" in capsys.readouterr().out
    for name in NAMES:
        assert main(["hospital", "request", "--name", name, "--dir", f"id-{name}"]) == 0
        admission = f"{name}.admission"
        request = f"id-{name}/{name}.req"
        assert main(["study", "admit", request, "--dir", "keys", "--out", admission]) == 0
        assert main(["hospital", "accept", admission, "--yes", "--dir", f"id-{name}"]) == 0
    (folder / "policy.toml").write_text(f"epsilon_public = 3.0\n{ALONE}")
    command = _command("noise-cluster", "--tls-dir", "keys", "--out", "out")
    server = rehearsal.start("server", *CLI, *command)
    hospitals = [
        rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv"),
            *("--tls-dir", f"id-{name}", "--policy", "policy.toml"),
        )
        for name in NAMES
    ]
    assert server.wait() == 0, server.text
    assert [party.wait(60) for party in hospitals] == [0] * 4
    assert "answered under masks: 6 rows" in hospitals[0].text
    own = rehearsal.state_of("north")
    files = [
        path for each in ("*", "answered/*", "secure_sum/*") for path in own.glob(each) if path.is_file()
    ]
    assert files and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    label = np.load(folder / "out" / "labels.npz")["label"]
    assert (label == truth).mean() > 0.9
    metrics = json.loads((folder / "out" / "metrics.json").read_text())
    assert metrics["privacy"]["epsilon"] <= 3 and metrics["hospitals"]["left_out"] == []
    capsys.readouterr()
    # The keys are for this study alone.
    assert main([*command[:-1], "other", "--epsilon", "2"]) == 2
    assert "not the one that keys was made for" in capsys.readouterr().err


# The coordinator as it is, but it kills itself when a call has returned.
DYING = (
    "-c",
    "import importlib, os, signal, sys\n"
    "module, owner, name = sys.argv[1].split(':')\n"
    "owner = getattr(importlib.import_module(module), owner)\n"
    "whole = getattr(owner, name)\n"
    "def dying(*arguments, **named):\n"
    "    whole(*arguments, **named)\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
    "setattr(owner, name, dying)\n"
    "from pate_fed.cli.main import main\n"
    "sys.exit(main(sys.argv[2:]))\n",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    ["server.masked:MaskedRounds:close", "server.state:CoordinatorState:keep_totals"],
    ids=["roster", "sum"],
)
def test_a_coordinator_killed_amid_a_count_goes_on(rehearsal: Any, moment: str) -> None:
    truth, folder = _write_records(rehearsal.folder), rehearsal.folder
    command = _command("noise-cluster", "--address", rehearsal.address, "--insecure", "--out", "out")
    (folder / "policy.toml").write_text(ALONE)
    dying = rehearsal.start("dying", *DYING, moment, *command)
    hospitals = [
        rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv", "--insecure"),
            *("--server", rehearsal.address, "--policy", "policy.toml"),
        )
        for name in NAMES
    ]
    assert dying.wait() == -9, dying.text
    server = rehearsal.start("server", *CLI, *command)
    assert server.wait() == 0, server.text
    assert [party.wait(60) for party in hospitals] == [0] * 4, hospitals[0].text
    assert (np.load(folder / "out" / "labels.npz")["label"] == truth).mean() > 0.9
    for name in NAMES:
        log = (folder / f"hospital-{name}" / "log.jsonl").read_text()
        assert log.count('"event": "answered"') == 1
    assert "hospitals: 4 of 4 answered" in server.text
