"""The page of results, made of the files in docs/results/ and the order and remarks in its page.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import cell, page, table

FOLDER = Path(__file__).resolve().parents[1] / "results"
_HEAD = """## How to read the rest

Every figure with what made it: its command, seeds, machine and day. Figures are means over the seeds, ± their
standard deviation. Noise differs from run to run, so an accuracy moves by about a point. *Code* says what has
changed since a figure was measured; a + after a commit means that files beside it were changed. Heads of few
labels, and the default student, which asks one, heed a graph of all images by degrees since 2026-11-23:
figures of earlier days are of the head before.

This page is made of the files in `docs/results/` by `python docs/site/make.py`. `pate-fed reproduce NAME
--out DIR` writes such a file, `DIR/NAME.json`: copy it there, and give that command.
"""
# How a measure is called, by what it is multiplied, and how many places it is shown with.
_MEASURES = {
    "accuracy": ("right, %", 100, 1),
    "accuracy_single": ("one network, %", 100, 1),
    "balanced": ("balanced, %", 100, 1),
    "auc": ("AUC, %", 100, 1),
    "labels_right": ("labels right, %", 100, 1),
    "labels_wrong": ("labels wrong, %", 100, 1),
    "kept_right": ("kept, right, %", 100, 1),
    "removed_wrong": ("removed, wrong, %", 100, 0),
    "plurality": ("plurality, %", 100, 1),
    "unweighted": ("without weights, %", 100, 1),
    "weighted": ("with weights, %", 100, 1),
    "rarest": ("rarest class, of an even share", 1, 2),
    "as_is": ("as it is", 1, 3),
    "calibrated": ("calibrated", 1, 3),
    "epsilon": ("ε", 1, 3),
    "epsilon_data_independent": ("ε, data-independent", 1, 2),
    "epsilon_do_not_publish": ("ε, data-dependent", 1, 3),
    "value": ("measured", 1, 3),
    "claimed": ("ε claimed", 1, 2),
    "recomputed": ("ε of its rows", 1, 3),
    "seconds": ("s", 1, 2),
    "cpu_seconds": ("s of a core", 1, 2),
    "running_sum": ("running sum, s of a core", 1, 2),
    "anew": ("anew, s of a core", 1, 2),
    "microseconds": ("µs", 1, 1),
    "times": ("times", 1, 1),
    "core_share": ("of a core, %", 100, 2),
    "memory_mb": ("MB", 1, 0),
    "gigabytes": ("GB", 1, 1),
    "kilobytes": ("KB", 1, 0),
    "answered": ("labels", 1, 0),
    "asked": ("asked", 1, 0),
    "labels": ("labels", 1, 0),
    "kept": ("kept", 1, 0),
    "confirmed": ("confirmed", 1, 0),
    "removed": ("removed", 1, 0),
    "sigma": ("σ", 1, 2),
    "sigma2": ("σ2", 1, 1),
    "noise": ("noise", 1, 2),
    "mean_auc": ("mean AUC, %", 100, 1),
    "least_auc": ("least AUC, %", 100, 1),
    "mean_accuracy": ("mean right, %", 100, 1),
    "r2": ("R²", 1, 3),
    "mean_absolute_error": ("mean error", 1, 2),
    "agreement": ("agreement", 1, 3),
    "equation8": ("equation 8", 1, 3),
}
# What a reproduction measures beside; it stays in its file.
_ASIDE = {
    "seconds",
    "sigma",
    "sigma2",
    "noise",
    "agreement",
    "equation8",
    "accuracy_single",
    "removed",
    "kept",
}
_PLACE = re.compile(r"\{\{([^}]+)\}\}")

_TASKS = {"epsilon": "ε", "beta": "β", "tau": "τ", "sigma1": "σ1"}

Result = dict[str, Any]


def read_results() -> dict[str, Result]:
    """Every result file by its name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def results_page() -> str:
    """The page's text.

    Raises:
        ValueError: page.toml and the files do not name the same results, or a remark's figure is not one.
    """
    found = read_results()
    plan = tomllib.loads((FOLDER / "page.toml").read_text(encoding="utf-8"))
    named = [entry["file"] for group in plan["group"] for entry in group["result"]]
    if sorted(named) != sorted(found):
        raise ValueError(f"page.toml and the files differ: {sorted(set(named) ^ set(found))}")
    lines = ["# Results", "", *_summary(plan.get("summary", ()), found), _HEAD]
    for group in plan["group"]:
        lines += [f"## {group['title']}", ""]
        for entry in group["result"]:
            lines += _section(entry, found)
    return page(lines)


def _summary(rows: list[Result], found: dict[str, Result]) -> Iterator[str]:
    """The first table: what an outsider asks, each figure out of its file."""
    heads = (
        "what",
        "data",
        "ε",
        "right, %",
        "AUC, %",
        "runs",
        "alone",
        "central",
        "best published",
        "command",
    )
    shown = []
    for row in rows:
        result, figure = _named(row["figure"], found)
        measured = (_measure(figure, "accuracy"), _auc(figure), str(figure["n"]))
        beside = [_beside(row[name], found) if name in row else "-" for name in ("alone", "central")]
        best = _PLACE.sub(lambda place: _figure_at(place[1], found), row["best"])
        told = (row["what"], row["data"], row["epsilon"], *measured, *beside, best)
        shown.append((*told, f"`{result['command']}`"))
    yield from table(heads, shown)
    yield "ε is for one record replaced at δ 1e-5 (breast cancer 1e-4), fixed beforehand whatever the votes,"
    yield "but where it says otherwise. ± is the standard deviation over the runs. Alone: the mean of one"
    yield "party's own models; central: one model of all records; both without privacy, AUC in brackets."
    yield ""


