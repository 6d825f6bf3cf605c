"""CSV files as hospitals write them: separators, encodings, decimal signs and dates, told from the file.

What a file leaves open (is 1.234 a thousand?) is asked, by row and column. `CsvFile` is all that the rest
sees of it: a faster reader may take its place.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice, zip_longest
from pathlib import Path

from pate_fed.data.schema import is_missing_word, number_in
from pate_fed.data.stores import answer_of
from pate_fed.disk import MOST_TABLE, read_file
from pate_fed.errors import InputError, naming_refusal

POINT, COMMA, _EITHER = "point", "comma", "either"
"""What separates a number's decimals."""

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_TRIED = 200  # rows by which a separator is told
CHUNK = 1024  # rows at once, by columns
MOST_KNOWN = 2**13  # texts of a column whose meaning is kept; further decimals are counted together
_BLOCK = 2**20  # characters that are made lines at once
_MOSTLY = 0.9  # of a column's values are numbers: else they are texts, and stay as they are
_SPACES = " \u00a0\u202f'\u2019"
_GROUPED = re.compile(rf"[-+]?\d{{1,3}}(?:[{_SPACES}]\d{{3}})+(?:[.,]\d+)?")
_OPEN = re.compile(r"[-+]?[1-9]\d{0,2}[.,]\d{3}")  # a thousand, or a decimal
_POINTED = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,})")  # 1,234.5 or 1,234,567
_COMMAED = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,})")
_WITH_COMMA = re.compile(r"[-+]?(?:\d+,\d*|,\d+)(?:[eE][-+]?\d+)?")
_TIME = r"(?:[ T:]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[-+]\d{2}(?::?\d{2})?)?)?"
_DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})" + _TIME)
_NAMED_DATE = re.compile(r"(\d{1,2})([- ]?)([A-Za-z]{3})\2(\d{4})" + _TIME)  # 31MAR2020, 31-Mar-2020
_FOOTER = re.compile(r"\(\d+ \w+( \w+)?\)")  # (200 rows), (200 rows affected)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Letters of DOS's code page 850 where Windows-1252 has signs that stand after or between no letters.
_FROM_DOS = re.compile(
    rb"[A-Za-z](?:[\x82-\x84\x86-\x89\x8b]|[\x85\x93-\x95\x98\x99\x9b][a-z])|[\x81\x8d\x8f\x90\x9d]"
)
_EPOCH = date(1970, 1, 1).toordinal()
AGES = {"age", "alter", "lebensalter", "edad", "eta", "idade", "leeftijd", "alder", "wiek", "vek"}


