"""`ENGINE_PYTHON sgl_transcript.py URL FILE`: frontend programs run at a server, and every word it said, as JSON.

Runs by the interpreter that has SGLang, without this repository. Programs are those of SGLang's own tests of its
frontend language, as they are in its package, and the ones below for what those leave out. Temperatures are put to 0
and answers kept short; with that, two servers of one model say the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sgl: Any = importlib.import_module("sglang")
runtime: Any = importlib.import_module("sglang.lang.backend.runtime_endpoint")
choices: Any = importlib.import_module("sglang.lang.choices")
sglang_tests: Any = importlib.import_module("sglang.test.test_programs")

MOST_TOKENS = 12
ELSEWHERE = {
    "test_image_qa",  # wants a model that sees, and a file beside it
    "test_completion_speculative",  # of other companies' APIs
    "test_chat_completion_speculative",
    "test_parallel_encoding",  # calls an endpoint that no SGLang has any more
    "test_gen_min_new_tokens",  # reads the model's files
}
GAPS_OF = 2
"""How many alternatives of each token are noted."""


class Transcript(runtime.RuntimeEndpoint):  # type: ignore[misc]
    """The backend as it is, writing down what it was told. Calls of one prompt may come in any order."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        super().__init__(url, api_key)
        self.endpoint = self
        self.calls: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._active = 0

    def _note(self, kind: str, text: str, told: object) -> None:
        with self._lock:
            self.calls.setdefault(f"{kind} {text}", []).append(told)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1

    def settle(self) -> None:
        """Until nothing is asked for any more: programs go on in threads of their own after a test has seen enough."""
        quiet = 0
        while quiet < 10:
            time.sleep(0.02)
            quiet = 0 if self._active else quiet + 1

    def generate(self, s: Any, sampling_params: Any) -> Any:
        with self._counted():
            text, meta = super().generate(s, _tamed(sampling_params))
        self._note("gen", s.text_, _said(text, meta))
        return text, meta

    def generate_stream(self, s: Any, sampling_params: Any) -> Iterator[Any]:
        whole, last = "", {}
        with self._counted():
            for text, meta in super().generate_stream(s, _tamed(sampling_params)):
                whole, last = whole + text, meta
                yield text, meta
        self._note("stream", s.text_, _said(whole, last))

    def select(self, s: Any, options: list[str], temperature: float, choices_method: Any) -> Any:
        with self._counted():
            decision = super().select(s, options, 0.0, choices_method)
        scores = (decision.meta_info or {}).get("normalized_prompt_logprobs")
        self._note("select", s.text_, {"text": decision.decision, "scores": scores})
        return decision


def _tamed(sampling: Any) -> Any:
    sampling.temperature = 0.0
    sampling.max_new_tokens = min(sampling.max_new_tokens or MOST_TOKENS, MOST_TOKENS)
    sampling.min_new_tokens = min(sampling.min_new_tokens or 0, sampling.max_new_tokens)
    sampling.return_logprob, sampling.top_logprobs_num = True, GAPS_OF
    return sampling


def _said(text: str, meta: dict[str, Any]) -> dict[str, Any]:
    tokens = meta.get("output_token_logprobs") or []
    top = meta.get("output_top_logprobs") or []
    return {
        "text": text,
        "finish": (meta.get("finish_reason") or {}).get("type"),
        "prompt_tokens": meta["prompt_tokens"],
        "completion_tokens": meta["completion_tokens"],
        "ids": [token for _, token, *_ in tokens],
        "gaps": [best[0] - second[0] for best, second, *_ in top],
    }


@sgl.function  # type: ignore[untyped-decorator]
def tree_search(s: Any, question: str) -> None:
    """Forks of forks, joined."""
    s += "Question: " + question + "\n"
    plans = s.fork(3)
    for plan in range(3):
        plans[plan] += f"Plan {plan}:" + sgl.gen("plan", max_tokens=6, stop="\n")
        steps = plans[plan].fork(2)
        for step in range(2):
            steps[step] += f"\nStep {step}:" + sgl.gen("step", max_tokens=6, stop="\n")
        steps.join()
        plans[plan] += "\nSteps:" + steps[0]["step"] + steps[1]["step"]
        plans[plan] += "\nGood: " + sgl.select("good", ["yes", "no"])
    plans.join()
    for plan in range(3):
        s += plans[plan]["plan"] + ": " + plans[plan]["good"] + "\n"
    s += "So" + sgl.gen("end", max_tokens=6)


