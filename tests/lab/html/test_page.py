"""report.html: what it says, and that it needs nothing and trusts nobody."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright.lab import Comparison, compare, format_report
from batchwright.lab.figures.arms import arms_of
from batchwright.lab.html import missing_for_reports, need_report
from batchwright.lab.html.page import render_report
from batchwright.lab.html.tables import differing_table, outcome_table
from batchwright.lab.metrics import METRICS
from batchwright.lab.shown import shown_metrics
from batchwright.lab.verdict import NOT_TESTED
from lab.figures.comparisons import arm, crowd, pair, seeded, simulated, single, troubled, windowed
from lab.hand import request, run
from lab.html.pages import Page

EXPERIMENT: dict[str, Any] = {
    "folder": "results/monday",
    "command": ["batchwright", "ab", "a", "b:x=1", "--workload", "my trace.csv", "--out", "results/monday"],
    "environment": {"batchwright": "0.1", "machine": {"cpu": "Some <b>CPU</b>", "cores": 2}, "commit": "abc123"},
}


@cache
def source(make: Callable[[], Comparison], with_experiment: bool = True) -> str:
    return render_report(make(), [EXPERIMENT] if with_experiment else [])


EVERY = [pytest.param(make, id=make.__name__) for make in (pair, seeded, crowd, single, troubled, simulated, windowed)]


@pytest.mark.parametrize("make", EVERY)
def test_it_is_sound_and_needs_nothing_from_elsewhere(make: Callable[[], Comparison]) -> None:
    text = source(make)
    page = Page(text)
    assert page.unclosed == []
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes), attributes
        for name in ("src", "href", "xlink:href", "data", "action", "poster"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:,", "data:image/png;")), (tag, value)
            if value.startswith("#") and len(value) > 1:
                assert value[1:] in page.ids
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_offered_and_finished_are_of_the_same_requests() -> None:
    """Those that count; what does not is said beside."""
    text = Page(source(windowed)).text
    assert "64 of 80 requests: the first 10% and the last 10% are left out" in text
    assert "What became of the requests (without the first 10% and the last 10%)" in text
    (a, b) = outcome_table(windowed()).rows
    assert a[1:3] == ["64", "64"] == b[1:3]
    assert "What every arm was offered, by seed 0 of 3" in Page(source(seeded)).text


@pytest.mark.parametrize("make", EVERY)
def test_it_can_be_read_aloud_and_walked_with_keys(make: Callable[[], Comparison]) -> None:
    page = Page(source(make))
    (root,) = page.all("html")
    assert root["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for svg in page.all("svg"):
        assert svg["role"] == "img"
        assert len(svg["aria-label"]) > 40
    for cell in page.all("th"):
        assert cell["scope"] in ("row", "col")
    for name, attributes in page.elements:
        if "scroll" in attributes.get("class", "").split():
            assert name == "div"
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
    sections = [s["aria-labelledby"] for s in page.all("section")]
    assert set(sections) <= set(page.ids)
    assert {a["href"][1:] for a in page.all("a")} <= set(page.ids)


def test_the_same_runs_give_the_same_page() -> None:
    assert render_report(pair(), [EXPERIMENT]) == source(pair)


# What it says ----------------------------------------------------------------------------------------------------


def test_verdicts_come_first_with_size_and_interval() -> None:
    comparison, page = pair(), Page(source(pair))
    text = page.text
    headings = ("stall_free against A prefill_first", "Worse", "What became of the requests", "Time to first token")
    assert [text.index(words) for words in headings] == sorted(text.index(words) for words in headings)
    verdict = comparison.verdict("mean_itl_ms")
    assert verdict.interval is not None and verdict.base is not None and verdict.value is not None
    worse = text[text.index("Worse") : text.index("What became of the requests")]
    assert f"Mean ITL (ms) * {verdict.base:,.2f} {verdict.value:,.2f} +{100 * (verdict.relative or 0):.1f}%" in worse
    assert comparison.method in text
    for line in comparison.closing:
        assert line in text


def test_the_headline_counts() -> None:
    text = Page(source(pair)).text
    better, worse, rest = (
        int(found[1]) if (found := re.search(pattern, text)) else 0
        for pattern in (r"better in (\d+)", r"worse in (\d+)", r"no difference is shown in (\d+)")
    )
    (total,) = re.findall(r"Of (\d+) metrics here that could be tested", text)
    assert better + worse + rest == int(total)
    assert worse > 0


@pytest.mark.parametrize("make", [pair, seeded, crowd, troubled])
def test_verdicts_tables_and_the_terminal_mark_the_same_metrics(make: Callable[[], Comparison]) -> None:
    """Those with an interval, of which the note below says how sure it is."""
    comparison, text = make(), Page(source(make)).text
    tested = {v.metric for v in comparison.verdicts if v.interval is not None}
    terminal = format_report(comparison, 200)
    assert tested & set(comparison.family.primary)
    for name in comparison.family.primary:
        marked = f"{METRICS[name].label} *"
        assert (marked in text) == (marked in terminal) == (name in tested), name


def test_what_is_not_tested_is_listed_with_its_reason() -> None:
    verdicts = Page(source(pair)).text.partition("What became of the requests")[0]
    _, _, untested = verdicts.partition("Not tested It differs")
    assert "one number of one run, or better neither way" in untested
    for verdict in pair().verdicts:
        if METRICS[verdict.metric] in shown_metrics() and verdict.words == NOT_TESTED:
            assert METRICS[verdict.metric].label in untested


@pytest.mark.parametrize("make", [pair, simulated, troubled])
def test_arms_differ_in_the_same_on_a_terminal_and_in_the_report(make: Callable[[], Comparison]) -> None:
    comparison = make()
    table = differing_table(arms_of(comparison))
    lines = [line.split() for line in format_report(comparison, 300).partition("arms differ in")[2].splitlines()]
    assert (table is not None) == ("arms differ in" in format_report(comparison, 300))
    if table is not None:
        assert [" ".join(row).split() for row in table.rows] == lines[1 : 1 + len(table.rows)]
        assert not lines[1 + len(table.rows)]


def test_arms_of_several_backends_are_told_apart() -> None:
    a, b = arm("a"), replace(arm("b"), backend="cpu:small", virtual_time=False)
    text = Page(render_report(compare([a, b]))).text
    assert f"a: {a.backend}; b: cpu:small, real time" in text


def test_classes_of_requests_have_a_table() -> None:
    record = arm("a")
    record.requests = [replace(r, slo_class="chat" if i % 2 else "code") for i, r in enumerate(record.requests)]
    text = Page(render_report(compare([record]))).text
    assert "Classes of requests of a Class Requests Attained (%) Mean TTFT (ms) P99 TTFT (ms)" in text
    assert re.search(r" chat \d+ ", text)


def test_alike_arms_are_called_alike() -> None:
    same = compare([arm("a"), replace(arm("a"), arm="b")])
    text = Page(render_report(same)).text
    assert "No metric could be tested" in text
    assert "The same in both:" in text


def test_one_arm_has_no_verdicts() -> None:
    text = Page(source(single)).text
    assert "One arm ran: there is nothing to compare it with." in text
    assert "Differences to" not in text


def test_goodput_stands_beside_what_it_leaves_out() -> None:
    text = Page(source(troubled)).text
    table = text[text.index("What became of the requests") :]
    head = "Arm Offered Finished Refused Failed Aborted Unfinished Goodput (req/s)"
    assert head in table
    assert re.search(r"B b 30 26 1 1 1 1 ", table)
    assert re.search(r"C c 30 0 0 0 0 30 ", table)
    assert "no objectives" in Page(render_report(compare([run([request(times_ms=[5, 9])])]))).text


def test_every_metric_is_in_the_table() -> None:
    comparison, text = pair(), Page(source(pair)).text
    for name, metric in comparison.metrics.metrics.items():
        if any(summary.get(name) is not None for summary in comparison.summaries.values()):
            assert metric.label in text
        if metric.doc:
            assert metric.doc in text


def test_workload_settings_and_how_to_run_it_again() -> None:
    a, b = arm("a"), arm("b")
    b.settings = {"policy": {"use": "some_policy", "chunk_size": 512}, "max_num_seqs": 9}
    text = Page(render_report(compare([a, b]), [EXPERIMENT])).text
    assert "Settings in which arms differ" in text
    assert "policy.chunk_size none 512" in text
    assert "max_num_seqs 8 9" in text
    assert "TTFT 0.03 s and TPOT 0.02 s" in text
    assert re.search(r"Arrivals 20 requests/s over 3.95 s", text)
    assert "Output tokens asked for 6 each" in text
    assert "batchwright ab a b:x=1 --workload 'my trace.csv' --out results/monday" in text
    assert "commit abc123" in text
    assert "machine.cpu Some <b>CPU</b>" in text


def test_events_are_counted() -> None:
    a = arm("a")
    a.events = [{"kind": "thrash", "step": 7}, {"kind": "thrash", "step": 90}, {"kind": "starvation", "request": "<i>"}]
    text = Page(render_report(compare([a]))).text
    assert re.search(r'A a 0 thrash 2 \{"step": 7\}', text)
    assert re.search(r'A a 0 starvation 1 \{"request": "<i>"\}', text)
    assert "Nothing was detected" in Page(source(single)).text


def test_without_a_command_that_is_said() -> None:
    assert "The command is not known" in Page(source(single, False)).text
    assert "started from Python" in Page(render_report(single(), [{**EXPERIMENT, "command": []}])).text


# What users write ------------------------------------------------------------------------------------------------

EVIL = "</title></style></svg><script>alert('\"x&amp;')</script><img src=x onerror=alert(1)>"


def test_nothing_that_users_write_becomes_markup() -> None:
    record = arm(EVIL, client_id=EVIL)
    record.requests[0] = request(arrival_ms=0, status="refused", error=EVIL, client_id=EVIL)
    evil = replace(
        record,
        backend=EVIL,
        policy=EVIL,
        settings={EVIL: EVIL, "policy": {EVIL: [EVIL]}},
        workload={"name": EVIL, "source": EVIL, "hash": EVIL, "speedup": 1.0},
        declared_max_tokens=EVIL,
        predictions=EVIL,
        events=[{"kind": EVIL, EVIL: EVIL}],
        notes=[EVIL],
    )
    other = replace(evil, arm=EVIL + "2", settings={EVIL: 2})
    experiment = {"folder": EVIL, "command": [EVIL], "environment": {EVIL: EVIL, "commit": EVIL}}
    text = render_report(compare([evil, other]), [experiment])
    page = Page(text)
    assert "<script" not in text
    assert page.unclosed == []
    assert not page.all("script") and not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count(EVIL) >= 12


# How large it is, and what it needs ------------------------------------------------------------------------------


def test_ten_thousand_requests_take_less_than_three_megabytes() -> None:
    big = compare([arm("a", num=10_000, tokens=3), arm("b", num=10_000, tokens=3, shift=1.2)])
    text = render_report(big)
    assert "40 of 10,000 requests are shown" in text
    assert len(text.encode()) < 3_000_000


def test_what_is_missing_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_for_reports() is None
    need_report("--figures x")
    monkeypatch.setattr("batchwright.lab.html.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        need_report("--figures x")
    assert str(error.value) == "--figures x: matplotlib and jinja2 are missing: pip install 'batchwright[report]'"


def test_the_lab_does_not_load_what_draws() -> None:
    code = "import sys, batchwright.lab, batchwright.cli.app; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
