"""The reference's pages of commands and of files: from their parsers and their settings' declarations."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from json_schema import json_schema, study_schema
from tables import cell, page, table

from clients.policy import Policy
from pate_fed import client, server, simulation
from pate_fed.cli import health
from pate_fed.cli.main import make_parser
from pate_fed.config.options import study_options
from pate_fed.format import delta_text

# Every program by the name of its command, and what makes its parser.
PROGRAMS = {
    "flower-simulation": simulation.make_parser,
    "pate-fed": make_parser,
    "pate-fed-coordinator": server.make_parser,
    "pate-fed-hospital": client.make_parser,
    "pate-fed-health": health.make_parser,
}


def commands() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        "",
        "`--help` of each says the same. An option of a study is a key of [study.toml](study-toml.md), too.",
        "",
    ]
    every = [each for name, make in PROGRAMS.items() for each in _every(name, make())]
    lines += table(("command", "does"), ((f"`{name}`", cell(does)) for name, does in every))
    for name, make in PROGRAMS.items():
        lines += _command(name, make(), level=2)
    return page(lines)


def examples() -> str:
    """Every script of examples/ with what it shows."""
    files = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
    trees = {each.name: ast.parse(each.read_text(encoding="utf-8")) for each in files}
    said = {name: (ast.get_docstring(tree) or "").split("\n\n")[0] for name, tree in trees.items()}
    rows = ((f"[`{name}`](../../examples/{name})", cell(text)) for name, text in said.items())
    lines = ["# Examples", "", "Scripts that run as they are, each held by a test.", ""]
    return page([*lines, *table(("script", "what it shows"), rows)])


def _every(name: str, parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, str]]:
    """Every command below a parser, and itself, with the first sentence of what it does."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        first = inspect.cleandoc(parser.description or above).split("\n\n")[0]
        yield name, re.split(r"(?<=[.;])\s", " ".join(first.split()))[0].rstrip(":;.")
    for action in below:
        for word, inner in action.choices.items():
            yield from _every(f"{name} {word}", inner, parser.description or "")


def _command(name: str, parser: argparse.ArgumentParser, *, level: int) -> Iterator[str]:
    subcommands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    told = [
        action
        for action in parser._actions
        if action not in subcommands and "--help" not in action.option_strings
    ]
    yield f"{'#' * level} {name}"
    yield ""
    if parser.description:
        yield _told(parser.description)
        yield ""
    if told:
        yield from table(("argument", "meaning"), (_argument(action) for action in told))
    for found in subcommands:
        for below, inner in found.choices.items():
            yield from _command(f"{name} {below}", inner, level=min(level + 1, 4))
    if parser.epilog:
        yield from ["```text", inspect.cleandoc(parser.epilog), "```", ""]


def _told(text: str) -> str:
    """A description's own first paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _argument(action: argparse.Action) -> tuple[str, str]:
    several = {"+": " …", "*": " …"}.get(str(action.nargs), "")
    value = action.metavar or ("" if action.nargs == 0 else "\\|".join(map(str, action.choices or ())))
    shown = f"{value}{several}" if action.nargs != 0 else ""
    names = ", ".join(action.option_strings)
    said = (action.help or "").replace("%%", "%")
    if action.option_strings and action.required:
        said += " (required)"
    return f"`{' '.join(part for part in (names, shown) if part)}`".replace("\\|", " or "), cell(said)


def study_toml() -> str:
    """Every key of a study's file."""
    flags = {key: entry.setting.flags[0] for key, entry in study_options().items()}
    schema = study_schema()
    order = ["study", *(name for name in schema["properties"] if name != "study")]
    lines = [
        "# study.toml",
        "",
        "Every key of a study. All are optional: what is left out has the default, or is chosen for the",
        "study. `pate-fed study new` writes such a file with every key explained.",
        "",
    ]
    for section in order:
        keys = _resolved(schema["properties"][section], schema)
        lines += [f"## [{section}]", ""]
        lines += _keys(
            keys,
            {key.split(".")[1]: flag for key, flag in flags.items() if key.startswith(f"{section}.")},
        )
        for name, value in keys["properties"].items():
            if "$ref" in value:
                lines += [f"### [{section}.{name}]", "", *_keys(_resolved(value, schema), {})]
    return page(lines)


def policy_toml() -> str:
    """Every key of a hospital's policy."""
    schema = json_schema(Policy, title="policy")
    lines = [
        "# policy.toml",
        "",
        "What a hospital agrees to. Without a file the defaults hold, and they protect: votes leave under",
        "masks only, class sums with the hospital's own noise, in studies with caps, over at least 3",
        "hospitals, and with noise that is not seeded. [A hospital's",
        "policy](../../deploy/README.md#a-hospitals-policy) has examples.",
        "",
        *_keys(schema, {}),
    ]
    return page(lines)


def _resolved(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else value
    return found


def _keys(keys: dict[str, Any], flags: dict[str, str]) -> Iterator[str]:
    rows = []
    for name, value in keys["properties"].items():
        if "$ref" in value:
            continue  # a table of its own
        option = f" (`{flags[name]}`)" if name in flags else ""
        rows.append(
            (f"`{name}`{option}", cell(_kind(value)), _default(value), cell(value.get("description", "")))
        )
    yield from table(("key", "type", "default", "meaning"), rows)


_KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "table",
}


def _kind(value: dict[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(f"`{choice}`" for choice in value["enum"])
    if "anyOf" in value:
        kinds = [_kind(each) for each in value["anyOf"] if each.get("type") != "null"]
        return " or ".join("`module:attribute`" if kind == "pattern" else kind for kind in kinds)
    if "pattern" in value and "type" not in value:
        return "pattern"
    if value.get("type") == "array":
        inner = value.get("items", {})
        if "enum" in inner:
            return f"list of {_kind(inner)}"
        return f"list of {_kind(inner)}s" if inner else f"list of {len(value.get('prefixItems', ()))} numbers"
    kind = _KINDS.get(value.get("type", ""), "table")
    bounds = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("exclusiveMaximum", "below"),
    )
    return " ".join([kind, *(f"{word} {_number(value[name])}" for name, word in bounds if name in value)])


def _number(value: float) -> str:
    return "2^63 - 1" if value == 2**63 - 1 else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(value: dict[str, Any]) -> str:
    if "default" not in value or value["default"] in ("", [], {}):
        return "-"
    default = value["default"]
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{delta_text(default)}`" if isinstance(default, float) and default < 0.01 else f"`{default}`"
