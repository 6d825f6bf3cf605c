"""Engines of simulated parties: shares of a GPU, and a real Ray without strangers or foreign code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment
from pate_fed.flower.engine import cores, gpu_share
from pate_fed.simulation import main

ROOT = Path(__file__).resolve().parents[2]

# As a command of ours: what happens to its Ray is written down by the coordinator's side.
COMMAND = """
from pate_fed.runtime import isolation
import json, os, signal, subprocess, sys, time
from pathlib import Path
import psutil
from pate_fed.flower import prepare_environment
prepare_environment()
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pate_fed.flower.engine import run_apps
from pate_fed.flower.records import from_flower, to_flower

folder = Path(sys.argv[1])
joining = "import ray, sys; ray.init(address=sys.argv[1]); print('joined')"
seen, facts = [], {}
signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
client, app = ClientApp(), ServerApp()

@client.query("path")
def path(message, context):
    return Message(to_flower({"path": os.pathsep.join(sys.path)}), reply_to=message)

def join(address, token):
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    if token != os.environ["RAY_AUTH_TOKEN"]:
        known["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # a stranger is not tried for 20 seconds
    return subprocess.Popen(
        [sys.executable, "-c", joining, address],
        env={**base, **known},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

@app.main()
def main(grid, context):
    import ray
    os.killpg(0, signal.SIGTERM)
    begun = time.monotonic()
    address, token = ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"]
    tried = {name: join(address, key) for name, key in (("none", ""), ("wrong", "0" * 64), ("own", token))}
    [reply] = grid.send_and_receive([Message(to_flower({}), list(grid.get_node_ids())[0], "query.path")])
    facts["path"] = from_flower(reply.content)["path"].split(os.pathsep)
    facts["joined"] = {name: "joined" in child.communicate(timeout=60)[0] for name, child in tried.items()}
    shown = " ".join(" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [file for file in session.rglob("*") if file.is_file()]
    facts["token shown"] = token in shown or any(token.encode() in file.read_bytes() for file in files)
    facts["files"] = len(files)
    time.sleep(max(0, begun + 4 - time.monotonic()))  # one second more than Ray's patience with SIGTERM

os.environ["RAY_AUTH_TOKEN"] = "the user's own"
run_apps(app, lambda: client, backend="ray", num_nodes=1, folder=folder)
facts["signals"] = len(seen)
facts["token after"] = os.environ["RAY_AUTH_TOKEN"]
print(json.dumps(facts))
"""

STUDY = """
[data.glyph]
classes = 3
private = 60
public = 60
[parties]
num_clients = 2
[queries]
labels = 5
batch_size = 20
"""


def _run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATE_FED_CACHE": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        start_new_session=True,
    )


def test_ray_keeps_strangers_foreign_code_and_signals_out(
    tmp_path: Path, plant_foreign_code: Callable[[Path], None]
) -> None:
    plant_foreign_code(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "r").mkdir()
    command = tmp_path / "bin" / "flower-simulation"
    command.write_text(COMMAND, encoding="utf-8")
    # An empty entry means the current folder.
    ended = _run([sys.executable, str(command), str(tmp_path / "r")], tmp_path, PYTHONPATH=f":{ROOT}")
    assert ended.returncode == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert facts["joined"] == {"none": False, "wrong": False, "own": True}
    assert facts["files"] > 5
    assert not facts["token shown"]
    assert facts["token after"] == "the user's own"
    assert str(tmp_path) not in facts["path"]
    assert "" not in facts["path"]
    # A signal to the whole process group reached the command alone, and Ray did not abort it.
    assert facts["signals"] == 1
    assert "Traceback" not in ended.stderr
    assert "\033" not in ended.stderr
    assert "*** SIGTERM received" not in ended.stderr


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
    assert cores() >= 1
