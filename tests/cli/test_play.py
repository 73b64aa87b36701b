"""``batchwright play`` where standard input is no terminal: commands line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app

from .conftest import TIGHT, Answer, Cli

Write = Callable[[str, str], Path]
ROOT = Path(__file__).parents[2]
ARGS = (TIGHT, "--policy", "stall_free:chunk_size=128", "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256")


def play(*args: object, lines: str = "") -> Answer:
    result = CliRunner().invoke(app, ["play", *map(str, args)], prog_name="batchwright", input=lines)
    return Answer(result.exit_code, result.stdout, result.stderr)


def frames(out: str) -> list[str]:
    """The steps that were printed."""
    return re.split(r"^(?=step \d)", out, flags=re.M)[1:]


def titles(out: str) -> list[str]:
    """Number and policy of each of them."""
    found = []
    for frame in frames(out):
        words = frame.splitlines()[0].split()
        found.append(f"{words[1]} {' '.join(words[7:])}")
    return found


def test_a_step_shows_budget_batch_queues_blocks_and_reasons() -> None:
    answer = play(*ARGS, "--step", 23)
    assert answer.code == 0
    assert all(len(line) <= 80 and line == line.rstrip() for line in answer.out.splitlines())
    assert "\x1b" not in answer.out
    (frame,) = frames(answer.out)
    lines = frame.splitlines()
    assert lines[0].startswith("step 23   0.1") and lines[0].endswith("stall_free")
    assert re.match(r"budget  █+░+ 23 of 256 tokens: 21 of prompts, 2 decodes", lines[1])
    assert re.match(r"batch   █+░+ 3 of 256 requests; before it 2 resident, 9 waiting", lines[2])
    assert re.match(r"blocks  █+░+ \d+ of 40 held; \d+ free, \d+ of them cached", lines[3])
    flat = " ".join(frame.split())
    assert "r000003 waiting 21 21 tokens, all that was pending beside 112 cached; offered by stall_free" in flat
    assert "r000000 decode 22 1 decode, 1 token; offered by stall_free" in flat
    assert "blocks (* hit in the prefix cache)" in flat
    (table,) = [line for line in lines if line.startswith("d  r000003")]
    assert table.split()[2] == "133" and len(re.findall(r"[\d-]+\*", table)) >= 1
    pool = lines[lines.index("pool    . free   : free, and cached   + held by several") + 1]
    assert len(pool.replace(" ", "")) == 40 and pool.count("d") == 9


def test_evictions_ends_and_who_waits_together() -> None:
    (frame,) = frames(play(*ARGS, "--step", 20).out)
    assert "\nevicted r000003 (for r000001)\n" in frame
    assert "evicted for r000001, which lacked blocks: preemption of stall_free named it" in " ".join(frame.split())
    assert re.search(r"^r000005 +waiting +- .*\n \.\.\. 5 more .*\nr000011$", frame, re.M)
    out = play(*ARGS, lines="end\n").out
    assert "the run ends with step" in out
    assert re.search(r"^ended   r\d+ \(trace\)$", frames(out)[-1], re.M)


def test_next_back_jump_and_the_like() -> None:
    lines = "next\nn\n\n# nothing\nback\n12\njump 3\nj 4   # with a comment\nb\nstart\nback\nend\nnext\nq\nnext\n"
    answer = play(*ARGS, lines=lines)
    assert answer.code == 0
    numbers = [int(title.split()[0]) for title in titles(answer.out)]
    last = numbers[-1]
    assert numbers == [0, 1, 2, 1, 12, 3, 4, 3, 0, 0, last, last]
    assert "this is the first step" in answer.out and answer.out.count(f"the run ends with step {last}") == 2


def test_back_shows_what_was_there_before() -> None:
    there = frames(play(*ARGS, lines="jump 20\nback\n").out)[-1]
    assert there == frames(play(*ARGS, "--step", 19).out)[0]


def test_going_back_further_than_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright.cli.play_session.KEPT", 3)
    out = play(*ARGS, lines="end\njump 20\nnext\n30\nend\nback\n").out
    whole = [frames(play(*ARGS, "--step", n).out)[0].strip() for n in (20, 21, 30)]
    for shown, expected in zip(frames(out)[2:5], whole, strict=True):
        assert shown.startswith(expected)
    last = int(titles(out)[1].split()[0])
    assert [int(t.split()[0]) for t in titles(out)[-2:]] == [last, last - 1]


def test_swap_and_back() -> None:
    lines = "jump 20\nswap vllm_v1\nnext\nnext\nback\nback\nback\nnext\n"
    answer = play(*ARGS, lines=lines)
    assert titles(answer.out) == [
        "0 stall_free",
        "20 stall_free",
        "20 stall_free then vllm_v1",
        "21 vllm_v1",
        "22 vllm_v1",
        "21 vllm_v1",
        "20 stall_free then vllm_v1",
        "20 stall_free",
        "21 stall_free",
    ]
    found = frames(answer.out)
    assert found[3].strip() != found[8].strip()
    assert found[8].strip() == frames(play(*ARGS, "--step", 21).out)[0].strip()
    assert "from the next step on vllm_v1 decides" in answer.out and "undone: vllm_v1 does not decide" in answer.out


def test_a_swap_after_going_back_begins_there() -> None:
    out = play(*ARGS, lines="jump 20\nback\nback\nswap vllm_v1\nnext\n").out
    assert titles(out)[-2:] == ["18 stall_free then vllm_v1", "19 vllm_v1"]
    straight = play(*ARGS, lines="jump 18\nswap vllm_v1\nnext\n").out
    assert frames(out)[-1] == frames(straight)[-1]


def test_jumping_back_past_a_swap_undoes_it_and_several_follow_one_another() -> None:
    out = play(*ARGS, lines="5\nswap vllm_v1\n8\nswap sjf\n11\n7\n11\n3\n11\n").out
    assert titles(out) == [
        "0 stall_free",
        "5 stall_free",
        "5 stall_free then vllm_v1",
        "8 vllm_v1",
        "8 vllm_v1 then sjf",
        "11 sjf",
        "7 vllm_v1",
        "11 vllm_v1",
        "3 stall_free",
        "11 stall_free",
    ]
    assert out.count("going back past a swap undid it") == 2
    alike = frames(out)[-1].strip()
    assert alike == frames(play(*ARGS, "--step", 11).out)[0].strip()


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("nxt\n", "there is no command 'nxt'; did you mean 'next'"),
        ("jump far\n", "jump to which step? 'far' is no number"),
        ("swap\n", "swap to what?"),
        ("swap vlm_v1\n", "unknown policy 'vlm_v1'; did you mean 'vllm_v1'"),
        ("swap stall_free:chunk_size=0\n", "parameter 'chunk_size' is 0"),
    ],
)
def test_a_line_that_is_no_command(lines: str, complaint: str) -> None:
    answer = play(*ARGS, lines=lines)
    assert answer.code == 2
    assert complaint in answer.err and answer.err.count("\n") == 1


BREAKS = """
from batchwright import Policy, hookimpl

