"""Workloads with sessions and programs, and settings of what is drawn of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from batchwright.lab import Workload
from batchwright.lab.prompts import Prompts

S = 1_000_000_000
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)
sessions = st.builds(
    "synthetic:rate=3,n={},turns={},think={},prompt=uniform(1,40),output=uniform(1,40),prefix={},prefixes=2,seed={}".format,
    st.integers(1, 8),
    st.sampled_from(["2", "uniform(1,4)"]),
    st.sampled_from(["0", "exponential(2)", "uniform(1,3)", "lognormal(2,1,9)"]),
    st.sampled_from([0, 7]),
    st.integers(0, 99),
)
programs = st.builds(
    "synthetic:rate=3,n={},calls={},width={},tool=0.5,prompt=uniform(1,40),output=uniform(1,40),seed={}".format,
    st.integers(1, 5),
    st.sampled_from(["1", "2", "3", "uniform(1,4)"]).filter(lambda text: text != "1"),
    st.integers(1, 3),
    st.integers(0, 99),
)


def tokens(load: Workload) -> dict[str, list[int]]:
    maker = Prompts(load.rows, 32000)
    return {str(row.row_id): maker.token_ids(place, row).tolist() for place, row in enumerate(load.rows)}