@dataclass(slots=True)
class _Column:
    """What a column's values say of how they are written: how many are such a number, or such a date."""

    values: int = 0
    numbers: int = 0
    point: int = 0
    comma: int = 0
    open: str = ""  # the signs of those that may be either
    day_first: bool = False
    month_first: bool = False
    style: str | None = None  # of those that may be either; empty: nothing tells

    @property
    def is_numbers(self) -> bool:
        return self.numbers >= max(1.0, _MOSTLY * self.values)

    odd: bool = False  # some are no plain numbers
    counts: Counter[str] = field(default_factory=Counter)  # of what was not looked at yet
    kept: Counter[str] = field(default_factory=Counter)  # of what was
    stands: dict[str, str] = field(default_factory=dict)  # for all further decimals of a kind

    def take(self, texts: Sequence[str]) -> None:
        self.counts.update(self._but_decimals(texts) if self.stands else texts)
        if len(self.counts) > MOST_KNOWN:
            self.look()

    def look(self) -> None:
        for text, times in self.counts.items():
            kind = self._look_at(text, times)
            if kind in (POINT, COMMA, _EITHER) and len(self.kept) >= MOST_KNOWN and text not in self.kept:
                text = self.stands.setdefault(kind, text)
            self.kept[text] += times
        self.counts.clear()

    def _but_decimals(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts that are to be counted one by one; decimals with a point are taken at once."""
        decimals = [text for text in texts if "." in text and text[-1].isdigit()]
        either = sum(text[-4:-3] == "." and _OPEN.fullmatch(text) is not None for text in decimals)
        found = {POINT: len(decimals) - either, _EITHER: either}
        if any(times and kind not in self.stands for kind, times in found.items()):
            return texts
        if (either and "." not in self.open) or plain_numbers(decimals, pointed=True) is None:
            return texts
        self.values += len(decimals)
        self.numbers += len(decimals)
        self.point += found[POINT]
        self.kept.update({self.stands[kind]: times for kind, times in found.items() if times})
        return [text for text in texts if not ("." in text and text[-1].isdigit())]

    def _look_at(self, text: str, times: int) -> str | None:
        if plain_number(text) is None:
            if is_missing_word(text):
                return None
            self.odd = True
        self.values += times
        kind = _kind(text)
        self.numbers += times * (kind is not None)
        self.point += times * (kind == POINT)
        self.comma += times * (kind == COMMA)
        if kind == _EITHER:
            self.open += "" if (sign := "," if "," in text else ".") in self.open else sign
        if "/" in text and (found := _DATE.fullmatch(text)) and found[2] == "/":
            self.day_first |= int(found[1]) > 12
            self.month_first |= int(found[3]) > 12
        return kind


class CsvFile:
    """A CSV file with a header; `decimal` says how it writes numbers, None: as can be told from it.

    `header` are the names, stripped and in Unicode's form NFC, as all texts are.

    Raises:
        InputError: the file cannot be read, or how it is written cannot be told.
    """

    def __init__(self, path: Path, *, decimal: str | None = None) -> None:
        self.path, self._decimal = path, decimal
        self._text, self._encoding = _decoded(path)
        self._skipped, separator = _said_separator(self._text)
        self._separator = separator or _told_separator(self._text[self._skipped :])
        self._escaped = _is_escaped(self._text[self._skipped :], self._separator)
        first, *others = [cells for _, cells in islice(self._parsed(), _TRIED)] or [[]]
        self._width, self._named = _frame(first, others, self._separator)
        self.header = first[self._named] if len(first) == self._width else first
        self._columns: list[_Column] | None = None
        self._known: list[tuple[int, dict[str, str]]] | None = None
        self._used = {"the rows' names left out"} if self._named.start else set[str]()  # what is said

    def rows(self, *, plain: bool = False) -> Iterator[tuple[int, list[str]]]:
        """The rows under the header with their numbers, as a spreadsheet counts: the header is row 1.

        Empty rows are left out, and what programs write around them: an underlined header, a count of rows, a
        first column with the rows' names. `plain` writes the numbers of columns of numbers with a decimal
        point alone.

        Raises:
            InputError: a value without an end, or numbers that may be read in two ways.
        """
        rows = self._parsed()
        next(rows, None)
        for number, cells in rows:
            if number == 2 and (len(cells) > 1 or "+" in cells[0]):
                if all(cell and not cell.strip("-+") for cell in cells):
                    continue  # sqlcmd and psql underline the header
            if not (cells[-1] and len(cells) > 1) and not any(cells[1:]) and len(self.header) > 1:
                if not cells[0] or (len(cells) == 1 and _FOOTER.fullmatch(cells[0])):
                    continue
            if len(cells) == self._width != len(self.header):
                cells = cells[self._named]
            if plain:
                for place, known in self._plain():
                    if place >= len(cells):
                        break
                    if (told := known.get(text := cells[place])) is None:
                        if len(known) == MOST_KNOWN:
                            known.clear()
                        told = known[text] = self.number(text, place, number)
                    cells[place] = told
            yield number, cells

    def counted(self) -> tuple[dict[str, Counter[str]], int]:
        """How often each column holds each text of `rows(plain=True)`, by name, and how many rows there are.

        Of more than MOST_KNOWN texts of a column some decimals stand for all.

        Raises:
            InputError: as `rows`, or a row has not as many values as the header: of the first such row.
        """
        columns, rows, same = self._look_through()
        counts = dict[str, Counter[str]]()
        try:
            for place, (name, column) in enumerate(zip(self.header, columns, strict=True)):
                counts[name] = Counter()
                for text, times in column.kept.items() if column.is_numbers and column.odd else ():
                    counts[name][self.number(text, place, 0)] += times
                counts[name] = counts[name] or column.kept
                column.kept = Counter()
        except InputError:
            self._require_rows()  # which names the first row
            raise
        if not same:
            self._require_rows()
        return counts, rows

    def _require_rows(self) -> None:
        for chunk in in_chunks(self.rows(plain=True)):
            for number, cells in chunk:
                if len(cells) != len(self.header):
                    wrong = f"{len(cells)} values for {len(self.header)} columns"
                    raise InputError(f"{self.path} row {number}: {wrong}")

    def number(self, text: str, place: int, row: int) -> str:
        """A value of a column of numbers, written with a decimal point alone; any other text as it is.

        A date becomes days since 1970-01-01.

        Raises:
            InputError: it may be read in two ways, or is a date where an age is meant.
        """
        if text.isdecimal():
            return text
        kind = _kind(text)
        if kind == _EITHER:
            kind = self._style(place, row, text)
        if kind is not None:
            return self._pointed(text, kind)
        return self._days(text, place, row)

    def is_pointed(self, place: int) -> bool:
        """Whether a column's open numbers are known to have decimal points."""
        known = self._columns is not None and self._columns[place].style == POINT
        return known or self._decimal == POINT

    def described(self) -> str:
        """How the file is written, in words, so far as it was met; empty for commas, points and UTF-8."""
        found = [] if self._separator == "," else [_SEPARATORS[self._separator]]
        found += sorted(self._used) + ([] if self._encoding == "UTF-8" else [self._encoding])
        return ", ".join(found)

    def _parsed(self) -> Iterator[tuple[int, list[str]]]:
        number = 0
        try:
            for number, cells in enumerate(self._cells(), start=1):
                row = "\0".join(cells)
                if row.isascii() and row.split(None, 1) == [row]:
                    yield number, cells  # nothing to clean, as in most rows
                elif cells or number == 1:
                    yield number, [_clean(cell) for cell in cells]
        except csv.Error as error:
            raise InputError(f"{self.path} row {number + 1}: {_broken(str(error))}") from error

    def _cells(self) -> Iterator[list[str]]:
        text = self._text[self._skipped :]
        if not self._escaped:
            return _csv(text, self._separator)
        apart = re.escape(self._separator)  # in such a file \N is a missing value
        text = re.sub(rf"(?<![^{apart}\n])\\N(?![^{apart}\r\n])", "", text)
        return _csv(text, self._separator, escapechar="\\")

    def _kinds(self) -> list[_Column]:
        """What each column's values say of how they are written; all of them are looked at once."""
        if self._columns is None:
            for column in self._look_through()[0]:
                column.kept.clear()
        assert self._columns is not None
        return self._columns

    def _look_through(self) -> tuple[list[_Column], int, bool]:
        """Look at all values: columns, how many rows, and whether each has as many values as the header."""
        columns, rows, same = [_Column() for _ in self.header], 0, True
        for chunk in in_chunks(self.rows()):
            texts = zip_longest(*[cells for _, cells in chunk], fillvalue="")
            for column, own in zip(columns, texts, strict=False):
                column.take(own)
            rows += len(chunk)
            same = same and {len(cells) for _, cells in chunk} == {len(self.header)}
        for column in columns:
            column.look()
        self._columns = columns
        return columns, rows, same

    def _plain(self) -> list[tuple[int, dict[str, str]]]:
        """The places of columns of numbers, not all of them plain, each with what its texts are plain."""
        if self._known is None:
            self._known = [(at, {}) for at, each in enumerate(self._kinds()) if each.is_numbers and each.odd]
        return self._known

    def _style(self, place: int, row: int, text: str) -> str:
        """What the decimal sign is where a number itself does not tell."""
        if self._decimal is not None:
            return self._decimal
        column = self._kinds()[place]
        if column.style is None:
            column.style = self._told_style(column)
        if column.style:
            return column.style
        sign = "," if "," in text else "."
        raise InputError(
            f"{self.path} row {row}, column {self.header[place]}: {text} may be {text.replace(sign, '')} or "
            f"{text.replace(sign, '.')}, and nothing in the file tells; say how it writes numbers: --decimal "
            "point or --decimal comma"
        )

    def _told_style(self, column: _Column) -> str:
        """By the column's other numbers, else by other columns'; empty where nothing tells."""
        for known in ([column], [each for each in self._kinds() if each.is_numbers]):
            points, commas = sum(each.point for each in known), sum(each.comma for each in known)
            if points or commas:
                return "" if points and commas else POINT if points else COMMA
        # With decimal commas nobody separates values by commas.
        return POINT if self._separator == "," and column.open == "." else ""

    def _pointed(self, text: str, kind: str) -> str:
        bare = _bare(text)
        if kind == COMMA and ("," in bare or "." in bare):
            self._used.add("decimal commas")
            bare = bare.replace(".", "").replace(",", ".")
        return bare.replace(",", "") if number_in(bare.replace(",", "")) is not None else text

    def _days(self, text: str, place: int, row: int) -> str:
        told = self._told_date(text, place, row)
        if told is None:
            return text
        where, name = f"{self.path} row {row}, column {self.header[place]}", self.header[place]
        if letters_of(name) in AGES:
            raise InputError(f"{where}: a date, and an age is meant; write whole years")
        self._used.add("dates as days since 1970-01-01")
        return str(told.toordinal() - _EPOCH)

    def _told_date(self, text: str, place: int, row: int) -> date | None:
        if (named := _NAMED_DATE.fullmatch(text)) and named[3].lower() in _MONTHS:
            return _date(named[4], str(_MONTHS.index(named[3].lower()) + 1), named[1])
        found = _DATE.fullmatch(text)
        if found is None:
            return None
        first, mark, second, third = found[1], found[2], found[3], found[4]
        if len(first) == 4:
            return _date(first, second, third)
        column, wrong = self._kinds()[place], ""
        if len(third) != 4:
            wrong = "has no year of four digits"
        elif mark == "/" and column.day_first == column.month_first:
            wrong = "may begin with its day or its month, and nothing in the column tells"
        if wrong:
            where = f"{self.path} row {row}, column {self.header[place]}"
            raise InputError(f"{where}: a date that {wrong}; write dates as 2026-03-31")
        day_first = mark != "/" or column.day_first
        return _date(third, second, first) if day_first else _date(third, first, second)


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def _clean(text: str) -> str:
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def letters_of(name: str) -> str:
    """A name in small letters and digits alone: no separators, and no dots over letters."""
    apart = unicodedata.normalize("NFKD", name.casefold())
    return "".join(letter for letter in apart if letter.isalnum())


def _bare(text: str) -> str:
    """A number without what stands between its thousands but points and commas, and with a plain minus."""
    text = text.replace("\u2212", "-")
    return re.sub(f"[{_SPACES}]", "", text) if _GROUPED.fullmatch(text) else text


def plain_number(text: str, *, pointed: bool = False) -> float | None:
    """The finite number that a text is in whatever file it stands; None: it is none, or not surely this.

    `pointed`: the file is known to write decimal points.
    """
    try:
        number = float(text)
    except ValueError:
        return None
    odd = (
        "_" in text
        or not math.isfinite(number)
        or (text[-4:-3] == "." and not pointed and _OPEN.fullmatch(text))
    )
    return None if odd else number


def plain_numbers(texts: Sequence[str], *, pointed: bool = False) -> list[float] | None:
    """`plain_number` of all texts; None where one is none."""
    try:
        numbers = [*map(float, texts)]
    except ValueError:
        return None
    odd = "_" in "".join(texts) or not all(map(math.isfinite, numbers))
    odd = odd or not (pointed or all(text[-4:-3] != "." or not _OPEN.fullmatch(text) for text in texts))
    return None if odd else numbers


def _kind(text: str) -> str | None:
    """How a number is written: with a decimal point or comma, either, or plain; None: it is none."""
    if plain_number(text) is not None:  # as most are
        return POINT if "." in text else "plain"
    bare = _bare(text)
    if "," not in bare:
        if "." not in bare:
            return None if number_in(bare) is None else "plain"
        if _OPEN.fullmatch(bare):
            return _EITHER
        return POINT if number_in(bare) is not None else COMMA if _COMMAED.fullmatch(bare) else None
    if _OPEN.fullmatch(bare):
        return _EITHER
    if _POINTED.fullmatch(bare):
        return POINT
    return COMMA if _COMMAED.fullmatch(bare) or _WITH_COMMA.fullmatch(bare) else None


def _csv(text: str, separator: str, escapechar: str | None = None) -> Iterator[list[str]]:
    return csv.reader(_lines(text), delimiter=separator, strict=True, escapechar=escapechar)


def _lines(text: str) -> Iterator[str]:
    """A text's lines; the whole of a long one as `StringIO` would be four times as large."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _BLOCK) + 1 or len(text)
        yield from io.StringIO(text[start:end], newline="")
        start = end


def in_chunks(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Rows, so many at once; those before one that cannot be read come first, as they would alone."""
    chunk: list[tuple[int, list[str]]] = []
    try:
        for row in rows:
            chunk.append(row)
            if len(chunk) == CHUNK:
                yield chunk
                chunk = []
    except InputError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _is_escaped(text: str, separator: str) -> bool:
    """Whether a quote within a value is written with a backslash, as MySQL and R's write.table do."""
    try:
        if '\\"' in text:
            deque(_csv(text, separator), maxlen=0)
    except csv.Error:
        return True
    return False


def _frame(header: list[str], rows: Sequence[list[str]], separator: str) -> tuple[int, slice]:
    """How many values the rows have, and which of them have a column's name.

    R and pandas begin each row with its name, in a column without one or beyond the header; spreadsheets, and
    separators at the ends of rows, make empty columns without one.
    """
    width = len(header)
    if rows and all(len(cells) == width + 1 for cells in rows):
        if not any(cells[-1] for cells in rows):
            return width + 1, slice(0, width)
        named = separator != "," and len({cells[0] for cells in rows}) == len(rows)
        return width + 1, slice(int(named), width + 1)  # one comma more may be a decimal one: that is asked
    whole, stop = [cells for cells in rows if len(cells) == width], width
    while stop > 1 and not header[stop - 1] and not any(cells[stop - 1] for cells in whole):
        stop -= 1
    return width, slice(int(stop > 1 and not header[0]), stop)


def _decoded(path: Path) -> tuple[str, str]:
    """A file's text, or what a query's file answers, and the encoding's name."""
    if (answer := answer_of(path)) is not None:
        return answer, "UTF-8"
    large = path.is_file() and path.stat().st_size > MOST_TABLE
    cure = "; leave out of it the columns that the study does not read" * large
    with naming_refusal(f"{path}: cannot be read", cure):
        content = read_file(path, most=MOST_TABLE)
    if (marked := content[:2] in (b"\xff\xfe", b"\xfe\xff")) or content[1:2] == b"\0":
        try:
            return content.decode("utf-16" if marked else "utf-16-le"), "UTF-16"
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: begins as UTF-16 and is damaged; save it as CSV in UTF-8") from error
    if b"\0" in content[:1000]:
        raise InputError(f"{path}: no CSV, or in an encoding of its own; save it as CSV in UTF-8")
    try:
        return content.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError as error:
        broken = error
    if content.startswith(codecs.BOM_UTF8):
        row = content[: broken.start + len(codecs.BOM_UTF8)].count(b"\n") + 1
        raise InputError(f"{path} row {row}: begins as UTF-8, and is not in it; save it as CSV in UTF-8")
    # Latin-1 is Windows-1252 without the signs at 0x80 to 0x9f, where DOS has its letters.
    odd = _FROM_DOS.search(content)
    if odd is not None:
        row = content[: odd.start()].count(b"\n") + 1
        raise InputError(
            f"{path} row {row}: neither in UTF-8 (byte 0x{content[broken.start]:02x}) nor surely in "
            "Windows-1252; save it as CSV in UTF-8 (if it comes from DOS: iconv -f cp850 -t utf-8 "
            f"{path.name} > new.csv)"
        )
    return content.decode("cp1252"), "Windows-1252"


def _said_separator(text: str) -> tuple[int, str]:
    """What a first line `sep=;`, as Excel reads it, says, and how long it is."""
    found = re.match(r"sep=([,;\t|])\r?\n", text)
    return (found.end(), found[1]) if found else (0, "")


def _told_separator(text: str) -> str:
    """By which most rows have as many values as the header; a comma where nothing tells."""

    def fits(separator: str) -> tuple[float, float, int]:
        counts: list[int] = []
        try:
            for cells in _csv(text, separator):
                if cells:
                    counts.append(len(cells))
                if len(counts) > _TRIED:
                    break
        except csv.Error:  # a quote in the middle of what is no value: not by this
            pass
        first, *others = counts or [0]
        same, longer = (others.count(first + more) / max(len(others), 1) for more in (0, 1))
        if first < 2 or (separator == " " and 1 not in (same, longer)):  # spaces stand in values, too
            return 0.0, 0.0, 0
        return same if others else 1.0, longer, first

    found = {separator: fits(separator) for separator in _SEPARATORS}
    return max(found, key=lambda separator: found[separator])  # the comma, where nothing tells


def _broken(error: str) -> str:
    """What the csv module found, in words that say what to do."""
    if "field larger" in error:
        most = csv.field_size_limit()
        return f'a value of more than {most:,} characters; is the closing quote (") of a value missing?'
    if "unexpected end" in error:
        return 'a value begins with a quote (") that is never closed; close it, or write "" for a quote in it'
    return f'no CSV ({error}); a quote (") within a quoted value is written twice ("")'
