"""Traffic on disk: what stands there, what does not, and the workload that the lab reads of it. Needs no vLLM."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.vllm.recorded import MS, SIZE, Server, lines
from batchwright import ConfigError, EngineConfig, Request, SamplingParams
from batchwright.lab import load_workload, run_arm
from batchwright.lab.readers.recording import SUFFIX, RecordedTraffic
from batchwright.request import SLO
from batchwright_backends.vllm.parts import SALT, block_hashes


def test_what_was_asked_and_what_became_of_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("secret-id", range(10), 3)
    server.clock.now_ns = 5 * MS
    server.add("b", [*range(8), 50], 1, max_tokens=1)
    server.finish()
    assert server.core.was_shut
    head, *rest = lines(tmp_path)
    assert (head["format"], head["policy"], head["prefix_block_size"]) == ("batchwright-traffic-1", "p", SIZE)
    first, second = (line["request"] for line in rest if "request" in line)
    assert {name: first[name] for name in first if name != "prefix_ids"} == {
        "number": 1,
        "arrival_ns": 0,
        "num_prompt_tokens": 10,
        "num_output_tokens": 3,
        "max_tokens": 99,
        "status": "finished",
        "finish_reason": "length",
        "first_scheduled_ns": 5 * MS,
        "finish_ns": 35 * MS,
        "token_gaps_ns": [15 * MS, 10 * MS, 10 * MS],
    }
    assert len(first["prefix_ids"]) == len(second["prefix_ids"]) == 3
    assert first["prefix_ids"][:2] == second["prefix_ids"][:2] and first["prefix_ids"][2] != second["prefix_ids"][2]
    (steps,) = (line["steps"] for line in rest if "steps" in line)
    names = head["step_fields"]
    table = [dict(zip(names, steps[i : i + len(names)], strict=True)) for i in range(0, len(steps), len(names))]
    assert [(s["num_prefill_tokens"], s["num_decodes"]) for s in table] == [(10, 0), (0, 1), (0, 1), (9, 0)]
    assert [(s["start_ns"], s["end_ns"]) for s in table[:2]] == [(5 * MS, 15 * MS), (15 * MS, 25 * MS)]
    assert {s["free_blocks"] for s in table} == {30} and table[0]["num_waiting"] == 1


def test_neither_text_nor_tokens_nor_ids_are_there(tmp_path: Path) -> None:
    """Only lengths and hashes; the same prompt in another recording has other hashes."""
    prompt = [31_337, 31_338, 31_339, 31_340, 31_341]
    said = Request("secret-id", prompt, SamplingParams(max_tokens=3), session_id="secret-session", client_id="acme")
    for folder in (tmp_path / "a", tmp_path / "b"):
        server = Server(folder, {"secret-id": said})
        server.add("secret-id", prompt, 2)
        server.finish()
    found = [next(line["request"] for line in lines(tmp_path / f) if "request" in line) for f in "ab"]
    text = json.dumps(found)
    assert "secret" not in text and not any(str(token) in text for token in prompt)
    assert found[0]["prefix_ids"] != found[1]["prefix_ids"] and found[0]["session_id"] != found[1]["session_id"]
    assert found[0]["client_id"] == "acme"


def test_recordings_with_one_salt_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SALT, "sixteen-or-more-characters")
    for folder in "ab":
        server = Server(tmp_path / folder)
        server.add("x", range(9), 1)
        server.finish()
    one, other = (next(line["request"] for line in lines(tmp_path / f) if "request" in line) for f in "ab")
    assert one["prefix_ids"] == other["prefix_ids"]
    monkeypatch.setenv(SALT, "short")
    with pytest.raises(ConfigError, match="at least 16"):
        Server(tmp_path / "c")


def test_the_lab_reads_it_as_a_workload(tmp_path: Path) -> None:
    """Arrivals, lengths, declared limits, who asked, and prefixes that are shared."""
    said = {
        "a": Request(
            "a",
            [1],
            SamplingParams(max_tokens=5),
            client_id="acme",
            weight=2.0,
            slo=SLO(ttft_s=0.5),
            extra={"slo_class": "chat"},
            deadline_s=3.0,
            predicted_output_tokens=4,
        )
    }
    server = Server(tmp_path, said)
    server.clock.now_ns = 500 * MS
    server.add("a", range(12), 2, max_tokens=5)
    server.clock.now_ns = 700 * MS
    server.add("b", [*range(8), 90, 91, 92], 3, "stop")
    server.finish()
    workload = load_workload(tmp_path)
    a, b = workload.held()
    assert (a.arrival_ns, b.arrival_ns) == (0, 200 * MS)
    assert (a.num_prompt_tokens, a.num_output_tokens, a.max_tokens) == (12, 2, 5)
    assert (a.client_id, a.weight, a.slo, a.slo_class) == ("acme", 2.0, SLO(ttft_s=0.5), "chat")
    assert (a.deadline_s, a.predicted_output_tokens) == (3.0, 4)
    assert a.prefix_block_size == SIZE and a.prefix_ids[:2] == b.prefix_ids[:2] and a.prefix_ids[2] != b.prefix_ids[2]
    assert workload.notes == ()
    part = next(tmp_path.glob(f"*{SUFFIX}"))
    assert load_workload(part).hash == workload.hash
    record = run_arm(EngineConfig(policy="vllm_v1", block_size=SIZE, num_blocks=50), workload)
    assert [r.num_output_tokens for r in record.requests] == [2, 3]
    assert record.requests[1].num_cached_tokens == 8


def test_who_left_who_failed_and_who_is_still_there(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("ran", range(5), 9)
    server.step()
    server.step()
    server.core.finish_requests("ran", SimpleNamespace(name="FINISHED_ABORTED"))
    server.core.is_new = True
    server.add("waited", range(5), 9)
    server.clock.now_ns += 30 * MS
    server.core.finish_requests(iter(["waited", "unknown"]), SimpleNamespace(name="FINISHED_ABORTED"))
    server.add("failed", range(5), 1, "error")
    server.step()
    server.add("stays", range(5), 9)
    server.step()
    server.core.raises = True
    with pytest.raises(ValueError, match="no room"):
        server.add("never", range(5), 1)
    server.core.shutdown()
    workload = load_workload(tmp_path)
    ran, waited = workload.held()
    assert (ran.num_output_tokens, ran.abort_after_s) == (2, None)
    assert (waited.num_output_tokens, waited.abort_after_s) == (99, 0.03)
    assert sorted(workload.notes) == [
        f"{tmp_path.name}: 1 requests had not ended: left out",
        f"{tmp_path.name}: 1 requests were refused or failed: left out",
    ]


def test_a_request_that_cannot_be_written_is_left_out_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever one client says, the others are recorded."""
    said = Request("a", [1], SamplingParams(max_tokens=3))
    said.session_id = 5  # type: ignore[assignment]
    server = Server(tmp_path, {"a": said})
    for name in ("a", "b"):
        server.add(name, range(5), 1)
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.finish()
    assert "request 'a'" in caplog.text
    assert len(load_workload(tmp_path)) == 1
    note = f"{tmp_path.name}: 1 further requests were not recorded: what was said of them could not be written"
    assert load_workload(tmp_path).notes == (note,)


