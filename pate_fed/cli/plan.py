"""`pate-fed plan` and `audit`: what a budget affords, and the mechanisms sampled against their ε."""

from __future__ import annotations

import argparse
import json
import shlex
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option, print_lines
from pate_fed.config.backend import PROCESSES, cores, teaching_seconds
from pate_fed.config.defaults import SUMS_EPSILON, known_records
from pate_fed.config.sections import Privacy
from pate_fed.config.study import Study, load_study, read_study, study_from_dict
from pate_fed.errors import InputError, IntegrityError
from pate_fed.flower import prepare_environment
from pate_fed.format import counted, delta_text, duration_text, epsilon_json, epsilon_text
from pate_fed.privacy import Plan, Pool, Protection, audit_all, noise_from_seed, plan
from pate_fed.privacy.protection import PATIENT_UNIT, UNITS
from pate_fed.runtime.run_dir import fresh_run_dir
from pate_fed.structure import to_plain
from pate_fed.structure.parts import is_part, load_part, search_folder

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.privacy.mechanisms.own import OwnMechanism
    from pate_fed.privacy.planning.choice import Sites


def add_plan_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `plan`."""
    plan = add_command(commands, "plan", "votes, class sums or alone, and what a budget affords; no data")
    add_option(plan, "--config FILE", "a study.toml that says what is not given here")
    add_option(plan, "--epsilon X", "ε against all who see labels; needed without --config")
    add_option(plan, "--delta X", "δ of that ε (default 1e-5)")
    add_option(plan, "--teachers N", "teachers in all hospitals (default 250; with --records one each)")
    hospitals = "hospitals that hold them"
    add_option(plan, "--num-clients N", hospitals, aliases=("--hospitals",), dest="hospitals")
    add_option(plan, "--records N", "records of one hospital: compares votes, class sums and alone")
    alone = "accuracy of a hospital's own model, if it can on others' patients, 0 to 1; with --pilot"
    add_option(plan, "--alone X", f"{alone} beside a rare class the mean of all classes'")
    tries = "try class sums and votes on public inputs of --config whose labels are known; takes minutes"
    add_option(plan, "--pilot", tries)
    add_option(plan, "--public-features", "only labels are private: compares private labels too")
    add_option(plan, "--classes N", "classes to tell apart (default 10)")
    agreement = "share of teachers that vote right, or a .npy or .npz of a PAST study's totals"
    add_option(plan, "--agreement SHARE|FILE", f"{agreement} (default 0.85; with --records by these)")
    add_option(plan, "--max-queries N", "public inputs that may be asked about", default=9000)
    add_option(plan, "--unit", "what is protected (default record)", choices=UNITS)
    adjacency = ("replace-one", "add-or-remove-one")
    how = f"how neighbours differ in one unit (default {adjacency[0]})"
    add_option(plan, "--adjacency", how, choices=adjacency)
    add_option(
        plan,
        "--votes-moved N",
        "teachers that one unit can sway (default: of a hospital all; else one at each of its hospitals, or "
        "two where it is replaced and they have several)",
    )
    add_option(plan, "--hospitals-per-patient N", "with --unit patient: hospitals of one patient (default 1)")
    add_option(
        plan,
        "--aggregator NAME",
        "confident-gnmax, gnmax or lnmax (default: the better of the first two), or your own as "
        "module:attribute, at the parameters that it has",
    )
    add_format_option(plan)
    plan.set_defaults(run=_plan)


def add_audit_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `audit`."""
    audit = add_command(commands, "audit", "sample the mechanisms, and hold them against the ledger's ε")
    add_option(
        audit, "--trials N", "samples a mechanism; the default notices a tenth less noise", default=10_000
    )
    add_option(audit, "--confidence X", "of the lower bounds (default 0.999; with --study 0.99)")
    shrink = "share of the charged noise that is drawn; below 1 the audit must fail, with enough trials"
    add_option(audit, "--shrink X", shrink, default=1.0)
    add_option(audit, "--seed N", "seeded noise: quicker, and repeatable")
    own = "a mechanism of your own, module:attribute, in place of ours; held against what it claims"
    add_option(audit, "--aggregator NAME", own)
    add_option(
        audit, "--config FILE", "a study.toml that names such a mechanism, its parameters and teachers"
    )
    add_option(audit, "--study", "instead, studies of ten canaries a trial, guessed from the student")
    add_format_option(audit)
    audit.set_defaults(run=_audit)


