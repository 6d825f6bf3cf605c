"""Private texts in every place of four hospitals' CSV files where one can stand, and the search for them."""

from __future__ import annotations

import csv
import io
import random
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSPITALS = ("north", "east", "south", "west")
COLUMNS = ("patient", "age", "dose", "sex", "ward", "ill")
"""What the study reads; each hospital's file has more."""

_MARK = "zq"  # begins a needle's word, as no word of ours does
_LETTERS = "bcdfghjklmnprstvwx"
_CANDIDATES = re.compile(rb"(?=(zq[a-z]{10}|\d{2}\.\d{2}\.19\d\d|19\d\d-\d{2}-\d{2}|\d{13}))")


@dataclass(frozen=True)
class Planted:
    """A text of a record; the needles are what is looked for, in small letters."""

    text: str
    needles: tuple[bytes, ...]


def draw_planted(count: int, seed: int = 0) -> list[Planted]:
    """So many different texts: names, dates, letters, numbers with words, umlauts, quoted line ends."""
    drawn, made, dates = random.Random(seed), list[Planted](), set[str]()
    while len(made) < count:
        number = len(made)
        word = _MARK + "".join(drawn.choices(_LETTERS, k=10))
        day, month, year = drawn.randint(1, 28), drawn.randint(1, 12), drawn.randint(1900, 1949)
        text = (
            f"Frau {word.title()}",
            f"geb. {word}, 12.3.1951",
            f"Größe ü{word}ß",
            f"{drawn.randint(1, 400)} mg {word}",
            f'sagt "{word}"; dann, nichts',
            f"{word}\nzweite Zeile | Ende",
            f"see letter of Dr. {word.upper()}",
            f"{day:02}.{month:02}.{year}",
            f"{drawn.randrange(10**12, 10**13)}a",
            f"{word}-{drawn.randint(1, 99)}",
        )[number % 10]
        if number % 10 == 7:
            if text in dates:
                continue
            dates.add(text)
            made.append(Planted(text, (text.encode(), f"{year}-{month:02}-{day:02}".encode())))
        else:
            made.append(Planted(text, (text[:13].encode() if number % 10 == 8 else word.encode(),)))
    return made


def found_in(content: bytes, planted: Iterable[Planted]) -> set[str]:
    """The texts that stand in bytes: in one byte a letter or two, any case, and in a zip's members."""
    parts = [content, content.replace(b"\0", b"")]
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts += [archive.read(name) for name in archive.namelist()]
    seen = {found[1] for part in parts for found in _CANDIDATES.finditer(part.lower())}
    return {each.text for each in planted if seen & {*each.needles}}


def files_below(*folders: Path, without: Sequence[Path] = ()) -> Iterator[Path]:
    """All files but the hospitals' own."""
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file() and path not in without)


def leaks(folders: Sequence[Path], planted: Sequence[Planted], *, without: Sequence[Path]) -> dict[str, str]:
    """The files with a planted text, in their bytes or their name, and one of the texts."""
    found = {}
    for path in files_below(*folders, without=without):
        told = found_in(path.read_bytes(), planted) | found_in(str(path).encode(), planted)
        if told:
            found[str(path)] = min(told)
    return found


def plain_row(number: int, drawn: random.Random) -> list[str]:
    """A record of the study's columns without any text."""
    age, dose, sex, ward = drawn.randint(20, 90), drawn.gauss(0, 1), drawn.choice("fm"), drawn.choice("AB")
    ill = age / 45 + dose + (sex == "m") > 1.8
    shown = "" if drawn.random() < 0.05 else f"{dose:.4f}"
    return [f"p{number // 2}", str(age), shown, sex, ward, "yes" if ill else "no"]


def write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """A CSV file with Unix line ends."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def write_hospitals(folder: Path, planted: Sequence[Planted], *, rows: int = 90) -> list[Path]:
    """Four files and a pool: the texts are the patients' names, and all that stands where no study reads.

    Among those are columns' names, of notes, of dates and of columns without values; each file has the same.
    """
    drawn, left = random.Random(1), list(planted)
    names = [left.pop().text for _ in range(8)]
    paths = [folder / f"{name}.csv" for name in HOSPITALS]
    for place, path in enumerate(paths):
        part = left[place::4]
        patients, notes = part[: rows // 2], part[rows // 2 :]
        table = [["note", *COLUMNS, *names]]
        for number in range(rows):
            record = plain_row(number, drawn)
            record[0] = patients[number // 2].text
            cells = [notes.pop().text if notes else "" for _ in range(3)]
            day = f"{1 + number % 28}.{1 + number % 12}.2024"
            table.append([cells[0], *record, *cells[1:], day, *([""] * 5)])
        assert not notes, "more texts than the files have places"
        write_csv(path, table)
    write_csv(folder / "pool.csv", [COLUMNS, *(["", *plain_row(n, drawn)[1:]] for n in range(80))])
    return paths
