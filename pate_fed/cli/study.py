"""`pate-fed study`: a new study, the coordinator's authority, and the hospitals that it admits."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import DECIMAL, Parser, add_command, add_option, print_lines
from pate_fed.disk import read_file
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import counted, named, printable

if TYPE_CHECKING:
    from pate_fed.data.infer import InferredSchema, Text
    from pate_fed.data.schema import Schema
    from pate_fed.kinds.terms import Terms


_LESS = "about a point less is right at ε 1, and more below it"
_POOL = (
    "the same columns, the label may be missing. They may be a public data set of the field, or rows whose "
    "patients gave them for it: the more alike to hospitals' own, the less they cost in accuracy. Where "
    f"there are none, give --range COLUMN=LOW:HIGH for each column of numbers: {_LESS}"
)
_WITHOUT_POOL = (
    f"no public inputs: the student knows columns in steps, and {_LESS}. A fifth of each hospital's records "
    "is left out of the sums and counted once, with noise, to tell how good it is, where they are enough; "
    "[sums] scores = false turns that off (docs/class-sums.md)"
)
_FEW = 5  # rows: a value in fewer is asked about by itself, as it may tell of a patient


def add_new_action(actions: Any) -> None:
    """Register `study new`."""
    new = add_command(actions, "new", "write a commented study.toml, from CSV files where there are some")
    text = "the parties' records, or a hospital's own: the columns are read from them"
    new.add_argument("--csv", metavar="FILE", nargs="+", action="extend", default=[], help=text)
    pool = (
        "the public inputs (default pool.csv beside the study); without --csv the columns are read from them"
    )
    add_option(new, "--pool FILE", pool)
    hospitals = "how many hospitals there will be (default: the files of --csv, where they are several)"
    add_option(new, "--num-clients N", hospitals, aliases=("--num-hospitals",))
    ranges = (
        "without public inputs, for each column of numbers: what can be measured, never what records hold"
    )
    add_option(new, "--range COLUMN=LOW:HIGH", ranges, nargs="+", action="extend", default=[])
    deal = "try it with one file: its rows go at random to N parties, a third of them into the pool"
    add_option(new, "--deal N", deal)
    add_option(new, "--decimal", DECIMAL, choices=("point", "comma"))
    label = (
        "the column of the class (default: found by its name, else the last); given again for each further "
        "one where records have several labels, each yes or no"
    )
    add_option(new, "--label COLUMN", label, action="append", default=[])
    target = (
        "where the label is a number: what it can be, declared in public, never what records hold (below 0: "
        "--target-range=-5:5)"
    )
    add_option(new, "--target-range LOW:HIGH", target)
    add_option(
        new,
        "--patient COLUMN",
        "the column that is equal for one patient's rows (default: found by its name)",
    )
    agreed = (
        "texts of records that may stand in the study, as an error lists them: 'column: value', one a line"
    )
    add_option(new, "--yes-to FILE", agreed)
    add_option(new, "--out FILE", "where it is written", default="study.toml")
    new.set_defaults(run=_study_new)


def _study_new(arguments: argparse.Namespace) -> int:
    from pate_fed.config.template import study_template

    out = Path(arguments.out)
    if out.exists():
        raise InputError(f"--out {out}: is there already; give another name")
    if not arguments.csv and arguments.pool and not arguments.range:
        arguments.csv = [arguments.pool]
    if not arguments.csv:
        for option in ("pool", "num_clients", "range", "deal", "label", "target_range", "patient", "yes_to"):
            if given := getattr(arguments, option):
                told = " ".join(given) if isinstance(given, list) else given
                raise InputError(f"--{option.replace('_', '-')} {told}: goes with --csv FILE")
        _write(out, study_template(name=out.stem))
        print(f"wrote {out}: every setting with its default; try it: flower-simulation --config {out}")
        return 0
    return _from_csv(arguments, out)


def _from_csv(arguments: argparse.Namespace, out: Path) -> int:
    from pate_fed.cli.terms import make_terms_of
    from pate_fed.config.sections import Parties
    from pate_fed.config.study import read_study
    from pate_fed.config.template import study_template
    from pate_fed.data.infer import infer_schema
    from pate_fed.data.table import read_table
    from pate_fed.kinds.terms import Terms

    files = [Path(name) for name in arguments.csv]
    if (number := arguments.num_clients) is not None:
        Parties(num_clients=number)
        if arguments.deal is not None or len(files) not in (1, number):
            raise InputError(f"--num-clients {number}: as many as files of --csv; it goes with one of them")
    ends = _target_ends(arguments)
    how = {"patient": arguments.patient, "decimal": arguments.decimal, **_labels(arguments)}
    found = infer_schema(files, **how, target_range=ends)
    for line in found.read_as:
        print(line)
    schema, pool = found.schema, Path(arguments.pool or out.parent / "pool.csv")
    if arguments.range:
        schema = _with_ranges(arguments, schema)
    public = pool if arguments.deal is None and pool.is_file() else None
    if arguments.deal is None and files != [pool]:
        for path in files:  # as the study will read it: each row has its label and patient
            read_table(path, schema, labelled=True, decimal=arguments.decimal)
    _agree(_not_public(found.texts, public), arguments.yes_to)
    if arguments.deal is not None:
        files, pool = _deal(arguments, out, schema)
    data: dict[str, Any] = {"dataset": "table"}
    if not arguments.range:
        data["pool"] = _beside(pool, out)
    if len(files) > 1:
        data["private"] = [_beside(path, out) for path in files]
    categories = [name for name, values in schema.columns if values]
    notes = _notes(categories)
    apart, parties, about = (
        len(files) == 1,
        {"num_clients": arguments.num_clients or len(files)},
        dict[str, str](),
    )
    if apart:
        parties, about = _asked(arguments.num_clients)
    _write(out, study_template(data=data, schema=schema, notes=notes, name=out.stem, about=about, **parties))
    _say_found(found, schema, out)
    if "num_clients" not in parties:
        print("say in [parties] how many hospitals there are: num_clients")
    elif apart and (arguments.range or pool.is_file()) and (reason := read_study(out).resolve().reason):
        print_lines([f"by default it is {reason}"])
    if apart:
        print(f"try it on this file alone: pate-fed study new --csv {files[0]} --deal 4 --out try.toml")
        print(f"then: pate-fed study init authority --config {out} --address HOST:PORT")
    if arguments.range:
        print_lines([_WITHOUT_POOL])
    elif not pool.is_file():
        print_lines([f"put the public inputs there: {pool}, {_POOL}"])
    if not apart:
        if arguments.range:
            with suppress(InputError):  # whoever runs it is told
                _say_room(Terms.from_json(make_terms_of(out)))
        print(f"try it on these files: flower-simulation --config {out}")
    return 0


def _say_found(found: InferredSchema, schema: Schema, out: Path) -> None:
    """What was read in the files, and what of it is a guess."""
    from pate_fed.data.infer import no_first

    categories, ends = sum(bool(values) for _, values in schema.columns), schema.target_range
    numbers = counted(len(schema.columns) - categories, "column")
    print(f"wrote {out}: {numbers} of numbers, {categories} of categories")
    kind = ", ".join(schema.classes) if ends is None else f"a number from {ends[0]:.15g} to {ends[1]:.15g}"
    told = f"label: {schema.label} ({kind})"
    if schema.labels:
        told = f"labels: {', '.join(f'{name} (no: {no}, yes: {yes})' for name, (no, yes) in schema.labels)}"
    print(printable(f"{told}; patient: {schema.patient or 'none named'}"))
    if guessed := [name for name, values in schema.labels if no_first(values) is None]:
        print(
            printable(f"which value means yes was guessed for {', '.join(guessed)}: turn the two around ")
            + f"under [data.table.labels] in {out} where it is the other"
        )
    for name, why in found.left_out:
        print(f"left out: {printable(name)} {why}")
    for line in _about_patients(found):
        print(line)


def _labels(arguments: argparse.Namespace) -> dict[str, Any]:
    """The column of the label or, where --label is given several times, those of all.

    Raises:
        InputError: one is given twice, or they are several beside what is for one.
    """
    from pate_fed.data.schema import MOST_LABELS

    given = arguments.label
    if len(given) < 2:
        return {"label": given[0] if given else None}
    for place, name in enumerate(given):
        if name in given[:place]:
            raise InputError(f"--label {name}: is given twice")
    if len(given) > MOST_LABELS:
        raise InputError(f"--label: {len(given)} are given, and at most {MOST_LABELS} are meant")
    if arguments.target_range is not None:
        raise InputError("--target-range: is for one label, a number; several are yes or no")
    if arguments.range:
        raise InputError("--label: several want public inputs; give --pool FILE in place of --range")
    return {"labels": given}


def _target_ends(arguments: argparse.Namespace) -> tuple[float, float] | None:
    """What a number as the label can be; None: the label is a class.

    Raises:
        InputError: no such range, or there are no public inputs.
    """
    if (given := arguments.target_range) is None:
        return None
    low, high = _ends(given, given, option="--target-range", meant="LOW:HIGH is meant, as 0:100 or 0.5:2")
    if f"{low:.15g}" == f"{high:.15g}" or not -1e50 <= low < high <= 1e50:
        raise InputError(
            f"--target-range {given}: two numbers are meant, the lower first, other in 15 digits, and "
            "neither beyond 1e50"
        )
    if arguments.range:
        raise InputError("--target-range: a number wants public inputs; give --pool FILE in place of --range")
    return low, high


def _asked(clients: int | None) -> tuple[dict[str, int], dict[str, str]]:
    """What a study at several sites has to say, of `[parties]` and `[about]`, as answered at a terminal."""
    from pate_fed.config.sections import About, Parties
    from pate_fed.structure import entries

    parties = {} if clients is None else {"num_clients": clients}
    if not sys.stdin.isatty():
        return parties, {}

    def answer(question: str, check: Callable[[str], object]) -> str:
        while True:
            print(f"  {question}: ", end="", flush=True)
            if not (text := sys.stdin.readline().strip()):
                return ""
            try:
                check(text)
            except InputError as error:
                print(f"  {error}")
            except ValueError:
                print("  a whole number is meant")
            else:
                return text

    print("Hospitals read this before they say yes. An empty line leaves it open.")
    numbers = {"num_clients": "how many hospitals", "records": "about how many records each of them has"}
    for name, question in numbers.items():
        if name not in parties and (text := answer(question, partial(_numbered, Parties, name))):
            parties[name] = int(text)
    about = {}
    for entry in entries(About):
        shown = entry.setting.help + (f" ({entry.default})" if entry.default else "")
        if text := answer(shown, partial(_stated, About, entry.name)):
            about[entry.name] = text
    return parties, about


def _numbered(section: type, name: str, text: str) -> object:
    return section(**{name: int(text)})


def _stated(section: type, name: str, text: str) -> object:
    return section(**{name: text})


def _not_public(texts: Sequence[Text], pool: Path | None) -> list[Text]:
    """The texts that the public pool does not hold, by whose file anyone may know them."""
    from pate_fed.data.csv_file import CsvFile
    from pate_fed.data.schema import number_in

    if pool is None:
        return list(texts)
    file = CsvFile(pool)
    known: dict[str, set[str | float]] = {name: set() for name in file.header}
    for _, cells in file.rows(plain=True):
        for name, text in zip(file.header, cells, strict=False):
            number = number_in(text)
            known[name].add(text if number is None else number)

    def is_public(text: Text) -> bool:
        if text.value is None:
            return text.column in known
        number = number_in(text.value)
        return (text.value if number is None else number) in known.get(text.column, ())

    return [text for text in texts if not is_public(text)]


def _agree(texts: Sequence[Text], agreed: str | None) -> None:
    """A yes to each text of records that would stand in the study: from a file, or at the terminal.

    Raises:
        InputError: the answer is no, or nobody can be asked here.
    """
    known: set[str] = set()
    if agreed is not None:
        try:
            known = {line.strip() for line in read_file(Path(agreed)).decode("utf-8-sig").splitlines()}
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--yes-to {agreed}: cannot be read as a text in UTF-8") from error
    left = [text for text in texts if _in_a_line(text) not in known]
    if not left:
        return
    if not sys.stdin.isatty():
        listed = "\n".join(_in_a_line(text) for text in left)
        raise InputError(
            "nothing was written: these names and values of records would stand in the study, which leaves "
            "the house, and the public pool does not hold them. Mend the files where one tells of a patient; "
            f"put the others into a file, one a line as here, and give --yes-to FILE:\n{listed}"
        )
    print("These are not in the public pool, and would stand in the study, which leaves the house.")
    names = [text for text in left if text.value is None]
    often = [text for text in left if text.value is not None and text.rows >= _FEW]
    rare = [[text] for text in left if text.value is not None and text.rows < _FEW]
    for group in ([names] if names else []) + ([often] if often else []) + rare:
        for text in group:
            print(f"  {_in_a_line(text)}" + (f"   ({counted(text.rows, 'row')})" if text.rows else ""))
        print(
            f"Type yes if {'it' if len(group) == 1 else 'all of them'} may be known to all: ",
            end="",
            flush=True,
        )
        if sys.stdin.readline().strip().lower() != "yes":
            raise InputError("nothing was written; mend the files, or leave the column out of them")


def _in_a_line(text: Text) -> str:
    """As `--yes-to` has it: a value may hold line breaks."""
    return " ".join(str(text).split())


def _about_patients(found: InferredSchema) -> list[str]:
    """What may be wrong about the patient's column: on it rests what ε protects."""
    if found.cases:
        return [
            f"{found.schema.patient} seems to number cases: a patient with several counts as several; if a "
            "column names patients, give it as --patient"
        ]
    return [
        f"WARNING: values of {name} repeat: is this the patient? Then give --patient {shlex.quote(name)}; "
        "else rows of one patient are not kept together, and ε holds for each row by itself"
        for name in found.perhaps_patients
    ]


