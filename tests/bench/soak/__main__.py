"""`python -m tests.bench.soak --seconds 600`: fronts under chaos; `--prefixes 100000`: a router and that many prompts.

Prints what must stay bounded while it runs, then what happened; writes docs/results/soak.json. Exits with 1 when
anything was found that must not be.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from service.valkey import store_url, valkey_argv
from tests.bench.front import versions
from tests.bench.soak.gauges import Gauges, headings
from tests.bench.soak.prefixes import PrefixPlan, many_prefixes
from tests.bench.soak.run import Plan, soak
from tests.bench.soak.stage import CONTEXT
from tests.conftest import wait_for
from tests.model_files import tiny_model_dir


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--prefixes", type=int, help="instead: so many different prompts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=float, default=10, help="seconds between two looks at the gauges")
    parser.add_argument("--out", type=Path, default=Path("docs/results/soak.json"))
    arguments = parser.parse_args()
    print(headings())
    if arguments.prefixes is None:
        plan = Plan(arguments.seconds, arguments.clients, arguments.seed, arguments.sample)
        return _tell(arguments.out, "chaos", asdict(plan), _soaked(plan))
    prefixes = PrefixPlan(arguments.prefixes, arguments.seed, arguments.sample)
    return _tell(arguments.out, "prefixes", asdict(prefixes), uvloop.run(many_prefixes(prefixes, _show)).as_json())


def _soaked(plan: Plan) -> dict[str, Any]:
    with TemporaryDirectory() as scratch, _valkey(Path(scratch)) as store:
        model = tiny_model_dir(Path(scratch, "tiny"), context_length=CONTEXT)
        return uvloop.run(soak(plan, model, store, _show)).as_json()


@contextmanager
def _valkey(directory: Path) -> Iterator[str]:
    socket = directory / "s"
    argv = [*valkey_argv(directory, socket), "--appendonly", "no"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(store_url(socket))
            yield store_url(socket)
        finally:
            process.terminate()


def _show(gauges: Gauges) -> None:
    print(gauges.shown(), flush=True)


def _tell(out: Path, kind: str, plan: dict[str, Any], result: dict[str, Any]) -> int:
    """One file holds the last run of each kind."""
    for part, counts in result.items():
        if isinstance(counts, dict) and counts:
            print(f"{part}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(*(f"FAILED {failure[:2000]}" for failure in result["failures"]), sep="\n")
    command = f"python -m tests.bench.soak {shlex.join(sys.argv[1:])}".strip()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    written = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    written[kind] = {"command": command, "at": at, "versions": versions(), "plan": plan, **result}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
