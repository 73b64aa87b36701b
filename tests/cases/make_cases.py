"""Writes the recorded cases of this folder: ``python tests/cases/make_cases.py``.

The decisions are those of ``batchwright.testing.reference``, not of the fast scheduler, so that they are a witness of
their own. Equal runs write equal files; a diff here means that a policy or the contract of a step has changed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from batchwright.limits import Limits
from batchwright.plugins import load_plugins
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.replay import DecisionRecorder
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.testing.reference import Reference

HERE = Path(__file__).parent
NUM_CASES = 20
EOS = 0


def params_of(name: str, rng: random.Random) -> dict[str, Any]:
    """Random parameters of a policy."""
    if name == "prefill_first":
        return {"budget_counts_decodes": rng.random() < 0.3, "decode_interleave": rng.choice([None, None, 1, 3])}
    if name == "vllm_v1":
        order = rng.choice(["fcfs", "priority"])
        return {"scheduling_policy": order, "long_prefill_token_threshold": rng.choice([None, 3, 8])}
    return {"chunk_size": rng.choice([4, 8, 16, 64])}


def settings_of(policy: Policy, rng: random.Random) -> dict[str, Any]:
    """Random limits and a small pool; half the time with the settings that the policy wants."""
    limits = Limits(
        max_num_seqs=rng.choice([2, 4, 8]),
        max_num_batched_tokens=rng.choice([8, 16, 48]),
        max_model_len=rng.choice([None, 40]),
    )
    wanted = policy.defaults(limits) if rng.random() < 0.5 else {}
    cache = {
        "enabled": rng.random() < 0.85,
        "visible": rng.choice(["computed", "scheduled"]),
        "reuse": rng.choice(["oldest_freed", "uncached_first"]),
        "duplicates": rng.choice(["newest", "oldest"]),
    }
    cache |= {k.removeprefix("prefix_cache."): v for k, v in wanted.items() if k.startswith("prefix_cache.")}
    residents = wanted.get("max_num_residents", rng.choice([None, 3]))
    return {
        "num_blocks": rng.choice([8, 11, 18]),
        "block_size": rng.choice([2, 4]),
        "limits": Limits(limits.max_num_seqs, limits.max_num_batched_tokens, residents, limits.max_model_len),
        "prefix_cache": PrefixCache(**cache),
        "eos_token_ids": (EOS,),
        "seed": rng.randrange(1000),
    }


def request_of(index: int, now: int, most: int, rng: random.Random) -> tuple[Request, int | None]:
    """A request of at most ``most`` tokens, over three tokens, often with a shared prefix."""
    prompt = [1, 2, 1, 1, 2, 2, 1, 2][: rng.choice([0, 0, 4, 8])]
    prompt = (prompt + [rng.randrange(3) for _ in range(rng.randint(1, 12))])[: most - 1]
    max_tokens = rng.randint(1, min(12, most + 1 - len(prompt)))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=rng.random() < 0.7)
    hidden = rng.randint(1, max_tokens) if rng.random() < 0.2 else None
    return Request(f"r{index}", prompt, params, arrival_ns=now, priority=rng.randrange(3)), hidden


def run(name: str, number: int) -> str:
    """One recorded workload."""
    rng = random.Random(f"{name} {number}")
    policy = load_plugins().policy(name).from_values(params_of(name, rng))
    settings = settings_of(policy, rng)
    scheduler = Reference(policy, **settings)
    recorder = DecisionRecorder(None, scheduler, case=f"{name}-{number:02}")
    most = min(settings["num_blocks"] * settings["block_size"], settings["limits"].max_model_len or 10**9) - 1
    coming = rng.randint(8, 12)
    now = added = 0
    while added < coming or scheduler.has_unfinished():
        while added < coming and rng.random() < 0.6:
            request, hidden = request_of(added, now, most, rng)
            scheduler.add(request, num_output_tokens=hidden)
            added += 1
        if not scheduler.has_unfinished():
            now += 1000
            continue
        batch = scheduler.schedule(now)
        tokens = [rng.randrange(3) for row in batch.samples.tolist() if row]
        abort = rng.random()
        if abort < 0.02:
            scheduler.abort(rng.choice([*scheduler.waiting, *scheduler.running]).request_id)
        now += 100 + 7 * batch.num_tokens
        failure = rng.random()
        if failure < 0.02 and len(batch):
            scheduler.fail(batch, "the device was lost", retry=rng.random() < 0.7, now=now)
        else:
            scheduler.update(batch, tokens, now)
        if abort > 0.98 and scheduler.has_unfinished():
            scheduler.abort(rng.choice([*scheduler.waiting, *scheduler.running]).request_id)
    return recorder.to_json()


def main() -> None:
    """Write all files."""
    for name in ("prefill_first", "vllm_v1", "stall_free"):
        lines = [run(name, number) for number in range(NUM_CASES)]
        (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