class Breaks(Policy):
    @hookimpl
    def admission(self, step):
        return [] if step.index in (4, 5) else [*step.running, *step.waiting]
"""


def test_a_policy_that_breaks_a_rule_is_seen_and_can_be_swapped_away(write: Write) -> None:
    write("breaks.py", BREAKS)
    args = (TIGHT, "--policy", "breaks.py:Breaks", "--set", "max_num_batched_tokens=256")
    answer = play(*args, lines="9\nback\nnext\nnext\nback\nswap prefill_first\nnext\n")
    assert answer.code == 0
    assert [t.split()[0] for t in titles(answer.out)] == ["0", "4", "3", "4", "5", "4", "4", "5"]
    assert "stopped: the policy broke a rule in step 4" in answer.out
    undone = frames(answer.out)[1]
    assert re.search(r"^undone  policy 'Breaks', hook 'admission', step 4, rule 'progress'", undone, re.M)
    assert "the step was undone: policy 'Breaks'" in " ".join(undone.split())
    assert titles(answer.out)[-1] == "5 prefill_first" and "undone" not in frames(answer.out)[-1]


def test_who_is_refused_is_told() -> None:
    out = play("synthetic:rate=inf,n=3,prompt=200,output=9", "--set", "num_blocks=8", lines="next\n").out
    assert "nothing ran: every request was refused" in out
    workload = '{"arrival_s": 0, "num_prompt_tokens": %d, "num_output_tokens": 4}\n'
    Path("two.jsonl").write_text(workload % 20 + workload % 300)
    (frame,) = frames(play("two.jsonl", "--set", "num_blocks=8").out)
    assert re.search(r"^refused r000001: request 'r000001'", frame, re.M)


@pytest.mark.parametrize("name", ["prefill_first", "stall_free", "vllm_v1"])
def test_recordings_are_played(name: str) -> None:
    """The project's own cases: every step shows the batch that was recorded."""
    path = ROOT / "tests" / "cases" / f"{name}.jsonl"
    recorded = json.loads(path.read_text().splitlines()[0])
    answer = play(path, lines="next\n" * 8)
    assert answer.code == 0
    shown = frames(answer.out)
    steps = [step for step in recorded["steps"] if not step.get("raised")]
    for frame, step in zip(shown, steps, strict=False):
        rows = re.findall(r"^(r\d+~?\d*) +(?:waiting|prompt|decode \d+) +([\d-]+) ", frame, re.M)
        assert [(r, int(n)) for r, n in rows if n != "-"] == [(r, n) for r, n, _ in step["scheduled"]]


