"""Whether prompts can be built with a model directory: its tokenizer and its chat template, really loaded."""

from __future__ import annotations

import shlex
from pathlib import Path

from programs.errors import TemplateError, TokenizerError
from programs.model import ChatModel
from router.checks.finding import Finding, error, ok
from router.checks.model import refetch
from router.errors import ModelError


def check_prompts(directory: Path) -> list[Finding]:
    try:
        model = ChatModel.load(directory)
    except TemplateError as trouble:
        why = "messages become a prompt by it; a base model, which has none, cannot chat"
        fix = f"{refetch(directory)}  # of the instruct model, or add its chat_template.jinja"
        return [error("chat template", str(trouble), why, fix)]
    except (TokenizerError, ModelError) as trouble:
        why = "without the model's own tokenizer there are no token ids"
        return [error("tokenizer", str(trouble), why, refetch(directory))]
    return [
        ok("tokenizer", f"{model.tokenizer.vocabulary_size} tokens"),
        ok("chat template", f"there; what it does to prefixes: antiphon model probe {shlex.quote(str(directory))}"),
    ]