def _plan(arguments: argparse.Namespace) -> int:
    data = read_study(Path(arguments.config)).data if arguments.config else None
    if data is not None and (data.drawn or data.no_class):
        return _plan_sums(arguments, no_class=data.no_class)
    _fill(arguments)
    from pate_fed.privacy.planning.choice import choose

    sites = _sites(arguments)
    if arguments.pilot:
        sites = _tried(arguments, sites)
    made = _make_plan(arguments, sites)
    made = replace(
        made,
        command=_with_study(made.command, arguments.config),
        hospital_noise_command=_with_study(made.hospital_noise_command, arguments.config),
    )
    choice = None if sites is None else choose(sites, made.best)
    if choice is not None:
        choice = replace(choice, command=_with_study(choice.command, arguments.config))
    if arguments.format == "json":
        print(json.dumps({**made.to_dict(), "choice": None if choice is None else choice.to_dict()}))
    else:
        print_lines([*([] if choice is None else [*choice.lines(), "", "what votes afford"]), *made.lines()])
    return 0


def _plan_sums(arguments: argparse.Namespace, *, no_class: str) -> int:
    """What a study of sums alone gives, at its own ε: it has no public inputs, or its label is `no_class`."""
    from pate_fed.cli.terms import make_terms_of
    from pate_fed.kinds.terms import Terms, worst_epsilon
    from pate_fed.privacy.planning.choice import sums_way

    if arguments.epsilon is not None:
        raise InputError(f"--epsilon {arguments.epsilon:g}: it is epsilon under [privacy] in the study")
    terms = Terms.from_json(make_terms_of(Path(arguments.config), num_hospitals=arguments.hospitals))
    epsilon = arguments.epsilon = worst_epsilon(terms)[0]
    _fill(arguments)
    sites = _sites(arguments)
    way = None if sites is None or no_class else sums_way(sites)
    if arguments.format == "json":
        values = {"epsilon": epsilon_json(epsilon), "delta": terms.delta, **terms.words.values}
        print(json.dumps({**values, "expected": None if way is None else to_plain(way)}))
        return 0
    why = f"the label is {no_class}" if no_class else "no public inputs"
    why = why.replace("label is several", "records have several")
    lines = [f"{why}: nothing is voted on; asked are {terms.words.asked}"]
    lines += [f"{name}: {text}" for name, text in terms.words.settings("records")]
    lines.append(f"ε {epsilon_text(epsilon)} at δ {delta_text(terms.delta)}, for one {terms.privacy.unit}")
    if no_class:
        lines.append("how near its student comes is not estimated")
    elif way is None:
        lines.append("how right their student is follows from how many records there are: give --records N")
    else:
        lines.append(f"their student is right in {way.low:.0%} to {way.high:.0%}, by estimate: {way.rests}")
        lines.append("that is with public inputs; without any it is some points less")
    print_lines(lines)
    return 0


def _with_study(command: str | None, config: str | None) -> str | None:
    """A plan's command for the study in the file `config`, which its options change."""
    if command is None or config is None:
        return command
    program, _, options = command.partition(" ")
    options, _, keys = options.partition(" --config study.toml")
    return f"{program} --config {shlex.quote(config)} {options}{keys}"


def _fill(arguments: argparse.Namespace) -> None:
    """Put what the study says, or a default, where an option was not given."""
    values: dict[str, Any] = {"delta": 1e-5, "classes": 10, "unit": "record", "adjacency": "replace-one"}
    values["hospitals_per_patient"], given = 1, arguments.hospitals_per_patient
    arguments.sums_epsilon = arguments.epsilon
    if arguments.config:
        study = read_study(Path(arguments.config), num_hospitals=arguments.hospitals)
        ensemble, privacy = study.ensemble(), study.privacy
        values = {
            "epsilon": ensemble.budget,
            "sums_epsilon": privacy.epsilon or SUMS_EPSILON,
            "delta": privacy.delta,
            "classes": ensemble.num_classes,
            "unit": ensemble.protection.unit,
            "adjacency": privacy.adjacency,
            "hospitals": study.parties.num_clients,
            "teachers": ensemble.num_teachers,
            "records": known_records(study),
            "hospitals_per_patient": privacy.hospitals_moved,
        }
    values.setdefault("teachers", arguments.hospitals if arguments.records else 250)
    for name, value in values.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if given is None and arguments.unit != PATIENT_UNIT:
        arguments.hospitals_per_patient = 1
    if arguments.epsilon is None:
        raise InputError("--epsilon: the budget is meant, such as 1; or --config with a study")
    if arguments.records is not None and arguments.hospitals is None:
        raise InputError(f"--records {arguments.records}: --num-clients is meant beside it")


