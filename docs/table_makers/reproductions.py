"""Tables of published results made anew: ``benchmarks/reproduce``."""

from __future__ import annotations

from table_makers.committed import results
from table_makers.markdown import code, table

REPRODUCED = (
    "sarathi_capacity",
    "hrrn_sessions",
    "vtc_clients",
    "sjf_budget",
    "victim_tax",
    "fastserve_tails",
)
"""Scripts in ``benchmarks/reproduce``, in the order of the page."""


def reproduced() -> str:
    """Every result of ``benchmarks/reproduce``: where it is from, and whether it comes out."""
    rows = []
    for name in REPRODUCED:
        found = results(f"reproduce/{name}")
        held = sum(claim["holds"] for claim in found["claims"])
        claims = f"{held} of {len(found['claims'])}"
        rows.append([found["title"], found["source"], claims, found["comes_out"], code(f"{name}.py")])
    return table(("result", "source", "claims that hold", "comes out", "script"), rows)


def reproduction(name: str) -> str:
    """One result of ``benchmarks/reproduce``: figures and claims, and what is as in its source."""
    found = results(f"reproduce/{name}")
    figures = table(("", "theirs", "ours"), [(row["what"], row["theirs"], row["shown"]) for row in found["rows"]])
    claims = table(("claim", "holds"), [(c["words"], "yes" if c["holds"] else "**no**") for c in found["claims"]])
    lists = [
        f"{head}:\n\n" + "".join(f"- {sentence}\n" for sentence in found[key])
        for key, head in (("setup", "Setup"), ("same", "As in the source"), ("other", "Not as in the source"))
    ]
    ran = f"All runs on {found['date']}, at commit `{found['commit'][:12]}`, with {found['seeds']} seeds.\n"
    return "\n".join([*lists, ran, figures, claims])