def _deal(arguments: argparse.Namespace, out: Path, schema: Schema) -> tuple[list[Path], Path]:
    """The files of `--deal`, in a folder beside the study."""
    from pate_fed.data.infer import deal_csv

    if len(arguments.csv) != 1 or arguments.pool is not None:
        raise InputError(f"--deal {arguments.deal}: goes with one --csv FILE, and makes the pool of it")
    folder = out.parent / f"{out.stem}-files"
    dealt = deal_csv(
        Path(arguments.csv[0]), folder, parties=arguments.deal, schema=schema, decimal=arguments.decimal
    )
    parties = counted(len(dealt.private), "file")
    print(f"dealt out the rows of {arguments.csv[0]}: {parties} of parties and {dealt.pool}")
    if dealt.left_out:
        lacking = "its label" if schema.patient is None else "its label or patient"
        rows = counted(len(dealt.left_out), "row")
        print(f"left out: {rows} without {lacking}, the first of them row {dealt.left_out[0]}")
    return list(dealt.private), dealt.pool


def _with_ranges(arguments: argparse.Namespace, schema: Schema) -> Schema:
    """The schema with the ranges of --range.

    Raises:
        InputError: they are written in another way, of other columns, or go beside a pool.
    """
    if arguments.pool is not None or arguments.deal is not None:
        raise InputError("--range: is for a study without public inputs; leave --pool and --deal out")
    ranges: list[tuple[str, tuple[float, float]]] = []
    for text in arguments.range:
        name, _, ends = text.rpartition("=")
        found = _ends(text, ends, option="--range", meant="COLUMN=LOW:HIGH is meant, as age=0:120")
        ranges.append((name, found))
    return replace(schema, ranges=tuple(ranges))


