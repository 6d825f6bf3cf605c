"""The study's terms, as the report names them."""

from __future__ import annotations

from dataclasses import replace

from builders import vary

from pate_fed.report.result import RunResult
from pate_fed.report.text import describe_terms, engine_text


def test_only_what_applies_is_named(run_result: RunResult) -> None:
    told = dict(describe_terms(run_result))
    assert told["Public pool"].startswith("10,000 images")
    assert "Sums reach the coordinator" not in told and "Questions" not in told
    assert told["Budget"] == "none was set; ε is reported"
    several = vary(run_result.study, teachers_per_client=4, records_per_teacher=200)
    assert (
        "1 to 4, as each said before; one for 200 records was proposed"
        in dict(describe_terms(replace(run_result, study=several)))["Teachers a hospital"]
    )


def test_an_engine_is_named_in_words() -> None:
    assert engine_text("inline") == "one process"
    assert engine_text("grpc") == "a process for each hospital, over gRPC"
    assert engine_text("another") == "another"
