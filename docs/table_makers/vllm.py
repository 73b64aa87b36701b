"""Tables of what runs inside vLLM: its cost, and what releases have of what it needs."""

from __future__ import annotations

from batchwright_backends.vllm.honoured import HONOURED
from batchwright_backends.vllm.surfaces import ADAPTERS
from batchwright_backends.vllm.versions import is_tested
from table_makers.committed import results
from table_makers.markdown import code, table


def vllm_overhead() -> str:
    """Cost of a step in vLLM, of its scheduler and of ours: each beside the stock that it is compared with."""
    rows = results("vllm_overhead")["rows"]
    cells = []
    for name in rows[0]["medians"]:
        shown = [f"{row['medians'][name]:,.2f}" for row in rows]
        if name not in ("stock", "stock async"):
            shown = [f"{one} ({row['of_stock'][name]['median']:.2f})" for one, row in zip(shown, rows, strict=True)]
        cells.append([name, *shown])
    heads = {"full": "1,000 wait for a seat", "short": "1,000 wait for blocks"}
    return table(("", *(heads.get(row["row"]) or f"{int(row['row']):,} decodes" for row in rows)), cells)


def vllm_recording() -> str:
    """Cost of a step in vLLM's scheduler, as it is and recorded."""
    rows = results("vllm_recording")["rows"]
    cells = [
        [f"{r['decodes']:,}", *(f"{r[name]:.2f}" for name in ("stock_us", "recorded_us", "more_us"))] for r in rows
    ]
    return table(("decodes", "as it is", "recorded", "difference"), cells)


def vllm_recorded() -> str:
    """A model served with a recording and without."""
    served = results("vllm_recording")["served"]
    cells = [
        [f"{what}, {of} to not", "{ratio:.4f} [{low:.4f}, {high:.4f}]".format(**one)]
        for of, ratios in served["ratios"].items()
        for what, one in ratios.items()
    ]
    for where, share in (("the scheduler's thread", "scheduler_share"), ("the thread that writes", "writer_share")):
        cells.append(
            [f"of the processor's time of the thread that serves, added up in {where}", f"{served[share]:.3%}"]
        )
    size = f"{served['requests']} requests, {served['tokens']} output tokens in all"
    runs = f"{served['pairs']} rounds of {size}"
    return table((runs, ""), cells)


def vllm_hooks() -> str:
    """Hook, adapter and release of vLLM: what becomes of the hook, and whether all that it needs is there."""
    releases = results("vllm_versions")
    rows = []
    for hook, words in HONOURED.items():
        for adapter in ADAPTERS:
            cells = []
            for one in releases["releases"]:
                lacks = [
                    m for m in one["missing"] if adapter in m["adapters"] and (not m["hooks"] or hook in m["hooks"])
                ]
                there = "lacks" if lacks else "run" if is_tested(one["release"]) else "imports"
                cells.append("" if words[adapter].startswith("refused") else there)
            rows.append([code(hook) if hook != "observers" else hook, adapter, words[adapter], *cells])
    return table(("hook", "adapter", "honoured", *(one["release"] for one in releases["releases"])), rows)


def vllm_lacks() -> str:
    """What releases of vLLM lack of what the adapters use."""
    releases = results("vllm_versions")
    by: dict[tuple[str, str], list[str]] = {}
    for one in releases["releases"]:
        for lack in one["missing"]:
            for adapter in lack["adapters"]:
                by.setdefault((adapter, lack["what"]), []).append(one["release"])
    return table(
        ("adapter", "what", "not in"), [[who, code(what), ", ".join(names)] for (who, what), names in by.items()]
    )
