"""Results as Markdown: `report.py RESULTS… [--out FILE]`. Of several files one is made, and written to FILE."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.gpu.results import merged, read

Found = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join('–' if cell is None else str(cell) for cell in row)} |" for row in rows)]


def loads(found: Found) -> list[str]:
    """Everything measured by throughput and time to first token, a line for each server."""
    measured = {name: one for name, one in found.items() if "throughput" in one}
    clients = sorted({row["clients"] for one in measured.values() for row in one["throughput"]})
    lengths = sorted({row["prompt_tokens"] for one in measured.values() for row in one["first_token"]})
    head = ["", *(f"{number} clients" for number in clients), *(f"{length:,} tokens" for length in lengths)]
    return table(head, [[name, *_rates(one, clients), *_waits(one, lengths)] for name, one in measured.items()])


def _rates(one: Found, clients: list[int]) -> list[str | None]:
    rows = {row["clients"]: row for row in one["throughput"]}
    texts = {
        number: f"{row['output_tokens_per_s']:,.0f} ({row['first_token_p50_ms']:.0f} ms)"
        for number, row in rows.items()
    }
    return [texts.get(number) for number in clients]


def _waits(one: Found, lengths: list[int]) -> list[str | None]:
    rows = {row["prompt_tokens"]: row for row in one["first_token"]}
    texts = {length: f"{row['cold_ms']:.0f} → {row['cached_ms']:.0f} ms" for length, row in rows.items()}
    return [texts.get(length) for length in lengths]


def dialogues(found: Found) -> list[str]:
    ways = {"resend": "resend", "previous_response_id": "`previous_response_id`", "sglang_alone": "SGLang alone"}
    rows = [
        [
            f"{name}, {ways[way]}",
            one[way]["later_turns"],
            one[way]["extend_exactly"],
            one[way]["found_everything_held"],
            f"{one[way]['cached_of_held']:.2%}",
            f"{one[way]['cached_of_prompt']:.2%}",
        ]
        for name, one in found.items()
        if "sglang_alone" in one
        for way in ways
    ]
    head = ("", "later turns", "extend exactly", "all that was held was found", "cached ÷ held", "cached ÷ prompt")
    return table(head, rows)


def speculation(found: Found) -> list[str]:
    rows = [
        [
            f"{kind}, {name.replace('_', ' ')}",
            f"{one['plain_tokens_per_s']:,.0f}",
            f"{one['speculating_tokens_per_s']:,.0f}",
            f"{one['speed_up']:.2f}",
            one["accept_length"],
            f"{one['equal_outputs']} of {one['requests']}",
        ]
        for kind, ways in found.get("ngram", {}).items()
        for name, one in ways.items()
    ]
    head = ("", "tokens/s without", "with", "speed-up", "accept length", "equal answers")
    return table(head, rows)


def capacities(found: Found) -> list[str]:
    rows = [
        [name, one.get("mem_fraction_static") or one.get("kv_cache_dtype"), f"{one['max_total_num_tokens']:,}"]
        for name, one in found.items()
        if one.get("max_total_num_tokens")
    ]
    return table(("", "fraction or precision", "tokens"), rows)


SECTIONS: dict[str, Callable[[Found], list[str]]] = {
    "Load": loads,
    "Dialogues": dialogues,
    "Speculation": speculation,
    "Capacity": capacities,
}


AS_THEY_ARE = ("kv-events", "hicache", "resume-after-kill", "sleep-and-wake", "up")


def markdown(content: dict[str, Any]) -> str:
    records = content["experiments"]
    found = {name: record["results"] for name, record in records.items() if record["status"] == "ok"}
    lines = [line for title, section in SECTIONS.items() for line in (f"## {title}", "", *section(found), "")]
    others = {name: found[name] for name in AS_THEY_ARE if name in found}
    for name, one in others.items():
        lines += [f"## {name}", "", "```", json.dumps(one, indent=1), "```", ""]
    if failed := {name: record["failure"] for name, record in records.items() if record["status"] != "ok"}:
        lines += ["## Not shown", ""]
        lines += [f"- {name}: {(why or '').strip().splitlines()[0]}" for name, why in failed.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    content = merged([read(path) for path in asked.results])
    if asked.out:
        asked.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(markdown(content))


if __name__ == "__main__":
    main()
