"""deploy/cluster/: what can be checked of the RayJob and the Slurm script without a cluster."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ray_nodes import short_folder

from pate_fed.config.options import study_from_arguments
from pate_fed.simulation import make_parser

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "cluster"
DOCUMENTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all((FOLDER / "rayjob.yaml").read_text(encoding="utf-8"))
}
SLURM = FOLDER / "slurm.sh"
PAGE = FOLDER.parents[1] / "docs" / "cluster.md"


def test_the_ray_job_runs_a_real_command_on_a_cluster_with_a_token() -> None:
    job = DOCUMENTS["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    spec = job["spec"]
    program, *options = shlex.split(spec["entrypoint"])
    assert program == "flower-simulation"
    arguments = make_parser().parse_args(options)
    assert arguments.run_dir == "/runs/study"
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    major, minor = map(int, cluster["rayVersion"].split(".")[:2])
    assert (major, minor) >= (2, 52)  # which brought the token
    assert spec["shutdownAfterJobFinishes"] is True and spec["backoffLimit"] == 0
    for group in cluster["workerGroupSpecs"]:
        # Nodes that come later play nobody.
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] >= 2


def test_the_ray_of_image_and_manifest_is_the_one_that_flower_pins() -> None:
    version = DOCUMENTS["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"]
    image = re.search(r"^FROM rayproject/ray:([0-9.]+)-", (FOLDER / "Containerfile").read_text(), re.M)
    assert image is not None and image[1] == version
    from importlib.metadata import requires

    pins = [line for line in requires("flwr") or [] if line.replace(" ", "").startswith("ray")]
    assert any(version in pin for pin in pins)


def _pods() -> list[dict[str, Any]]:
    spec = DOCUMENTS["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [spec["submitterPodTemplate"], *(group["template"] for group in groups)]


def test_the_network_policy_closes_every_pod_of_the_cluster() -> None:
    policy = DOCUMENTS["NetworkPolicy"]["spec"]
    wanted = policy["podSelector"]["matchLabels"]
    for pod in _pods():
        assert wanted.items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            assert container["image"] == "pate-fed-cluster"
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    inside, operator = policy["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": wanted}}]}
    assert [port["port"] for port in operator["ports"]] == [8265]
    assert all(rule["to"] for rule in policy["egress"])


def test_volumes_of_the_ray_job_are_claimed_or_made_by_the_page() -> None:
    head = DOCUMENTS["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    volumes = {each["name"]: each for each in head["volumes"]}
    mounted = {each["name"] for container in head["containers"] for each in container["volumeMounts"]}
    assert mounted == volumes.keys()
    claim = volumes["runs"]["persistentVolumeClaim"]["claimName"]
    assert claim == DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]
    assert f"create configmap {volumes['study']['configMap']['name']}" in PAGE.read_text(encoding="utf-8")


def test_the_slurm_script_is_bash_and_keeps_its_token_to_itself() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    assert SLURM.stat().st_mode & stat.S_IXUSR
    text = SLURM.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text and "umask 077" in text
    assert text.index("umask 077") < text.index("token_hex")
    assert not re.search(r"RAY_AUTH_TOKEN=", text)  # in a file, never in an environment that Slurm records
    command = text[text.index("\nflower-simulation") :].strip().replace('"$@"', "")
    options = shlex.split(re.sub(r'"\$address:\$port"', "10.0.0.1:6379", command))
    assert make_parser().parse_args(options[1:]) is not None


@pytest.mark.parametrize("command", re.findall(r"^flower-simulation .*$", PAGE.read_text(), re.M))
def test_commands_of_the_page_are_real(command: str) -> None:
    assert make_parser().parse_args(shlex.split(command)[1:]) is not None


def test_options_of_the_page_are_those_of_the_command(tmp_path: Path) -> None:
    keys = set(re.findall(r"^\| `--[a-z-]+.*? \| `([a-z_]+)` \|", PAGE.read_text(encoding="utf-8"), re.M))
    assert keys == {"ray_address", "shared_dir", "insecure_cluster", "gpus_per_client"}
    where = ["--ray-address", "10.0.0.1:6379", "--shared-dir", str(tmp_path), "--insecure-cluster"]
    study = study_from_arguments(make_parser().parse_args([*where, "--gpus-per-client", "0.5"]))
    assert {key: getattr(study.engine, key) for key in keys} == {
        "ray_address": "10.0.0.1:6379",
        "shared_dir": str(tmp_path),
        "insecure_cluster": True,
        "gpus_per_client": 0.5,
    }
    assert study.engine.backend == "ray"


_SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && echo "$1" >> "$HOME/nodes"
    shift
done
exec "$@"
"""

_STUDY = """
[study]
seed = 7
[data.glyph]
classes = 3
private = 60
public = 60
[privacy]
allow_weak = true
[parties]
num_clients = 2
[teacher]
name = "hog-linear"
[aggregation]
aggregator = "gnmax"
sigma2 = 0.5
[queries]
labels = 10
max_queries = 20
[student]
name = "supervised"
epochs = 1
"""


@pytest.fixture
def short() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.mark.slow
def test_the_slurm_script_runs_a_study_on_the_nodes_of_its_allocation(short: Path) -> None:
    """With srun and scontrol of our own: both nodes are this machine, each with a raylet."""
    tools = short / "tools"
    tools.mkdir()
    hosts = "#!/usr/bin/env bash\necho one\necho two\n"
    for name, text in (("srun", _SRUN), ("scontrol", hosts)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (short / "study.toml").write_text(_STUDY)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "[one,two]", "SLURM_CPUS_PER_TASK": "1"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **slurm,
        "HOME": str(short),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PATE_FED_VENV": sys.prefix,
        "PATE_FED_CACHE": str(short / "cache"),
        "RAY_TMPDIR": str(short),
        "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.01",
    }
    with (
        open(short / "said", "wb") as said,
        subprocess.Popen(
            ["bash", str(SLURM), "study.toml", "--run-dir", "run", "--device", "cpu"],
            cwd=short,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as script,
    ):
        tree: set[psutil.Process] = set()
        try:
            while script.poll() is None:  # Slurm would end all of a job's processes, and here we do
                tree |= set(psutil.Process(script.pid).children(recursive=True))
                time.sleep(0.2)
        finally:
            for each in [*tree]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
    told = (short / "said").read_text(errors="replace")
    assert script.returncode == 0, told
    assert "SUCCESS" in told and "a Ray cluster" in told
    assert (short / "nodes").read_text().split()[-2:] == ["--nodelist=one", "--nodelist=two"]
    assert not list(short.glob(".pate-fed-ray.*")), "the token is gone with the job"
