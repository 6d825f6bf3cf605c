"""deploy/: what can be checked of containers, compose, systemd and Kubernetes without an engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from clients.policy import Policy
from pate_fed import client, server
from pate_fed.cli import health
from pate_fed.cli.main import make_parser
from pate_fed.cli.parser import Parser
from pate_fed.config.study import study_from_dict
from pate_fed.identity import Authority, make_request

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CLUSTER_PAGE = DEPLOY.parent / "docs" / "cluster.md"
CONTAINERS = sorted((DEPLOY / "container").glob("*.Containerfile"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
MODULES = {"pate_fed.server:main": server, "pate_fed.client:main": client, "pate_fed.cli.health:main": health}
SCRIPTS = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def _check_command(command: list[str]) -> None:
    """The very command line: a console script of ours, and every option one that its parser knows."""
    parser: Parser = MODULES[SCRIPTS[Path(command[0]).name]].make_parser()
    parser.parse_args(command[1:])


def _instructions(path: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_container_file_is_slim_unprivileged_and_runs_a_real_command(path: Path) -> None:
    steps = list(_instructions(path))
    words = dict(steps)  # of each instruction the last: that of the final stage
    known = {
        "FROM",
        "COPY",
        "RUN",
        "ENV",
        "VOLUME",
        "WORKDIR",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "STOPSIGNAL",
        "ARG",
    }
    assert {word for word, _ in steps} <= known | {"ENTRYPOINT", "CMD"}
    assert "-slim" in words["FROM"]
    assert (DEPLOY / f"{words['ARG'].removeprefix('LOCK=')}.lock").is_file()
    user = words["USER"].split(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert words["RUN"] == f"install -d -o {user} -g {user} -m 0700 /state"  # a volume begins as this folder
    assert json.loads(words["VOLUME"]) == ["/state"]
    _check_command(json.loads(words["ENTRYPOINT"]) + json.loads(words["CMD"]))
    _check_command(json.loads(words["HEALTHCHECK"].partition("CMD")[2]))


def test_the_compose_file_names_what_exists_and_hardens_every_service() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert {key for key in compose if not key.startswith("x-")} == {"name", "services", "networks", "volumes"}
    hospitals = set(compose["services"]) - {"coordinator"}
    assert hospitals == {"north", "east", "south", "west"}
    assert set(compose["volumes"]) == set(compose["services"])
    for name, service in compose["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert set(service["networks"]) <= set(compose["networks"])
        named = {volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")}
        assert named <= set(compose["volumes"])
        # A hospital only connects outwards.
        assert ("ports" in service) == (name == "coordinator")
        if name != "coordinator":
            _check_command(["pate-fed-hospital", *service["command"]])


def _check_paths(command: list[str], mounts: dict[str, bool]) -> None:
    """Every path of a command lies where something is mounted, and what it writes where it may write."""
    for option, word in zip(["", *command], command, strict=False):
        if word.startswith("/"):
            [writable] = [may for place, may in mounts.items() if PurePath(word).is_relative_to(place)]
            assert writable or option not in ("--run-dir", "--state-dir"), word


def _final_stage(path: Path) -> dict[str, str]:
    return dict(_instructions(path))


def test_every_path_of_a_container_is_mounted_and_every_program_is_in_its_environment() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        words = _final_stage(DEPLOY / service["build"]["context"] / service["build"]["dockerfile"])
        split = [volume.split(":") for volume in service["volumes"]]
        mounts = {place: "ro" not in mode for _, place, *mode in split}
        command = service.get("command") or json.loads(words["CMD"])
        _check_paths(command, mounts)
        _check_paths(json.loads(words["HEALTHCHECK"].partition("CMD")[2]), mounts)
        assert words["ENV"].startswith("PATH=/opt/pate-fed/bin:$PATH ")
        assert words["COPY"] == "--from=build /opt/pate-fed /opt/pate-fed"
        homes = re.findall(r"(?:HOME|TMPDIR|PATE_FED_CACHE)=(\S+)", words["ENV"])
        assert len(homes) == 3 and all(mounts["/" + home.split("/")[1]] for home in homes)
    for path in MANIFESTS:
        [job] = [each for each in _documents(path) if each["kind"] == "Job"]
        [container] = job["spec"]["template"]["spec"]["containers"]
        mounts = {each["mountPath"]: not each.get("readOnly") for each in container["volumeMounts"]}
        _check_paths(container["args"], mounts)
        _check_paths(container["livenessProbe"]["exec"]["command"], mounts)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_every_path_of_a_unit_is_its_own_or_what_the_page_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    [state] = re.findall(r"^StateDirectory=(.+)$", text, re.M)
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    [told] = re.findall(r"(?m)^\| systemd \|.*$", page)
    assert "`/etc/pate-fed/" in told and "`/opt/pate-fed`" in told and "`/var/lib`" in told
    [command] = re.findall(r"^ExecStart=(.+)$", text, re.M)
    program, *options = shlex.split(command)
    assert PurePath(program).parent == PurePath("/opt/pate-fed/bin") and PurePath(program).name in SCRIPTS
    _check_paths(options, {"/etc/pate-fed": False, f"/var/lib/{state}": True})
    for word in options:
        assert not word.startswith("/etc/") or PurePath(word).name in told, word
    [place] = re.findall(r"^WorkingDirectory=(.+)$", text, re.M)
    assert place == f"/var/lib/{state}"


def test_the_compose_file_has_as_many_hospitals_as_the_default_policy_needs() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    hospitals = [name for name in compose["services"] if name != "coordinator"]
    table = {"label": "y", "classes": ["no", "yes"], "columns": {"x": "number"}}
    values = {"parties": {"num_clients": len(hospitals)}, "data": {"pool": "p.csv", "table": table}}
    study = study_from_dict(values).resolve()  # refuses masks for fewer than they can hide
    assert study.secrecy.secure_sum and not Policy().plain_votes
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    [folders] = re.findall(r"(?m)^\| containers \|.*$", page)
    for name in hospitals:
        [data, identity, state] = compose["services"][name]["volumes"]
        mounted = (f"./{name}/data:/data:ro", f"./{name}/identity:/identity:ro", f"{name}:/state")
        assert (data, identity, state) == mounted
        assert f"{name}/" in folders and name in folders.split("chown")[1].split("`")[0].split()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_systemd_unit_runs_a_real_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert command is not None
    _check_command(shlex.split(command[1].replace("%i", "north")))
    assert "User=pate-fed" in text
    assert "RestartPreventExitStatus=2 3 4 5 6" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong(path: Path, tmp_path: Path) -> None:
    # The interpreter is not installed there on a machine that only runs the tests.
    unit = tmp_path / path.name
    unit.write_text(
        path.read_text(encoding="utf-8").replace(f"/opt/pate-fed/bin/{path.stem.rstrip('@')}", "/bin/sh")
    )
    shown = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    ours = [line for line in shown.stderr.splitlines() if path.stem.rstrip("@") in line]
    assert not ours


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8").replace("HOSPITAL", "north")))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_whole_and_its_pods_are_locked_down(path: Path) -> None:
    documents = _documents(path)
    for document in documents:
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(document)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
    [job] = [document for document in documents if document["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    claims = {document["metadata"]["name"] for document in documents if "Claim" in document["kind"]}
    assert claims <= {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        locked = container["securityContext"]
        assert locked["readOnlyRootFilesystem"] is True
        assert locked["allowPrivilegeEscalation"] is False
        assert locked["capabilities"]["drop"] == ["ALL"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    [container] = pod["containers"]
    _check_command([f"pate-fed-{path.stem}", *container["args"]])
    _check_command(container["livenessProbe"]["exec"]["command"])


def test_a_cluster_lays_out_the_authority_and_keeps_revocations(tmp_path: Path) -> None:
    [job] = [each for each in _documents(DEPLOY / "kubernetes/coordinator.yaml") if each["kind"] == "Job"]
    [keys] = job["spec"]["template"]["spec"]["initContainers"]
    secret, state = tmp_path / "authority", tmp_path / "state"
    command = [
        word.replace("/state", str(state)).replace("/authority/*", f"{secret}/*") for word in keys["command"]
    ]
    made = Authority.init(tmp_path / "made", address="coordinator.example:9092", terms="{}", days=9)
    made.admit(make_request(tmp_path / "north", "north"), days=9)
    made.admit(make_request(tmp_path / "east", "east"), days=9)
    secret.mkdir()
    for file in made.folder.glob("*.*"):
        (secret / file.name).write_bytes(file.read_bytes())
    for file in made.folder.glob("hospitals/*.crt"):
        (secret / f"hospitals-{file.name}").write_bytes(file.read_bytes())
    subprocess.run(command, check=True)
    copied = Authority(state / "authority")
    assert copied.check_server() == [
        "the authority's certificate expires in 8 days",
        "the coordinator's certificate expires in 8 days",
    ]
    assert copied.ledger_key() is not None
    assert [name for name, _ in copied.admitted()] == ["east", "north"]
    copied.revoke("north")
    subprocess.run(command, check=True)  # the pod starts again, with the same Secret
    assert [name for name, _ in copied.admitted()] == ["east"]


def test_a_hospital_in_kubernetes_takes_no_connection() -> None:
    [policy] = [
        each for each in _documents(DEPLOY / "kubernetes/hospital.yaml") if each["kind"] == "NetworkPolicy"
    ]
    assert policy["spec"]["ingress"] == []
    assert {port["port"] for port in policy["spec"]["egress"][0]["ports"]} == {9092, 53}


PAGE = (DEPLOY / "README.md").read_text(encoding="utf-8")
PROGRAMS = {
    "pate-fed": make_parser,
    "pate-fed-coordinator": server.make_parser,
    "pate-fed-hospital": client.make_parser,
}


def _lines(page: str) -> list[str]:
    """Every command of the page, with its prompt, without its remark."""
    text = re.sub(r"\\\n", " ", page)
    return [
        line.split("  #")[0].strip() for line in re.findall(r"^(?:hospital|coordinator)\$ .+$", text, re.M)
    ]


@pytest.mark.parametrize("line", _lines(PAGE))
def test_every_command_of_the_page_is_one_that_its_program_knows(line: str) -> None:
    program, *options = shlex.split(line.partition("$")[2])
    if program == "pip":
        project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert options == ["install", f"{project['name']}[deploy]"]
        assert "deploy" in project["optional-dependencies"]
        return
    assert program in SCRIPTS
    PROGRAMS[program]().parse_args(options)


def test_from_installing_to_answered_votes_a_hospital_gives_at_most_four_commands() -> None:
    block = PAGE.split("## A study, command by command")[1].split("```")[1]
    asked, _, told = block.partition("coordinator$ pate-fed-coordinator")
    own = [line for line in _lines(asked) if line.startswith("hospital$")]
    assert len(own) == 4 and told
    assert "pip install" in own[0] and "hospital join" in own[-1]


def test_the_policies_on_the_page_are_read_and_the_default_is_as_it_says(tmp_path: Path) -> None:
    more, less, limits = re.findall(r"```toml\n(.*?)```", PAGE.split("## A hospital's policy")[1], re.S)
    path = tmp_path / "policy.toml"
    path.write_text(more)
    assert Policy.load(path) == Policy(
        plain_votes=True,
        uncapped=True,
        least_hospitals=2,
        seeded_noise=True,
        class_sums="exact",
        counts=True,
        teachers=("my_pkg.models:make",),
        feature_maps=("my_pkg.maps:make",),
        aggregators=("my_pkg.mech:MyMax",),
    )
    path.write_text(less)
    assert Policy.load(path).least_hospitals == 4
    assert Policy().class_sums == "noisy" and not Policy().counts
    assert "(default 3)" in more and Policy().least_hospitals == 3
    path.write_text(limits)
    assert Policy.load(path).epsilon_public_total == 6.0


def test_the_page_tells_of_every_file_and_nothing_else() -> None:
    page, cluster = (path.read_text(encoding="utf-8") for path in (DEPLOY / "README.md", CLUSTER_PAGE))
    kinds = r"`((?:container|systemd|kubernetes)/[\w.@-]+|compose\.yaml|[\w-]+\.lock|lock)`"
    named = set(re.findall(kinds, page)) | set(re.findall(r"deploy/(cluster/[\w.-]+)", cluster))
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()} - {"README.md"}
    assert named == files


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.lock")), ids=lambda path: path.stem)
def test_a_lock_has_a_hash_for_everything_and_all_that_is_declared(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=[a-z0-9])", text) if not entry.startswith("#")]
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==[^ ]+", entry) and "--hash=sha256:" in entry, entry
    assert "://" not in text
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["deploy"]
    wanted += [] if path.stem == "requirements" else extras["images"]
    locked = {
        entry.partition("==")[0]: Version(re.split("[ ;]", entry.partition("==")[2])[0]) for entry in entries
    }
    for requirement in map(Requirement, wanted):
        assert locked[requirement.name] in requirement.specifier, requirement
    assert ("torch" in locked) == (path.stem != "requirements")
    assert "ray" not in locked
