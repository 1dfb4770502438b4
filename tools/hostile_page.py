"""Write the table of promises of docs/results/hostile.md from what the hostile tests tried.

    pytest tests/hostile -m "slow or not slow" --promises build/promises.jsonl
    python tools/hostile_page.py build/promises.jsonl docs/results/hostile.md

Only what stands between the two "generated" markers is replaced.
"""

import json
import re
import sys
from pathlib import Path

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def order(row):
    """H1, H2, ..., M1, ..., L, then the rest by name."""
    kind = re.match(r"([HML])(\d*)$", row["id"])
    if kind is None:
        return (3, 0, row["id"], row["attack"])
    return ("HML".index(kind[1]), int(kind[2] or 0), "", row["attack"])


def main():
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    page = Path(sys.argv[2])
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    tried, failed = (sum(row[key] for row in rows) for key in ("cases", "failed"))
    lines = ["| | attack or fault | cases | failures |", "|---|---|---:|---:|"]
    lines += [
        f"| {row['id']} | {row['attack']} | {row['cases']:,} | {row['failed']} |"
        for row in sorted(rows, key=order)
    ]
    lines += ["", f"{len(rows)} promises, {tried:,} cases, {failed} failures."]
    page.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


if __name__ == "__main__":
    main()
