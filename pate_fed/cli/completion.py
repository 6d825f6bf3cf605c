"""`pate-fed completion`: what a shell needs to complete our commands."""

from __future__ import annotations

import argparse
from functools import partial

from pate_fed.cli.parser import Parser, RawHelpFormatter, add_command

_HOW = """\
for this session:  eval "$(pate-fed completion bash)"
for good:          put that line at the end of ~/.bashrc"""


def add_completion_command(commands: argparse._SubParsersAction[Parser], parser: Parser) -> None:
    """Register `completion`; `parser` is that of all commands."""
    completion = add_command(
        commands,
        "completion",
        "a script that completes commands in a shell",
        epilog=_HOW,
        formatter_class=RawHelpFormatter,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="for which shell")
    completion.set_defaults(run=partial(_completion, parser))


def _completion(of_all: Parser, arguments: argparse.Namespace) -> int:
    import shtab

    from pate_fed import client, server, simulation

    study = simulation.make_parser()
    _offer_choices(study)
    for prog, parser in (
        ("pate-fed", of_all),
        ("flower-simulation", study),
        ("pate-fed-coordinator", server.make_parser()),
        ("pate-fed-hospital", client.make_parser()),
    ):
        parser.prog = prog
        print(shtab.complete(parser, shell=arguments.shell, root_prefix=prog.replace("-", "_")))
    return 0


def _offer_choices(parser: argparse.ArgumentParser) -> None:
    """The names that a setting may have; parsing leaves them to the study, which says more of a wrong one."""
    from pate_fed.config.options import study_options

    choices = {
        flag: entry.setting.choices for entry in study_options().values() for flag in entry.setting.flags
    }
    for action in parser._actions:
        action.choices = action.choices or choices.get(next(iter(action.option_strings), "")) or None
