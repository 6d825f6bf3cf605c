"""The run directory, and the folder of the simulated parties' disks."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from pate_fed.config.study import Study, read_study
from pate_fed.errors import InputError
from pate_fed.runtime import run_dir
from pate_fed.runtime.run_dir import (
    check_writable,
    choose_run_dir,
    claim_run_dir,
    disk_on_node,
    fresh_run_dir,
    read_status,
    simulated_disks,
)


def test_a_directory_that_holds_a_run_or_is_a_file_is_refused(tmp_path: Path) -> None:
    assert fresh_run_dir(str(tmp_path / "new" / "run"), "x") == tmp_path / "new" / "run"
    assert list(tmp_path.iterdir()) == []  # nothing is made yet
    (tmp_path / "metrics.json").touch()
    with pytest.raises(InputError, match=r"already holds a run \(metrics.json\)"):
        fresh_run_dir(str(tmp_path), "x")
    with pytest.raises(InputError, match="a file of that name exists"):
        fresh_run_dir(str(tmp_path / "metrics.json"), "x")
    with pytest.raises(InputError, match=r"--x .*: .*metrics.json cannot be written"):
        check_writable(tmp_path / "metrics.json" / "below", option="--x")


def test_only_this_study_s_own_unfinished_run_is_gone_on_with(tmp_path: Path) -> None:
    study = Study().resolve()

    def chosen() -> tuple[Path, bool]:
        return choose_run_dir(str(tmp_path), "x", lambda held: read_study(held) == study)

    assert chosen() == (tmp_path, False)
    (tmp_path / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    assert chosen() == (tmp_path, True)
    (tmp_path / "metrics.json").write_text('{"status": "success"}', encoding="utf-8")
    with pytest.raises(InputError, match="finished"):
        chosen()
    (tmp_path / "metrics.json").write_text('{"status": "failed", "seed": 1}', encoding="utf-8")
    assert chosen() == (tmp_path, True)


@pytest.mark.parametrize("text", ["", "[]", '{"status": 1}', '{"seed": 1}', "[" * 100_000])
def test_a_damaged_metrics_file_does_not_pass_for_none(tmp_path: Path, text: str) -> None:
    assert read_status(tmp_path) is None
    (tmp_path / "study.toml").touch()
    (tmp_path / "metrics.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"metrics\.json: not the metrics of a run: remove it"):
        choose_run_dir(str(tmp_path), "x", lambda held: True)


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "pate-fed-killed"
    left.mkdir()
    (left / "lock").touch()
    (left / "teacher-0.pt").touch()
    with simulated_disks() as used:
        assert not left.exists()
        with simulated_disks() as other:
            assert used.exists()
            assert used != other
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_begins_beside_another_does_not_take_its_disks_for_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def late(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:  # at this moment another run looks for what was left over
            run_dir._remove_all_unused(tmp_path)
        lock(file, how)

    monkeypatch.setattr(run_dir.fcntl, "flock", late)
    with simulated_disks(tmp_path) as folder:
        assert (folder / "lock").exists()


def test_the_processes_of_a_node_share_a_disk_that_the_last_one_takes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "pate-fed-killed"
    left.mkdir()
    (left / "lock").touch()
    with disk_on_node("run-node") as first:
        assert not left.exists() and first.stat().st_mode & 0o777 == 0o700
        with disk_on_node("run-node") as second, simulated_disks() as other:
            assert first == second != other
        assert first.exists() and not other.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_of_a_node_that_others_could_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "pate-fed-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "pate-fed-open").mkdir()
    (tmp_path / "pate-fed-open").chmod(0o755)
    for name in ("link", "open"):
        with pytest.raises(InputError, match="not this user's alone"), disk_on_node(name):
            pass


def test_disks_may_lie_where_all_nodes_see_them(tmp_path: Path) -> None:
    with simulated_disks(tmp_path) as folder:
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_killed_while_it_claims_its_directory_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("pate_fed.disk.os.fsync", "pate_fed.runtime.run_dir.os.link"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(name, killed)
            claim_run_dir(tmp_path, "[study]\n")
        assert choose_run_dir(str(tmp_path), "x", lambda held: False) == (tmp_path, False)
    claim_run_dir(tmp_path, "[study]\n")
    assert (tmp_path / "study.toml").read_text(encoding="utf-8") == "[study]\n"
    assert oct((tmp_path / "study.toml").stat().st_mode)[-3:] == "600"
    with pytest.raises(InputError, match="another run has it"):
        claim_run_dir(tmp_path, "[study]\n")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".part" and path.name != "study.toml"]
