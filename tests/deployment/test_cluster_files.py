"""deploy/cluster/: what can be checked of the RayJob and the Slurm script without a cluster."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
