"""Programs in SGLang's frontend language, as an operator registers them."""

from __future__ import annotations

import importlib
from typing import Any

sgl: Any = importlib.import_module("sglang")


@sgl.function  # type: ignore[untyped-decorator]
def tips(s: Any, topic: str, count: int = 2, words: list[str] | None = None) -> int:
    """Tips about a topic, each from a fork.

    This line is not part of its description.
    """
    print("a program may print")
    s += f"Tips for {topic}, {count} of them.\n"
    forks = s.fork(count)
    for number in range(count):
        forks[number] += f"Tip {number}:" + sgl.gen("tip", max_tokens=8, temperature=0, ignore_eos=True)
    forks.join()
    for number in range(count):
        s += f"{number}." + forks[number]["tip"] + "\n"
    s += "The best is number " + sgl.select("best", [str(number) for number in range(count)])
    return count


@sgl.function  # type: ignore[untyped-decorator]
def endless(s: Any) -> None:
    while True:
        s += "and" + sgl.gen("more", max_tokens=100, ignore_eos=True)
        s.sync()


@sgl.function  # type: ignore[untyped-decorator]
def broken(s: Any, how: str) -> None:
    s += "Once" + sgl.gen("more", max_tokens=2)
    raise ValueError(f"broken {how}")


not_one = tips.func
