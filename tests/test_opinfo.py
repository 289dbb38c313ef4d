"""PyTorch's own samples (OpInfo) against the CPU: a fixed part of what ``make conformance`` runs, and the table it wrote."""

from __future__ import annotations

import zlib

import pytest
from conformance import special, table
from conformance.judge import VERDICTS, Depth, judge
from conformance.pairs import Pair, all_pairs, dtypes_of, infos
from stage import STAGE

KNOWN = table.read()
DEPTH = Depth(forward=2, others=1, edges=True)
BAD = ("wrong", "hung", "crashed")


def _chosen() -> list[Pair]:
    """Every op with one dtype, another one in each stage: float32 where it is the only one."""
    found = []
    for name, info in infos().items():
        dtypes = dtypes_of(info)
        if dtypes:
            found.append((name, dtypes[zlib.crc32(f"{STAGE} {name}".encode()) % len(dtypes)]))
    return found


CASES = _chosen()


@pytest.mark.parametrize("pair", CASES, ids=["-".join(pair) for pair in CASES])
@pytest.mark.filterwarnings("ignore")
def test_samples(pair: Pair) -> None:
    """A pair is judged as the table says, or better."""
    found = judge(pair, DEPTH)
    assert VERDICTS.index(found.verdict) <= VERDICTS.index(KNOWN[pair].verdict), f"{found.reason}\n{found.sample}"


@pytest.mark.once
def test_the_table_is_complete_and_right() -> None:
    assert set(KNOWN) == set(all_pairs())
    assert not {pair: v for pair, v in KNOWN.items() if v.verdict in BAD}
    assert table.PAGE.read_text() == table.page(KNOWN)


@pytest.mark.once
def test_most_is_native_or_decomposed() -> None:
    good = sum(v.verdict in ("native", "decomposed") for v in KNOWN.values())
    assert good >= 0.85 * len(KNOWN)


@pytest.mark.once
def test_lists_of_exceptions_name_ops_that_exist() -> None:
    lists = (special.UNINITIALISED, special.RANDOM, special.EXPECTED, special.OTHER_DTYPE, special.PERMISSIVE, special.TIES)
    assert not {name for names in lists for name in names} - set(infos())
