"""The command `pate-fed doctor`: its options, which side they are about, and the table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import DECIMAL, Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.errors import InputError, PateFedError
from pate_fed.format import counted, printable

if TYPE_CHECKING:
    from pate_fed.cli.doctor.coordinator import CoordinatorSide
    from pate_fed.cli.doctor.hospital import HospitalSide
    from pate_fed.cli.doctor.machine import Finding

_HOSPITAL = ("hospital", "data", "pool", "policy", "server", "state_dir")
_COORDINATOR = ("address", "num_clients", "run_dir")
_INDENT = 23  # severity and check before the text


class _Simulation:
    """A machine that simulates studies: nothing else is checked."""

    def __init__(self) -> None:
        from pate_fed.cli.doctor.machine import simulation

        self.requirements = simulation()

    def findings(self) -> Iterator[Finding]:
        return iter(())

    def not_checked(self) -> list[str]:
        return [
            "a hospital (--hospital, --data, --tls-dir, --policy, --server)",
            "a coordinator (--config, --tls-dir, --address)",
        ]


def add_doctor_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `doctor`."""
    doctor = add_command(
        commands,
        "doctor",
        "whether this machine, a hospital or a coordinator is ready for a study",
        description="Looks for what would stop a study before it starts. Changes nothing, sends nothing, and "
        "connects to --server alone. The exit code is 0, or that of the study's own command at the first "
        "problem.",
    )
    hospital = doctor.add_argument_group("at a hospital, as python -m pate_fed.client takes them")
    add_option(hospital, "--hospital NAME", "this hospital's name")
    add_option(hospital, "--data PATH", "its records; what they hold is shown on a terminal only")
    add_option(hospital, "--pool PATH", "its copy of the public inputs")
    add_option(hospital, "--decimal", DECIMAL, choices=("point", "comma"))
    add_option(hospital, "--policy FILE", "its policy.toml (default: the one in --tls-dir)")
    add_option(hospital, "--server HOST:PORT", "the coordinator's address, which is connected to")
    add_option(hospital, "--state-dir DIR", "its state (default: as the client's)")
    coordinator = doctor.add_argument_group("at the coordinator, as python -m pate_fed.server takes them")
    add_option(coordinator, "--address HOST:PORT", "where hospitals connect to")
    add_option(
        coordinator, "--num-clients N", "hospitals (default: the study's)", aliases=("--num-hospitals",)
    )
    add_option(coordinator, "--run-dir DIR", "where the run's files go (default runs/NAME-TIME)")
    both = doctor.add_argument_group("at either")
    add_option(both, "--device NAME", "cpu, cuda or auto: where models are to learn", default="auto")
    add_option(both, "--tls-dir DIR", "the hospital's identity, or the folder of study init")
    add_option(both, "--config FILE", "a study.toml; at a hospital: how the study reads --data")
    add_format_option(both)
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.doctor.machine import PROBLEM, WARNING

    try:
        side = _side(arguments)
    except ImportError as error:
        raise PateFedError(
            f"pate_fed is not whole here ({error}): install it again; pate-fed doctor without options says "
            "more"
        ) from error
    as_json = arguments.format == "json"
    findings = _findings(side, arguments.device)
    found = list(findings) if as_json else show_findings(findings)
    code = next((finding.exit_code for finding in found if finding.severity == PROBLEM), 0)
    not_checked = side.not_checked()
    if as_json:
        checks = [{"check": each.check, "result": each.severity, "said": each.file_text} for each in found]
        print(json.dumps({"exit_code": code, "checks": checks, "not_checked": not_checked}))
        return code
    if not_checked:
        _show("-", "not looked at", "; ".join(not_checked))
    problems, warnings = (sum(each.severity == kind for each in found) for kind in (PROBLEM, WARNING))
    print(_outcome(problems, warnings))
    return code


def show_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as it comes; counts of records are for a terminal only."""
    own_terminal, found = sys.stdout.isatty(), []
    for finding in findings:
        found.append(finding)
        _show(finding.severity, finding.check, finding.text if own_terminal else finding.file_text)
    return found


def _findings(side: HospitalSide | CoordinatorSide | _Simulation, device: str) -> Iterator[Finding]:
    from pate_fed.cli.doctor.machine import machine_findings

    yield from side.findings()
    yield from machine_findings(side.requirements, device)  # known once the study is read


def _side(arguments: argparse.Namespace) -> HospitalSide | CoordinatorSide | _Simulation:
    """The side whose options were given; without any of them a machine that simulates."""
    hospital, coordinator = (
        [name for name in names if getattr(arguments, name) is not None]
        for names in (_HOSPITAL, _COORDINATOR)
    )
    if hospital and coordinator:
        one, other = (f"--{names[0].replace('_', '-')}" for names in (hospital, coordinator))
        raise InputError(f"{one} is a hospital's and {other} a coordinator's: one side at a time")
    keys = None if arguments.tls_dir is None else Path(arguments.tls_dir)
    if not hospital and (coordinator or arguments.config or (keys and (keys / "study.json").exists())):
        from pate_fed.cli.doctor.coordinator import CoordinatorSide

        return CoordinatorSide(arguments)
    if hospital or keys:
        from pate_fed.cli.doctor.hospital import HospitalSide

        return HospitalSide(arguments)
    return _Simulation()


def _show(severity: str, check: str, text: str) -> None:
    """Print one line, broken under its text where a terminal is too narrow for it.

    Some text comes from others, as a certificate's names do: nothing in it moves the cursor.
    """
    line = f"{severity:<8} {check:<13} {printable(text, '?')}"
    print_lines([line], indent=_INDENT)


def _outcome(problems: int, warnings: int) -> str:
    if not problems and not warnings:
        return "nothing is wrong"
    found = [counted(*each) for each in ((problems, "problem"), (warnings, "warning")) if each[0]]
    return " and ".join(found) + ("" if problems else "; nothing that would stop a study")