def _ends(given: str, text: str, *, option: str, meant: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise InputError(f"{option} {given}: {meant}") from None
    return low, high


def _notes(categories: Sequence[str]) -> tuple[str, ...]:
    """What stands above the columns; a column that is left out is named on the terminal alone."""
    notes = [
        "The columns that every file has. A hospital's file may have others: they are never read.",
        "Another study may be meant than these files show: look at the label, the classes and each column.",
    ]
    if categories:
        notes.append(f"The values of {', '.join(categories)} were read from the files, and agreed to.")
    return tuple(notes)


def _beside(path: Path, out: Path) -> str:
    """The file's name as a study at `out` gives it: from there where it lies below, else whole."""
    folder, whole = out.absolute().parent, Path(os.path.abspath(path))
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _write(out: Path, text: str) -> None:
    with naming_refusal(f"{out}: cannot be written"):
        out.write_text(text, encoding="utf-8")


def add_study_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `study`."""
    study = add_command(commands, "study", "at the coordinator: a new study, and who may join it")
    actions = study.add_subparsers(title="actions", required=True, metavar="ACTION")
    add_new_action(actions)
    init = add_command(actions, "init", "make the study's authority and the coordinator's keys")
    init.add_argument("folder", metavar="DIR", help="a new folder; keep ca.key in it as you keep a seal")
    add_option(init, "--config FILE", "the study's study.toml", required=True)
    hospitals = "how many hospitals there are (default: the study's num_clients)"
    add_option(init, "--num-clients N", hospitals, aliases=("--num-hospitals",))
    add_option(init, "--address HOST:PORT", "where hospitals will connect to", required=True)
    add_option(init, "--days N", "until the certificates expire", type=_days, default=365)
    init.set_defaults(run=_study_init)
    admit = add_command(actions, "admit", "sign hospitals' requests; each admission names all the others")
    admit.add_argument("requests", metavar="NAME.req", nargs="+", help="what a hospital sent")
    add_option(admit, "--out FILE", "where one admission is written (default NAME.admission)")
    add_option(admit, "--days N", "until its certificate expires", type=_days, default=365)
    admit.set_defaults(run=_study_admit)
    revoke = add_command(actions, "revoke", "shut a hospital out, also of a running study")
    revoke.add_argument("hospital", metavar="NAME", help="the hospital's name")
    revoke.set_defaults(run=_study_revoke)
    withdraw = add_command(
        actions, "withdraw", "sign a notice that a study's student is not to be used any more"
    )
    withdraw.add_argument(
        "run_dir", metavar="RUN_DIR", help="the run's directory, which has its student.bundle"
    )
    add_option(withdraw, "--reason TEXT", "why, for the hospitals", required=True)
    withdraw.set_defaults(run=_study_withdraw)
    listed = add_command(actions, "list", "the admitted hospitals, and when their certificates expire")
    listed.set_defaults(run=_study_list)
    for action in (admit, revoke, withdraw, listed):
        action.add_argument(
            "--dir", metavar="DIR", default=".", help="the folder of study init (default: here)"
        )


def _days(text: str) -> int:
    days = int(text) if text.lstrip("-").isdigit() else 0
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError(f"{text}: 1 to 3650 days are meant")
    return days


def _study_init(arguments: argparse.Namespace) -> int:
    from clients.policy import Policy
    from pate_fed.cli.terms import ABOUT, make_terms_of
    from pate_fed.config.study import read_study
    from pate_fed.identity import Authority
    from pate_fed.kinds.terms import Terms
    from pate_fed.runtime.addresses import split_address

    if split_address(arguments.address, option="--address")[1] is None:
        raise InputError(f"--address {arguments.address}: HOST:PORT is meant; hospitals need a fixed port")
    terms = make_terms_of(Path(arguments.config), num_hospitals=arguments.num_clients)
    about = Terms.from_json(terms).about
    if unsaid := [name.replace("_", " ") for name in ABOUT if not getattr(about, name)]:
        told = f"warning: [about] of the study leaves open, and hospitals will read so: {', '.join(unsaid)}"
        print_lines([told])
    _say_room(Terms.from_json(terms))
    made = Authority.init(Path(arguments.folder), address=arguments.address, terms=terms, days=arguments.days)
    print(f"made {made.folder}: the study's authority and the coordinator's keys, for {arguments.days} days")
    print(f"for {counted(Terms.from_json(terms).num_clients, 'hospital')}, as [parties] of the study has it")
    if reason := read_study(Path(arguments.config), num_hospitals=arguments.num_clients).resolve().reason:
        print_lines([reason])
    print("the authority's fingerprint, to tell every hospital by telephone:")
    print(f"  {made.words}")
    refused = Policy(least_confirmed=0, least_colluders=0, counts=True).objection(Terms.from_json(terms))
    if refused is not None:
        print(f"warning: a hospital without a policy.toml will not take part: {refused[0].value}")
    public = made.ledger_key().public_key().public_bytes_raw().hex()
    print(f"the ledger will be signed; verify it with: pate-fed ledger verify RUN_DIR --public-key {public}")
    print(f"once all requests are there: pate-fed study admit *.req --dir {made.folder}")
    return 0


def _say_room(terms: Terms) -> None:
    """How many records a hospital may have, where no pool and nobody's word says how many there are."""
    from pate_fed.kinds.rounds import RoundTerms

    if terms.drawn and isinstance(terms.asks, RoundTerms):
        print(
            f"room for {terms.asks.room(terms):,} records at each of {terms.num_clients} hospitals; where "
            "one has more, say about how many under [parties] of the study: records"
        )


def _study_admit(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority, read_request

    authority = Authority(Path(arguments.dir))
    before = authority.hospital_names()
    requests = [read_request(Path(path)) for path in arguments.requests]
    if arguments.out is not None and len(requests) > 1:
        raise InputError(f"--out {arguments.out}: is for one request; without it each has its own file")
    for admission, asked in zip(
        authority.admit_all(map(Path, arguments.requests), days=arguments.days), requests, strict=True
    ):
        out = Path(arguments.out or f"{admission.hospital}.admission")
        admission.write(out)
        print(f"admitted {asked.name} for {arguments.days} days and wrote {out}; nothing in it is secret")
        print(f"hear from {asked.name} by telephone that its words are these, then send it that file:")
        print(f"  {asked.fingerprint}")
    print("the authority's words, which each hospital compares by telephone before it accepts:")
    print(f"  {authority.words}")
    _say_late([name for name in before if name not in {asked.name for asked in requests}])
    return 0


def _say_late(others: Sequence[str]) -> None:
    """Whose admission is older than this change of who takes part, and what these people do."""
    if others:
        print(f"tell {named(others)}: their admissions are older. A new one (admit their requests again, it")
        print("keeps their keys) shows the change, and `pate-fed hospital accept` confirms it by telephone")


def _study_revoke(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority

    authority = Authority(Path(arguments.dir))
    authority.revoke(arguments.hospital)
    print(f"revoked {arguments.hospital}; a running coordinator shuts it out within seconds")
    _say_late(authority.hospital_names())
    return 0


_MOST_REASON = 1000  # letters, which a notice has room for


def _study_withdraw(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority
    from pate_fed.identity.bundle import BUNDLE_FILE, Bundle, Withdrawal
    from pate_fed.protocol.messages import MOST_STUDENT

    if not 1 <= len(arguments.reason.strip()) <= _MOST_REASON:
        raise InputError(
            f"--reason: {len(arguments.reason)} letters; a sentence of 1 to {_MOST_REASON} is meant"
        )
    path, key = Path(arguments.run_dir) / BUNDLE_FILE, Authority(Path(arguments.dir)).ledger_key()
    with naming_refusal(f"{path}: the student that hospitals got cannot be read"):
        bundle = Bundle.read(read_file(path, most=MOST_STUDENT), where=str(path), public=key.public_key())
    notice = Withdrawal(
        study=bundle.facts.study,
        student=bundle.digest,
        reason=arguments.reason,
        day=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    out = path.with_name(Withdrawal.name(bundle.digest))
    _write(out, notice.signed(key).decode())
    print(f"wrote {out}: send it to every hospital and to all who got the student")
    print(f"there: pate-fed hospital predict STUDY --withdrawn {out.name}")
    return 0


def _study_list(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import Authority
    from pate_fed.identity.certificates import days_left

    for name, certificate in Authority(Path(arguments.dir)).admitted():
        left = days_left(certificate)
        print(f"{name}  {'expired' if left < 0 else f'{left} days left'}")
    return 0
