"""What `antiphon up` says once it serves: the address, and how to talk to it."""

from __future__ import annotations

import json
import shlex

from service.site import Site

_QUESTION = "What is the capital of France?"


def welcome(site: Site) -> str:
    return f"""
Antiphon serves {site.model_name} at {site.base_url}/v1

{_indented(curl(site))}

{_indented(snippet(site))}

A worker runs programs over documents of yours (docs/programs.md):

  antiphon ask README.md "What is this?" --url {site.base_url}

Sessions, models and logs are in {site.settings.data_dir}. Ctrl-C stops everything.
"""


def curl(site: Site) -> str:
    """For any POSIX shell."""
    body = json.dumps({"model": site.model_name, "messages": [{"role": "user", "content": _QUESTION}]})
    key = '-H "Authorization: Bearer $ANTIPHON_API_KEY" ' if site.settings.api_key else ""
    return f"""\
curl {site.base_url}/v1/chat/completions {key}-H 'Content-Type: application/json' \\
  -d {shlex.quote(body)}"""


def snippet(site: Site) -> str:
    """Python, with the `openai` package."""
    keyed = site.settings.api_key is not None
    key = 'os.environ["ANTIPHON_API_KEY"]' if keyed else '"none"'
    name = json.dumps(site.model_name)
    return f"""\
{"import os" + chr(10) if keyed else ""}from openai import OpenAI
client = OpenAI(base_url="{site.base_url}/v1", api_key={key})
first = client.responses.create(model={name}, input="{_QUESTION}")
print(first.output_text)
second = client.responses.create(model={name}, input="And of Italy?", previous_response_id=first.id)
print(second.output_text, second.usage.input_tokens_details)"""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
