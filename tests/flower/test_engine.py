"""Engines of simulated parties: shares of a GPU, and a Ray that does not start.

A real Ray, without strangers or foreign code, is in tests/server/test_simulation.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.flower.engine import gpu_share
from pate_fed.simulation import main

STUDY = """
[data.glyph]
classes = 3
private = 60
public = 60
[privacy]
allow_weak = true
[parties]
num_clients = 2
[queries]
labels = 5
batch_size = 20
"""


def test_a_ray_that_does_not_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare_environment()
    import ray

    def init(*arguments: object, **named: object) -> None:
        # Ray's own error of a machine that is too busy.
        raise Exception("The current node timed out during startup. This could happen because it is busy.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    for name in ("PATE_FED_SITE", "PYTHONPATH"):  # the command sets them; the fixture takes them away again
        monkeypatch.setenv(name, "")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    options = ["--config", str(tmp_path / "study.toml"), "--backend", "ray", "--device", "cpu", "--quiet"]
    assert main([*options, "--run-dir", str(tmp_path / "run")]) == 1
    out, err = capfd.readouterr()
    assert "error: Ray does not start (The current node timed out" in err
    assert "Traceback" not in err
    assert out.splitlines()[-1].startswith("FAILED  ")


def test_without_torch_tables_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert gpu_share("auto", None, actors=4) == gpu_share("cpu", None, actors=4) == 0.0
    with pytest.raises(InputError, match=r"--device cuda needs torch: pip install 'pate-fed\[images\]'"):
        gpu_share("cuda", None, actors=4)


def test_without_a_gpu_parties_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpu_share("auto", None, actors=4) == 0.0
    assert gpu_share("cpu", 0.5, actors=4) == 0.0
    with pytest.raises(InputError, match="no GPU"):
        gpu_share("cuda", None, actors=4)


def test_parties_share_gpus_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (int(6.1e9), int(80e9)))
    assert gpu_share("auto", None, actors=16) == 1 / 4  # four parties' memory fits
    assert gpu_share("auto", None, actors=4) == 1 / 2  # never more parties than cores
    assert gpu_share("cuda", 0.1, actors=16) == 0.1