def test_a_recording_under_another_policy_and_to_its_end() -> None:
    path = ROOT / "tests" / "cases" / "stall_free.jsonl"
    answer = play(path, "--case", "stall_free-03", "--policy", "prefill_first", lines="end\n")
    assert answer.code == 0 and "prefill_first" in titles(answer.out)[-1]
    assert "the run ends with step" in answer.out
    every = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    for case in every:
        for policy in ("vllm_v1", "orca"):
            answer = play(path, "--case", case, "--policy", policy, lines="end\n")
            assert answer.code == 0, answer.err


def test_recorded_swaps_are_played_unless_another_policy_is_asked_for(tmp_path: Path) -> None:
    from batchwright import Engine, EngineConfig, Request, SamplingParams
    from batchwright.replay import DecisionRecorder

    engine = Engine(EngineConfig.parse({"num_blocks": 20, "block_size": 4, "policy": "prefill_first"}))
    path = tmp_path / "swapped.jsonl"
    with engine, DecisionRecorder(path, engine.scheduler):
        engine.add_request(Request("a", [1] * 6, SamplingParams(max_tokens=8)))
        while engine.has_unfinished():
            engine.step()
            if engine.scheduler.step.index == 2:
                engine.swap_policy("vllm_v1")
    names = [title.split()[1] for title in titles(play(path, lines="n\n" * 4).out)]
    assert names == ["prefill_first"] * 3 + ["vllm_v1"] * 2
    names = [title.split()[1] for title in titles(play(path, "--policy", "stall_free", lines="n\n" * 4).out)]
    assert names == ["stall_free"] * 5
    names = [title.split()[1] for title in titles(play(path, lines="n\nswap sjf\n4\n").out)]
    assert names[-1] == "sjf"


def test_what_does_not_go_with_a_recording(cli: Cli) -> None:
    path = ROOT / "tests" / "cases" / "stall_free.jsonl"
    answer = cli("play", path, "--set", "num_blocks=3")
    assert answer.code == 2 and "brings its own settings" in answer.error
    answer = cli("play", path, "--case", "stall_fre-03")
    assert answer.code == 2 and "did you mean 'stall_free-03'" in answer.error
    answer = cli("play", TIGHT, "--case", "x")
    assert answer.code == 2 and "only recordings have cases" in answer.error


def test_files_and_backends_that_cannot_be_played(cli: Cli, install: Callable[..., None]) -> None:
    answer = cli("play", "nothing.csv")
    assert answer.code == 2 and "nothing.csv" in answer.error
    install(
        "realtime",
        """
        from batchwright import Backend, BackendEntry, Capacity, RealClock, hookimpl

        class Real(Backend):
            name = "real"
            def __init__(self, settings):
                self.clock = RealClock()
            def capacity(self):
                return Capacity(num_blocks=9, block_size=4, max_model_len=99, vocab_size=9, eos_token_ids=())
            def submit(self, batch): ...
            def collect(self, handle): ...

        @hookimpl
        def register_backends():
            return {"real": BackendEntry(Real, "for this test", "real")}
        """,
    )
    answer = cli("play", TIGHT, "--backend", "real")
    assert answer.code == 2 and "real runs in real time; take a simulator" in answer.error