class Tokens:
    """A tokenizer of one character a token; ids from 1,000 on are unknown to it."""

    longest = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.longest = max(self.longest, len(token_ids))
        return "".join(map(chr, token_ids))


@pytest.mark.parametrize(
    ("output", "ended"),
    [("so END", "stop"), ("END" + "x" * 60, "stop"), ("END" + "x" * 500, "abort"), ("\U0001f600 so", "abort")],
)
def test_who_ends_by_a_string_is_told_from_its_last_tokens(tmp_path: Path, output: str, ended: str) -> None:
    """The whole text is never decoded, and a tokenizer that fails ends nothing."""
    server = Server(tmp_path)
    tokenizer = Tokens()
    server.core.structured_output_manager = SimpleNamespace(tokenizer=tokenizer)  # type: ignore[attr-defined]
    request = server.add("a", range(5), 9)
    request.sampling_params = SimpleNamespace(max_tokens=9, stop="END", skip_special_tokens=True)
    request.output_token_ids = [-1 if ord(c) > 999 else ord(c) for c in output]
    server.step()
    server.core.finish_requests("a", SimpleNamespace(name="FINISHED_ABORTED"))
    server.core.shutdown()
    (found,) = (line["request"] for line in lines(tmp_path) if "request" in line)
    assert found["finish_reason"] == ended and tokenizer.longest <= 67


def test_hashes_follow_all_that_stands_before() -> None:
    key = b"k" * 32
    one, other = block_hashes(range(10), 4, key), block_hashes([9, *range(1, 10)], 4, key)
    assert len(one) == 3 and not set(one) & set(other)
    assert block_hashes(range(8), 4, key) == one[:2]
    assert block_hashes(range(10), 4, b"l" * 32) != one
    assert block_hashes((), 4, key) == []


def test_records_of_requests_can_be_had(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("a", range(5), 3)
    server.finish()
    ((head, _, request),) = RecordedTraffic(tmp_path).requests()
    record = request.record()
    assert record.token_times_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert (record.status, record.finish_ns, record.num_output_tokens) == ("finished", 30 * MS, 3)
    assert head["policy"] == "p"
