"""The reference's pages of code: the Python API and the messages from their docstrings, and exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cached_property
from typing import Any

from tables import cell, page, table

from pate_fed import errors
from pate_fed.protocol import messages
from pate_fed.protocol.messages import Refusal
from pate_fed.runtime.signals import INTERRUPTED
from pate_fed.secure_sum import messages as masked
from pate_fed.structure import entries

_API = (
    ("pate_fed", "Studies"),
    ("pate_fed.privacy", "Accounting; NumPy and SciPy only"),
    ("pate_fed.data", "Data sets and partitions"),
    ("pate_fed.testing", "For tests of parts of your own"),
    ("pate_fed.learning", "Teachers and students; names that need torch are imported when first asked for"),
    ("pate_fed.bench", "Methods that are compared"),
)


def python_api() -> str:
    """The public names of the packages, by their docstrings."""
    lines = [
        "# Python API",
        "",
        "The public names, by their docstrings. [Studies from Python](../python.md) begins with examples.",
        "",
    ]
    for name, title in _API:
        module = __import__(name, fromlist=["*"])
        lines += [f"## {name}", "", f"{title}. {_first(module.__doc__)}", ""]
        for public in sorted(_public(module), key=str.lower):
            if not public.startswith("__"):
                lines += _described(public, getattr(module, public))
    return page(lines)


def _public(module: Any) -> list[str]:
    """A package's `__all__`; of a file what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    named = {name: getattr(thing, "__module__", None) for name, thing in vars(module).items()}
    return [name for name, home in named.items() if home == module.__name__ and not name.startswith("_")]


def _first(doc: str | None) -> str:
    return " ".join((inspect.cleandoc(doc or "")).split("\n\n")[0].split())