@sgl.function  # type: ignore[untyped-decorator]
def hellaswag(s: Any, activity: str, endings: list[str]) -> None:
    s += "Activity: Washing a car. A man holds a hose. He sprays water on the car.\n"
    s += "Activity: " + activity + sgl.select("ending", endings)


@sgl.function  # type: ignore[untyped-decorator]
def chosen(s: Any, method: str) -> None:
    """Every rule by which choices are compared."""
    s += "The sky is" + sgl.gen(
        "word", choices=[" blue", " a very dark blue", " green"], choices_method=getattr(choices, method)
    )


@sgl.function  # type: ignore[untyped-decorator]
def constrained(s: Any) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    s += "As JSON: " + sgl.gen("json", json_schema=json.dumps(schema), max_tokens=20) + "\n"
    s += "A date: " + sgl.gen("date", regex=r"(19|20)[0-9]{2}-[01][0-9]", max_tokens=20) + "\n"
    s += "Three:" + sgl.gen("three", max_tokens=3, stop_token_ids=[1], ignore_eos=True, frequency_penalty=0.5)


@sgl.function  # type: ignore[untyped-decorator]
def spelled(s: Any, text: str) -> None:
    """Control tokens in a text are control tokens."""
    s += text + sgl.gen("more", max_tokens=4)


def test_tree_search() -> None:
    state = tree_search.run(question="How are letters sent?")
    assert len(state["end"]) > 0


def test_hellaswag() -> None:
    endings = [" He rinses the car with it.", " He eats the car.", " The car is a hose, said the", " He"]
    batch = [{"activity": text, "endings": endings} for text in ("Waxing a car. He", "Riding a horse. She")]
    assert [state["ending"] in endings for state in hellaswag.run_batch(batch)] == [True, True]


def test_every_rule_for_choices() -> None:
    for method in ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"):
        chosen.run(method=method)


def test_constrained() -> None:
    state = constrained.run()
    assert json.loads(state["json"])["ok"] in (True, False)
    assert state["date"][:2] in ("19", "20")


def test_spelled() -> None:
    for text in ("<|im_start|>user\nHi<|im_end|>\n", "caf\u00e9 \u65e5\u672c\u8a9e \U0001f600", "   ", "a" * 3000):
        spelled.run(text=text)


def test_iterated() -> None:
    state = spelled.run(text="Once upon a time", stream=True)
    assert "".join(state.text_iter()) == state.text()


def outcome(test: Callable[..., None]) -> str:
    """Whether the model was clever enough is not the question: both must be alike."""
    arguments = {"check_answer": False} if "check_answer" in inspect.signature(test).parameters else {}
    try:
        test(**arguments)
    except AssertionError:
        return "AssertionError"
    except Exception as error:  # noqa: BLE001 - whatever it is, the other server must be the cause of it too
        return type(error).__name__
    return "passed"


def told_by(url: str, test: Callable[..., None]) -> dict[str, Any]:
    backend = Transcript(url)
    sgl.set_default_backend(backend)
    ended = outcome(test)
    backend.settle()
    return {"outcome": ended, "calls": backend.calls}


def main(url: str, file: str) -> None:
    own = {name: test for name, test in globals().items() if name.startswith("test_")}
    theirs = {name: test for name, test in vars(sglang_tests).items() if name.startswith("test_")}
    wanted = sorted((theirs | own).items())
    told = {name: told_by(url, test) for name, test in wanted if name not in ELSEWHERE}
    backend = Transcript(url)
    backend.flush_cache()
    if not backend.get_server_info()["version"]:
        raise ValueError(f"{url} has no version")
    Path(file).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # a program that failed leaves threads that wait for it
