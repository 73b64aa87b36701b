"""``real.py`` with structured output: some requests are constrained by grammars, some of which take long to compile,
one cannot be compiled, and one client leaves while his is. With ``--ahead`` vLLM schedules asynchronously.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Collection
from typing import Any

import real
from real_ahead import schedule_ahead

from small_vllm import scheduler_of, small_engine

SLOW, BAD = "slowly", "badly"
"""What stands in a grammar that takes long to compile, and in one that cannot be."""

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "is_tall": {"type": "boolean"}},
    "required": ["name", "age", "is_tall"],
    "additionalProperties": False,
}
CONSTRAINTS: list[dict[str, Any] | None] = [
    {"json": PERSON},
    None,
    {"choice": ["Positive", "Negative", "Neither of them"]},
    {"regex": r"[a-f]{12}(-[0-9]{6}){4}"},
    {"grammar": 'root ::= item ("," item){12}\nitem ::= "cat" | "dog" | [a-c]+'},
    {"json_object": True},
    None,
    {"json": {"type": "array", "items": {"enum": ["red", "green", SLOW]}, "minItems": 7}},
    {"regex": f"(walks|runs|{SLOW}| )*[.]"},
]
LACKS = {"outlines": ("grammar", "json_object")}
"""What a backend of vLLM's does not have."""

WHO = ("Ann", "the old king", "two bears and a fox", "somebody who was never seen again")


def hinder_compiling() -> None:
    """Some grammars take long, and one cannot be compiled, which vLLM's server does not find out."""
    from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]

    create = StructuredOutputManager._create_grammar

    def create_so(self: Any, request: Any) -> Any:
        said = str(request.sampling_params.structured_outputs)
        if BAD in said:
            raise ValueError("on purpose")
        if SLOW in said:
            time.sleep(0.4)
        return create(self, request)

    StructuredOutputManager._create_grammar = create_so


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, ask it 27 prompts, and let it go again."""
    options: dict[str, Any] = {"max_num_batched_tokens": 128, "disable_log_stats": False}
    options["async_scheduling"] = "--ahead" in sys.argv
    options["structured_outputs_config"] = {"backend": wanted["backend"]}
    if wanted["num_blocks"]:
        options["num_gpu_blocks_override"] = wanted["num_blocks"]
    llm = small_engine(wanted["model"], wanted["adapter"], {"policy": wanted["policy"]}, **options)
    try:
        return answers(llm, LACKS.get(wanted["backend"], ()))
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def answers(llm: Any, lacks: Collection[str]) -> dict[str, Any]:
    """What an engine says to each, and how many were evicted."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

    engine, told = llm.llm_engine, dict[str, Any]()

    def ask(name: str, prompt: str, constraint: dict[str, Any] | None) -> None:
        wants = {} if constraint is None or set(constraint) & set(lacks) else constraint
        given = StructuredOutputsParams(**wants) if wants else None
        params = SamplingParams(temperature=0, max_tokens=48, logprobs=1, structured_outputs=given)
        engine.add_request(name, prompt, params)

    def step() -> None:
        for one in engine.step():
            if one.finished:
                [said] = one.outputs
                logprobs = [[round(p.logprob, 3) for p in place.values()] for place in said.logprobs or ()]
                told[one.request_id] = (list(said.token_ids), said.text, said.finish_reason, logprobs)

    ask("bad", "Say it ", {"regex": f"{BAD}+"})
    ask("leaves", "Say it ", {"regex": f"{SLOW}+"})
    for i in range(3 * len(CONSTRAINTS)):
        who = " ".join(WHO[i % 4 : i % 4 + 1 + i % 3])
        ask(f"{i}", f"Once upon a time, before anybody wrote it down, there lived {who}: ", CONSTRAINTS[i % 9])
        if i == 5:
            step()
            engine.abort_request(["leaves"])
    while engine.has_unfinished_requests():
        step()
    core = scheduler_of(llm)
    metrics = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    return {
        "told": told,
        "preemptions": metrics["vllm:num_preemptions"],
        "scheduler": type(core).__name__,
        "usage": core.get_kv_cache_usage(),
        "fallbacks": getattr(core, "num_fallbacks", {}),
    }


if __name__ == "__main__":
    hinder_compiling()
    if "--ahead" in sys.argv:
        schedule_ahead()
    real.run = run
    real.main()
