"""``make conformance``: the whole table, or part of it (``--only REGEX``, ``--dtypes a,b``)."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

from . import table
from .campaign import Journal, run
from .judge import VERDICTS
from .pairs import BY_NAME, all_pairs


def main() -> None:
    """Judges, writes data and page, and fails where anything is wrong, hung or crashed."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--only", default=".*", metavar="REGEX", help="ops whose whole name matches; others keep theirs")
    parser.add_argument("--dtypes", default=",".join(BY_NAME), help="comma-separated names")
    parser.add_argument("--workers", type=int, default=2)
    journal_help = "where verdicts are kept until all are known; an interrupted run goes on from it"
    parser.add_argument("--journal", type=Path, default=Path(tempfile.gettempdir()) / "conformance.jsonl", help=journal_help)
    parser.add_argument("--verdicts", default="", help="only pairs with these verdicts in the committed data")
    parser.add_argument("--dry", action="store_true", help="print, but do not write data and page")
    options = parser.parse_args()
    every = all_pairs()
    before = table.read() if table.DATA.exists() else {}
    dtypes, again = options.dtypes.split(","), [v for v in options.verdicts.split(",") if v]
    pairs = [
        p
        for p in every
        if re.fullmatch(options.only, p[0])
        and p[1] in dtypes
        and (not again or (p in before and before[p].verdict in again))
    ]
    journal = Journal(options.journal)
    found = run(pairs, journal, options.workers)
    bad = ("wrong", "hung", "crashed")
    for pair, verdict in found.items():
        if verdict.verdict in bad:
            print(f"{pair[0]} {pair[1]}: {verdict.verdict}: {verdict.reason}\n    {verdict.sample}")
    counts = Counter(v.verdict for v in found.values())
    print("  ".join(f"{counts[v]} {v}" for v in VERDICTS))
    if not options.dry:
        known = {p: v for p, v in before.items() if p in set(every)}
        table.write({**known, **found})
    journal.path.unlink(missing_ok=True)
    raise SystemExit(int(any(counts[v] for v in bad)))


if __name__ == "__main__":
    main()