def _section(entry: Result, found: dict[str, Result]) -> Iterator[str]:
    result = found[entry["file"]]
    figures = [each for each in result["figures"] if _chosen(each["of"], entry.get("where", {}))]
    yield f"### {entry['title']}"
    yield ""
    own = "version" in result  # written by `pate-fed reproduce`, with all that it measures
    if entry.get("as_printed"):
        yield from ["```text", *result["text"], "```", ""]
    else:
        yield from _figures(figures, aside=_ASIDE if own else set(), published=_published(entry, figures))
    if "says" in result:
        yield from [result["says"], ""]
    yield from [f"`{result['command']}`: {_origin(result, figures)}", ""]
    if "note" in entry:
        yield from [_PLACE.sub(lambda place: _figure_at(place[1], found), entry["note"]), ""]
    if "picture" in entry:
        yield from [f"![{entry['title']}]({entry['picture']})", ""]


def _chosen(of: Result, where: dict[str, list[Any]]) -> bool:
    return all(of.get(name) in allowed for name, allowed in where.items())


def _published(entry: Result, figures: list[Result]) -> dict[int, Result]:
    """The paper's own figures by the place of ours."""
    found = {}
    for each in entry.get("published", []):
        found[figures.index(_one(figures, each["row"]))] = {k: v for k, v in each.items() if k != "row"}
    return found


def _one(figures: list[Result], values: list[str]) -> Result:
    """The one figure whose task has these values."""
    found = [each for each in figures if set(values) <= {_value(value) for value in each["of"].values()}]
    if len(found) != 1:
        raise ValueError(f"{len(found)} figures have {values}; one is meant")
    return found[0]


def _figures(figures: list[Result], *, aside: set[str], published: dict[int, Result]) -> Iterator[str]:
    tasks = list(dict.fromkeys(name for each in figures for name in each["of"]))
    measured = list(dict.fromkeys(name for each in figures for name in each["mean"]))
    shown = [name for name in measured if name not in aside]
    theirs = [name for name in shown if any(name in each for each in published.values())]
    heads = [*(_TASKS.get(name, name) for name in tasks), *(_MEASURES[name][0] for name in shown)]
    heads += [f"published: {_MEASURES[name][0]}" for name in theirs]
    rows = []
    for place, each in enumerate(figures):
        row = [cell(_value(each["of"].get(name, ""))) for name in tasks]
        row += [_measure(each, name) for name in shown]
        row += [_number(published.get(place, {}).get(name), name, more=1) for name in theirs]
        rows.append(row)
    yield from table(heads, rows)


def _value(value: Any) -> str:
    return (
        f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def _number(value: float | None, name: str, *, more: int = 0) -> str:
    if value is None:
        return ""
    _, factor, places = _MEASURES[name]
    text = f"{factor * value:,.{places + more}f}"
    if factor == 1:
        return text.rstrip("0").rstrip(".") if "." in text else text
    return text.removesuffix("0") if more else text


def _measure(figure: Result, name: str) -> str:
    mean, spread = figure["mean"].get(name), figure["spread"].get(name)
    return _number(mean, name) + (
        f" ± {_number(spread, name) or '0'}" if mean is not None and spread is not None else ""
    )


def _origin(result: Result, figures: list[Result]) -> str:
    counts = sorted({each["n"] for each in figures}) if result["seeds"] else []
    seeds = " or ".join(map(str, counts))
    parts = [
        f"{seeds} seed{'' if seeds == '1' else 's'}" if seeds else "",
        result["machine"],
        result["date"],
        f"commit {result['commit']}" if result["commit"] else "",
        f"*code*: {result['code']}" if "code" in result else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _named(place: str, found: dict[str, Result]) -> tuple[Result, Result]:
    """The result and the figure that a row of the summary names: NAME | value; value."""
    name, values = (part.strip() for part in place.split("|"))
    return found[name], _one(found[name]["figures"], [value.strip() for value in values.split(";")])


def _auc(figure: Result) -> str:
    return _measure(figure, "auc") if figure["mean"].get("auc") else "-"


def _beside(place: str, found: dict[str, Result]) -> str:
    figure = _named(place, found)[1]
    auc = f" ({_number(figure['mean']['auc'], 'auc')})" if figure["mean"].get("auc") else ""
    return f"{_number(figure['mean']['accuracy'], 'accuracy')}{auc}"


def _figure_at(place: str, found: dict[str, Result]) -> str:
    """A remark's figure: the one whose task has the values that are named."""
    name, values, *measure = [part.strip() for part in place.split("|")]
    figure = _one(found[name]["figures"], [value.strip() for value in values.split(";")])
    measured = measure[0] if measure else "accuracy"
    unit = " %" if _MEASURES[measured][0].endswith("%") else ""
    return f"{_measure(figure, measured)}{unit}"