def _protection(arguments: argparse.Namespace) -> Protection:
    at = arguments.hospitals_per_patient
    privacy = Privacy(unit=arguments.unit, adjacency=arguments.adjacency, hospitals_per_patient=at)
    known = arguments.hospitals and arguments.hospitals > 0
    found = privacy.protection(max(1, -(-arguments.teachers // arguments.hospitals)) if known else 1)
    moved = arguments.votes_moved
    return found if moved is None else replace(found, votes_moved=moved)


def _sites(arguments: argparse.Namespace) -> Sites | None:
    """What a choice rests on; None where nobody says how many records there are."""
    if arguments.records is None:
        return None
    from pate_fed.privacy.planning.choice import Sites

    return Sites(
        hospitals=arguments.hospitals,
        teachers=arguments.teachers,
        records=arguments.records,
        classes=arguments.classes,
        epsilon=arguments.sums_epsilon,
        votes_epsilon=arguments.epsilon,
        delta=arguments.delta,
        alone=arguments.alone,
        protection=_protection(arguments),
        public_features=arguments.public_features,
    )


def _tried(arguments: argparse.Namespace, sites: Sites | None) -> Sites:
    """The same, with what class sums give in small on the study's own public inputs."""
    from pate_fed.config.data import load_study_data
    from pate_fed.kinds.pilot import with_pilot

    if sites is None or not arguments.config:
        raise InputError("--pilot: --config with a study that has public inputs, and --records, are meant")
    study = read_study(Path(arguments.config), num_hospitals=arguments.hospitals)
    return with_pilot(sites, study, load_study_data(study))


def _make_plan(arguments: argparse.Namespace, sites: Sites | None) -> Plan:
    from pate_fed.privacy.planning.vote_model import past_votes_from_file

    agreement = 0.85 if sites is None else sites.agreement
    known, tried = arguments.agreement, None if sites is None else sites.votes
    try:
        votes: Any = (tried or agreement) if known is None else float(known)
    except ValueError:
        votes = past_votes_from_file(Path(known))
    return plan(
        num_teachers=arguments.teachers,
        num_classes=arguments.classes,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        pool=Pool(votes=votes, max_queries=arguments.max_queries),
        num_hospitals=arguments.hospitals,
        aggregator=_aggregator(arguments),
        protection=_protection(arguments),
    )


def _aggregator(arguments: argparse.Namespace) -> Any:
    """The aggregator that is named; one of the user's own made of the parameters in the study's file."""
    from pate_fed.privacy.mechanisms.own import KIND, make_aggregator

    search_folder(Path.cwd())
    name, given = arguments.aggregator, {}
    if arguments.config:
        given = load_study(Path(arguments.config)).get("aggregation", {})
        name = name or (given.get("aggregator") if is_part(str(given.get("aggregator")), KIND) else None)
    if name is None or not is_part(name, KIND) or not given.get("parameters"):
        return name
    return make_aggregator(load_part(name, KIND), given["parameters"], what=f"{KIND} {name!r}")


def _own_mechanism(arguments: argparse.Namespace) -> OwnMechanism:
    """The mechanism of the user's own that is to be audited, in a default study or in the one named."""
    from pate_fed.kinds.make import study_mechanism

    if arguments.shrink != 1.0:
        raise InputError("--shrink: the noise of a mechanism of your own is its own affair; leave it out")
    search_folder(Path.cwd())
    values = {} if arguments.config is None else load_study(Path(arguments.config))
    if arguments.aggregator is not None:
        values["aggregation"] = {**values.get("aggregation", {}), "aggregator": arguments.aggregator}
    study = study_from_dict(values, where=arguments.config or "--aggregator").resolve()
    study = replace(study, privacy=replace(study.privacy, unit=study.privacy.planned_unit))
    mechanism = study_mechanism(study, num_classes=study.data.num_classes or 10)
    if mechanism is None:
        raise InputError(
            f"--aggregator {study.aggregation.aggregator}: is ours, and audited without this option; "
            "module:attribute of your own is meant"
        )
    return mechanism


def _audit(arguments: argparse.Namespace) -> int:
    how: dict[str, Any] = {"trials": arguments.trials}
    if arguments.confidence is not None:
        how["confidence"] = arguments.confidence
    noise = noise_from_seed(arguments.seed)
    own = arguments.aggregator is not None or arguments.config is not None
    if arguments.study:
        from pate_fed.testing import audit_study

        if own or arguments.shrink != 1.0:
            raise InputError("--study: goes without --aggregator, --config and --shrink")
        found = [audit_study(noise_at=at, seed=arguments.seed, **how) for at in ("coordinator", "hospitals")]
    elif not own:
        found = audit_all(noise, shrink=arguments.shrink, **how)
    else:
        from pate_fed.privacy.planning.attack import audit_own

        found = [audit_own(_own_mechanism(arguments), noise, **how)]
    if arguments.format == "json":
        print(json.dumps([{**asdict(result), "passed": result.passed} for result in found]))
    else:
        print_lines(result.line() for result in found)
    return 0 if all(result.passed for result in found) else IntegrityError.exit_code


def dry_run(study: Study, *, run_dir: str | None, as_json: bool) -> int:
    """`--dry-run`: check a study as its run would, and show what is known before the first message.

    Nothing is started. Only the cache of a drawn data set may be written.
    """
    prepare_environment()
    from pate_fed.kinds.terms import guarantee_lines, largest_messages
    from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
    from server.app import Coordinator

    study = study.resolve()
    folder = fresh_run_dir(run_dir, study.name)
    coordinator = Coordinator(
        study, run_dir=folder, quiet=True, stop=threading.Event(), started=time.perf_counter()
    )
    terms, fixed, sizes = coordinator.terms, coordinator.ledger_terms, largest_messages(coordinator.terms)
    most = {"to_party": sizes.to_hospital, "to_coordinator": sizes.to_coordinator}
    seconds = _teaching_seconds(study, terms)
    if as_json:
        figures: dict[str, Any] = {
            "status": "dry run",
            "study": study.name,
            "num_clients": terms.num_clients,
            "num_teachers": terms.num_teachers,
            "num_classes": terms.num_classes,
            "pool_size": terms.pool_size,
            "aggregation": to_plain(study.aggregation),
            "chosen": study.reason or None,
            "most_queries": terms.max_queries,
            "most_labels": terms.labels,
            "delta": terms.delta,
            "guaranteed": {
                "student": epsilon_json(guaranteed_epsilon(fixed)),
                "coordinator": epsilon_json(guaranteed_coordinator_epsilon(fixed)),
            },
            "claimed_by": fixed.assumptions.sources,
            "coordinator_sees": fixed.coordinator.text(),
            "largest_message_bytes": most,
            "teaching_seconds": seconds,
        }
        print(json.dumps(figures, ensure_ascii=False))
        return 0
    to, back = (f"{size / 1e6:.1f} MB" for size in most.values())
    largest = f"largest message: below {to} to a party, below {back} to the coordinator"
    lines = [*_study_lines(study, terms), *guarantee_lines(fixed), largest]
    print_lines([*lines, _time_line(study, seconds)])
    print("dry run: nothing was started, asked or written")
    return 0


def _study_lines(study: Study, terms: Terms) -> list[str]:
    teachers = f", {counted(terms.num_teachers, 'teacher')}" if terms.num_teachers else ""
    chosen = study.aggregation
    checked = {"T": chosen.threshold, "σ1": chosen.sigma1} if chosen.has_threshold else {}
    noise = {**checked, "σ2": chosen.sigma2}
    fixed = [f"{name} {value:g}" for name, value in noise.items() if value is not None]
    pool = f"{terms.pool_size} rows drawn from ranges" if terms.drawn else f"a pool of {terms.pool_size}"
    return [
        f"study: {study.name} ({study.data.dataset}, {terms.words.outcomes})",
        f"parties: {terms.num_clients}{teachers}",
        f"aggregator: {', '.join([chosen.aggregator, *fixed])}",
        f"asked: {terms.words.asked_of_pool}, of {pool}",
        *([f"chosen: {study.reason}"] if study.reason else []),
    ]


def _teaching_seconds(study: Study, terms: Terms) -> float | None:
    if not terms.asks.trains:
        return 0.0  # nothing is trained
    return teaching_seconds(
        study.teacher.name,
        backend=study.engine.backend,
        num_clients=terms.num_clients,
        num_teachers=terms.num_teachers,
        available=cores(),
    )


def _time_line(study: Study, seconds: float | None) -> str:
    if seconds is None:
        return f"time: nobody knows how long {study.teacher.name} teaches"
    if not seconds:
        return "time: no teacher is trained; the student's alone"
    where = "at each hospital" if study.engine.backend == PROCESSES else "here"
    return f"time: roughly {duration_text(seconds)} of teaching {where}, and the student's after it"
