"""The report as text."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from batchwright.lab import Comparison, compare, format_report, print_report
from batchwright.lab.metrics import METRICS
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.request import SLO
from lab.hand import request, run
from lab.test_compare import noisy


def arms(**values: Any) -> list[RunRecord]:
    a = replace(noisy("prefill_first", 1, **values), settings={"policy": {"use": "prefill_first"}, "max_num_seqs": 8})
    b = replace(
        noisy("stall_free", 2, shift=1.2, **values),
        settings={"policy": {"use": "stall_free", "chunk_size": 512}, "max_num_seqs": 8},
        limits=RunLimits(8, 2048, 64, 4096, 1024, 16),
    )
    return [a, b]


def rows(text: str) -> dict[str, str]:
    """Lines of a report by the label they begin with."""
    return {line[:18].strip(" *"): line for line in text.splitlines() if line.strip()}


@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_fits_and_is_plain(width) -> None:
    text = format_report(compare(arms(slo=SLO(tpot_s=0.02))), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_header_names_what_arms_share_and_in_what_they_differ() -> None:
    runs = arms()
    runs[0].workload["speedup"] = runs[1].workload["speedup"] = 2.5
    text = format_report(compare(runs), 100)
    assert "hand (200 requests, --speedup 2.5, hash 00)" in text
    assert "backend    sim:some@gpu" in text
    assert "max_tokens exact" in text
    (limits,) = [line for line in text.splitlines() if line.startswith("limits")]
    assert "max_num_seqs 8" in limits
    assert "max_num_residents" not in limits  # arms differ in it
    differ = text[text.index("arms differ in") : text.index("Mean TTFT")]
    assert "policy.use        prefill_first stall_free" in differ
    assert "policy.chunk_size none          512" in differ
    assert "max_num_seqs" not in differ


def test_arms_of_several_backends_are_told_apart() -> None:
    a, b = arms()
    text = format_report(compare([a, replace(b, backend="cpu:small", virtual_time=False)]), 120)
    assert "prefill_first: sim:some@gpu; stall_free: cpu:small, real time" in text


def test_rows_give_both_values_the_difference_its_interval_and_the_verdict() -> None:
    found = compare(arms())
    text = rows(format_report(found))
    verdict = found.verdict("mean_itl_ms")
    line = text["Mean ITL (ms)"]
    assert f"{verdict.base:,.2f}" in line
    assert f"{verdict.value:,.2f}" in line
    assert f"{100 * verdict.relative:+.1f}% [{100 * verdict.interval.relative_low:+.1f}, " in line
    assert line.endswith(" worse")
    verdict = found.verdict("median_ttft_ms")
    low, high = verdict.interval.relative_low, verdict.interval.relative_high
    interval = f"[{100 * low:+.1f}%, {100 * high:+.1f}%]"
    assert text["Median TTFT (ms)"].endswith(f"{interval} no difference shown")
    assert text["Refused"].endswith("no difference")
    assert text["Throughput (req/s)"].rstrip().endswith("%")  # one number a run: no verdict


def test_only_what_was_tested_has_the_mark_of_a_primary_metric() -> None:
    """Throughput is a primary one too, and a number a run."""
    found = compare(arms())
    text = format_report(found)
    assert "Mean ITL (ms) *" in text and "Output tokens/s " in text and "Output tokens/s *" not in text
    assert found.label(METRICS["mean_itl_ms"]) == "Mean ITL (ms) *"
    assert found.label(METRICS["output_throughput"]) == "Output tokens/s"
    assert "What has no verdict was not tested." in " ".join(text.split())


def test_what_did_not_finish_stands_beside_goodput() -> None:
    """Scenario B3."""
    a, b = arms(slo=SLO(ttft_s=0.05))
    b.requests[3] = replace(b.requests[3], status="refused", error="no room")
    b.requests[4] = replace(b.requests[4], status="aborted")
    text = format_report(compare([a, b]))
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Goodput (req/s)"))
    labels = [line[:18].strip() for line in lines[at + 1 : at + 6]]
    assert labels == ["Finished", "Refused", "Unfinished", "Failed", "Aborted"]
    assert lines[at + 1].split() == ["Finished", "200", "198", "-2"]
    assert lines[at + 2].split() == ["Refused", "0", "1", "+1"]
    assert "stall_free: 1 refused, 1 aborted of 200 requests" in " ".join(text.split())
    assert "no room" in text


def test_metrics_that_no_arm_has_are_left_out() -> None:
    text = format_report(compare(arms()))
    assert "Goodput" not in text
    assert "Aborted" not in text
    assert "Without TPOT" not in text
    one_token = run([request(i, times_ms=[5]) for i in range(12)])
    text = rows(format_report(compare([one_token, replace(one_token, arm="b")])))
    assert "Mean TPOT (ms)" not in text
    assert text["Without TPOT"].split()[2:4] == ["12", "12"]


def test_three_arms_stand_beside_each_other() -> None:
    a, b = arms()
    text = format_report(compare([a, b, replace(a, arm="third")]))
    assert max(map(len, text.splitlines())) <= 80
    line = rows(text)["Mean ITL (ms)"]
    assert len(line.split()) == 7
    assert "worse" in text
    assert "stall_free" in text
    assert "third" in text


def test_one_arm_has_no_differences() -> None:
    text = format_report(compare(arms()[:1]))
    assert "difference" not in text
    assert "Mean TTFT (ms)" in text


def test_a_long_name_is_broken_at_its_parameters() -> None:
    a, b = arms()
    text = format_report(compare([a, replace(b, arm="stall_free:chunk_size=512,other=1")]))
    lines = text.splitlines()
    last = next(i for i, line in enumerate(lines) if line.startswith("arms differ in"))
    assert [line.split() for line in lines[last - 2 : last + 1]] == [
        ["stall_free:"],
        ["chunk_size=512,"],
        ["arms", "differ", "in", "prefill_first", "other=1"],
    ]
    assert max(map(len, text.splitlines())) <= 80
    assert rows(text)["Mean ITL (ms)"].endswith(" worse")


def test_names_with_brackets_are_no_markup() -> None:
    a, b = arms()
    text = format_report(compare([replace(a, arm="[red]x[/red]"), replace(b, arm="[/]")]), 120)
    assert "[red]x[/red]" in text
    assert "[/]" in text


def test_a_terminal_gets_colour_and_a_file_does_not() -> None:
    found = compare(arms())

    def printed(terminal: bool) -> str:
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal, _environ={"TERM": "xterm-256color"})
        print_report(found, console)
        return console.file.getvalue()

    assert "\x1b[31m" in printed(True)
    assert "\x1b" not in printed(False)


def test_the_closing_lines_end_the_report() -> None:
    found = compare(arms())
    text = format_report(found)
    assert isinstance(found, Comparison)
    ending = " ".join(text[text.index("Differences are to") :].split())
    for line in found.closing:
        assert line in ending
