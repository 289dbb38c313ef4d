"""One worker process: reads pairs from its input, a JSON line each, and answers with their verdicts on file descriptor 3."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict


def main(answers: int) -> None:
    """Answers until the input ends; whatever ops print goes elsewhere."""
    warnings.simplefilter("ignore")
    with os.fdopen(answers, "w", buffering=1) as out:
        from .judge import Verdict, judge

        print(json.dumps("ready"), file=out)
        for line in sys.stdin:
            name, dtype = json.loads(line)
            try:
                verdict = judge((name, dtype))
            except Exception as e:
                last = traceback.extract_tb(e.__traceback__)[-1]
                verdict = Verdict("crashed", f"{type(e).__name__}: {e} ({last.name}:{last.lineno})"[:200])
            print(json.dumps(asdict(verdict)), file=out)


if __name__ == "__main__":
    main(int(sys.argv[1]))