def _described(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if not callable(thing):
        shown = repr(thing)
        yield from ["```text", f"{name} = {shown if len(shown) < 300 else type(thing).__name__}", "```", ""]
        return
    if not getattr(thing, "_is_protocol", False):
        yield from ["```text", *_signature(name, thing), "```", ""]
    yield from _docstring(thing.__doc__)
    if inspect.isclass(thing):
        yield from _members(thing)


def _signature(name: str, thing: Any) -> list[str]:
    """A call on one line, or with an argument a line; defaults that are objects are told by their class."""
    signature = inspect.signature(thing)
    kinds = []
    for each in signature.parameters.values():
        default = each.default
        text = f"{each.name}: {each.annotation}" if each.annotation is not each.empty else each.name
        if default is not each.empty:
            text += f" = {default!r}" if len(repr(default)) < 40 and " at 0x" not in repr(default) else " = …"
        kinds.append(
            (each.kind, {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "") + text)
        )
    words = [text for _, text in kinds]
    keyword = next(
        (place for place, (kind, _) in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY), None
    )
    if keyword is not None and not any(kind is inspect.Parameter.VAR_POSITIONAL for kind, _ in kinds):
        words.insert(keyword, "*")
    back = signature.return_annotation
    end = "" if back in (signature.empty, None, "None") else f" -> {back}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= 100:
        return [line]
    return [f"{name}(", *(f"    {word}," for word in words), f"){end}"]


_SECTION = re.compile(r"^(Raises|Returns|Args|Shapes|Units|Ref):$")


def _docstring(doc: str | None) -> Iterator[str]:
    """A docstring's paragraphs; a section's indented lines become a list."""
    for block in inspect.cleandoc(doc or "").split("\n\n"):
        lines = block.split("\n")
        if _SECTION.match(lines[0]):
            yield f"**{lines[0]}**"
            yield ""
            yield from _entries(lines[1:])
        elif ">>>" in block or any(line.startswith("    ") for line in lines):
            yield from ["```text", *lines, "```"]
        else:
            yield " ".join(lines).replace("<", "&lt;").replace("*", "\\*")
        yield ""


def _entries(lines: list[str]) -> Iterator[str]:
    least = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    entry = ""
    for line in lines:
        if len(line) - len(line.lstrip()) == least and entry:
            yield f"- {entry}"
            entry = ""
        entry = f"{entry} {line.strip()}".strip().replace("<", "&lt;")
    if entry:
        yield f"- {entry}"


def _members(kind: type[Any]) -> Iterator[str]:
    rows = []
    for name, member in sorted(vars(kind).items()):
        thing = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or not getattr(thing, "__doc__", None):
            continue
        if isinstance(thing, property | cached_property):
            rows.append((f"`.{name}`", cell(_first(thing.__doc__))))
        elif inspect.isfunction(thing):
            given = [each for each in inspect.signature(thing).parameters if each not in ("self", "cls")]
            rows.append((f"`.{name}({', '.join(given)})`", cell(_first(thing.__doc__))))
    if rows:
        yield from table(("member", "what"), rows)


# What to do, by exit code; what each means stands in `pate_fed.errors`.
_CURES = {
    0: "Nothing.",
    1: "Report it, with the error's text.",
    2: "The error says what is wrong, where, and what would be right. On a full disk make room and give the "
    "command again.",
    3: "Take more noise, fewer labels, more teachers, or a larger `--epsilon`.",
    4: "See who was late or refused (`pate-fed watch RUN_DIR`); start the coordinator again.",
    5: "The hospital's log names the line of its policy. It is the hospital's choice.",
    6: "Do not use the run: `pate-fed ledger verify RUN_DIR` names the first row that does not fit.",
    INTERRUPTED: "Give the same command again; it goes on where it can.",
}


def exit_codes() -> str:
    """The exit codes of all commands."""
    kinds = [thing for name in _public(errors) if isinstance(thing := getattr(errors, name), type)]
    by_code = {kind.exit_code: kind for kind in kinds}
    names = {0: ("-", "Success"), INTERRUPTED: ("-", "Interrupted, by Ctrl-C or a signal")}
    for code, kind in by_code.items():
        meaning = "A fault of the program" if code == 1 else _first(kind.__doc__).rstrip(".")
        names[code] = (f"`{kind.__name__}`", meaning)
    lines = [
        "# Exit codes",
        "",
        "Of every command, and of the process that a supervisor sees. An error is one sentence; 2 to 6",
        "show no traceback.",
        "",
        *table(
            ("code", "meaning", "in Python", "what to do"),
            ((f"{code}", names[code][1], names[code][0], _CURES[code]) for code in sorted(names)),
        ),
    ]
    return page(lines)


def protocol_messages() -> str:
    """Every message between coordinator and hospital, with its fields."""
    plain = [kind for kind in vars(messages).values() if _is_message(kind, messages)]
    under = [kind for kind in vars(masked).values() if _is_message(kind, masked)]
    lines = [
        "# Messages",
        "",
        "All that coordinator and hospital say to each other. A message is a flat record; every field is",
        "checked, and what is unknown, missing or of another type is refused. Sizes follow from the",
        "study's terms.",
        "",
        "## A study",
        "",
    ]
    for kind in plain:
        lines += _message(kind)
    lines += ["## Secure summation", "", "Packed in the field `step`, and signed by their sender.", ""]
    for kind in under:
        lines += _message(kind)
    lines += ["## Refusals", "", "The only reasons that a hospital gives:", ""]
    lines += table(("code", "sentence"), ((f"`{each.name}`", cell(each.value)) for each in Refusal))
    return page(lines)


def _is_message(kind: Any, module: Any) -> bool:
    return (
        isinstance(kind, type)
        and kind.__name__ in _public(module)
        and isinstance(getattr(kind, "kind", None), str)
    )


def _message(kind: type[Any]) -> Iterator[str]:
    yield f"### {kind.__name__}"
    yield ""
    yield from _docstring(kind.__doc__)
    types = {entry.name: entry for entry in entries(kind)}
    rows = []
    for each in fields(kind):
        default = "" if each.default is MISSING else ", may be empty"
        rows.append((f"`{each.name}`", f"{_type(types[each.name].hint)}{default}"))
    yield from table(("field", "type"), rows)


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else re.sub(r"[a-z_]+\.", "", str(hint))
    named = {
        "str": "text",
        "int": "whole number",
        "bytes": "bytes",
        "float": "number",
        "bool": "true or false",
    }
    return named.get(text, "whole numbers" if "int" in text else f"`{text}`")
