"""The doctor's checks of this machine, and broken machines."""

from __future__ import annotations

import os
import re
import shutil
import time
import tomllib
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from pretend_card import pretend_card

from pate_fed.cli.doctor import machine
from pate_fed.cli.doctor.machine import PROBLEM, WARNING, Finding, Requirements, run_check
from pate_fed.privacy import SystemNoise
from pate_fed.secure_sum.masks import Masker

ROOT = Path(__file__).resolve().parents[3]


def _rows(ask: Any) -> list[Finding]:
    return list(run_check("it", ask))


def _requirements(**values: Any) -> Requirements:
    return Requirements(**{"what": "a study", "memory": 1.0, "files": 1, "folders": tuple, **values})


def test_too_small_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = _rows(partial(machine._open_files, _requirements(files=10**12)))
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "ulimit -n" in row.text
    (row,) = _rows(partial(machine._memory, _requirements(memory=1e18)))
    assert row.severity == WARNING and "end other programs" in row.text
    for free, result, code in ((10**6, PROBLEM, 6), (10**8, WARNING, 0), (10**12, "ok", 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        (row,) = _rows(partial(machine._disk, _requirements(folders=lambda: (tmp_path / "not" / "yet",))))
        assert (row.severity, row.exit_code) == (result, code)
        assert str(tmp_path) in row.text


def test_a_folder_that_cannot_be_written_and_none_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (row,) = _rows(partial(machine._disk, _requirements(folders=lambda: (tmp_path / "file" / "runs",))))
    assert (row.severity, row.exit_code) == (PROBLEM, 2) and "cannot be written" in row.text

    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    (row,) = _rows(partial(machine._flower, _requirements(deploys=True)))
    assert row.severity == WARNING and "TMPDIR" in row.text
    (row,) = _rows(partial(machine._disk, machine.simulation()))
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "temporary directory" in row.text


def test_a_gpu_that_torch_sees_and_one_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def old_driver() -> bool:
        warnings.warn("the NVIDIA driver is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old_driver)
    (row,) = _rows(machine._gpu)
    assert row.severity == WARNING and "driver is too old" in row.text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (139 * 10**9, 150 * 10**9))
    (row,) = _rows(partial(machine._gpu, "cpu"))
    assert row.severity == "ok" and "NVIDIA H200 (139.0 GB free)" in row.text and "gradients" not in row.text


def test_a_card_is_tried_beside_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    (row,) = _rows(partial(machine._gpu, "cuda:7"))
    assert (row.severity, row.exit_code) == (PROBLEM, 2) and "--device cuda:7" in row.text
    with pretend_card():
        (row,) = _rows(machine._gpu)
        assert row.severity == "ok" and row.text.endswith("gradients on cuda are the CPU's to 0e+00")
        monkeypatch.setattr(torch.Tensor, "square", lambda each: each * each * (1 + 0.1 * each.is_cuda))
        (row,) = _rows(partial(machine._gpu, "cuda"))
        assert (row.severity, row.exit_code) == (PROBLEM, 1) and "other gradients" in row.text


@pytest.mark.parametrize(
    ("mask", "result"), [(0o022, "ok"), (0o077, "ok"), (0o000, WARNING), (0o700, PROBLEM)]
)
def test_permissions_of_new_files(mask: int, result: str) -> None:
    before = os.umask(mask)
    try:
        (row,) = _rows(machine._permissions)
        assert os.umask(mask) == mask  # looking does not change it
    finally:
        os.umask(before)
    assert row.severity == result


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    (row,) = _rows(machine._clock)
    assert row.severity == PROBLEM and "1970-01-01" in row.text and "set the clock" in row.text


@pytest.mark.parametrize(("kept", "result"), [(True, "ok"), (False, WARNING), (None, "ok")])
def test_a_clock_that_nobody_keeps(kept: bool | None, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_is_synchronised", lambda: kept)
    (row,) = _rows(machine._clock)
    assert row.severity == result


def test_masks_that_do_not_cancel_and_noise_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _rows(machine._masks)[0].severity == "ok"
    monkeypatch.setattr(Masker, "take", lambda self, total, key: None)
    (row,) = _rows(machine._masks)
    assert (row.severity, row.exit_code) == (PROBLEM, 6)
    for drawn in (lambda: np.zeros(4000), lambda: np.random.default_rng().normal(0, 20, 4000)):
        monkeypatch.setattr(SystemNoise, "discrete_gaussian", lambda self, shape, sigma, drawn=drawn: drawn())
        (row,) = _rows(machine._noise)
        assert row.severity == PROBLEM and "spread" in row.text


def test_another_line_of_flower_simulates_and_deploys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "version", lambda name: "1.42.0")
    (row,) = _rows(partial(machine._flower, _requirements()))
    assert row.severity == "ok" and "Flower 1.42.0" in row.text and "pate-fed[deploy]" in row.text
    (row,) = _rows(partial(machine._flower, _requirements(deploys=True)))
    assert (row.severity, row.exit_code) == (PROBLEM, 2) and "pate-fed[deploy]" in row.text


def test_a_version_that_was_not_tried_is_told() -> None:
    tried = {name: newest for name, (_, newest) in machine._TRIED.items()}
    assert machine._untried({**tried, "flwr": "1.39.2", "numpy": "2.0"}) == ()
    [told] = machine._untried({**tried, "numpy": "3.0.1", "torch": "2.5.9", "Python": "3.14.0"})
    assert "numpy 3.0.1 (was: 2.0 to 2.5), torch 2.5.9" in told.replace(
        "Python 3.14.0 (was: 3.11 to 3.13), ", ""
    )
    assert "Python 3.14.0" in told and "flwr" not in told


def test_what_was_tried_is_what_is_declared_and_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    ours = ("images", "simulation", "deploy", "cluster", "dicom", "onnx")
    wanted = [*project["dependencies"], *(each for extra in ours for each in extras[extra])]
    declared = [each for each in map(Requirement, wanted) if each.name != "pate-fed"]
    assert {each.name for each in declared} == machine._TRIED.keys() - {"Python", "ray"}
    for each in declared:
        lowest = next(spec.version for spec in each.specifier if spec.operator == ">=")
        assert machine._untried({each.name: lowest}) == (), each
    locks = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "deploy").glob("*.lock"))
    for name, version in re.findall(r"(?m)^([a-z0-9-]+)==([0-9.]+)", locks):
        if name in machine._TRIED:
            assert machine._untried({name: version}) == (), name
