"""A shell completes our commands, their options, and the names that a study's settings may have."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from pate_fed.cli.main import main


@pytest.fixture(scope="module")
def script() -> str:
    import contextlib
    import io

    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        assert main(["completion", "bash"]) == 0
    return written.getvalue()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes(script: str) -> None:
    def completed(*words: str) -> list[str]:
        name = words[0].replace("-", "_")
        typed = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_{name}; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            ["bash", "--norc"], input=f"{script}\n{ask}\n", capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("pate-fed", "stu") == ["study"]
    assert "schema" in completed("pate-fed", "study", "")
    assert "--teacher" in completed("flower-simulation", "--teach")
    assert completed("flower-simulation", "--student", "pate") == ["pate+", "pate++"]
    assert "--state-dir" in completed("pate-fed-hospital", "--st")
    assert "--num-clients" in completed("pate-fed-coordinator", "--num")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "flower-simulation" in capsys.readouterr().out


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "schema"]) == 0
    assert "parties" in json.loads(capsys.readouterr().out)["properties"]
    assert main(["study", "schema", "--policy"]) == 0
    assert "plain_votes" in json.loads(capsys.readouterr().out)["properties"]
