"""A template that cannot work says so when it is loaded, and names the line."""

from datetime import UTC, datetime

import pytest

from programs.errors import TemplateError, TemplateRefusedError
from programs.template import ChatTemplate

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n\n{% if %}", "line 3: Expected an expression, got 'end of statement block'"),
        ("{% if messages %}\n{{ messages }}", "line 2: Unexpected end of template"),
        ("a\n{{ shout(messages) }}", "line 2: unknown function 'shout'"),
        ("{% if false %}\n{{ shout(messages) }}{% endif %}", "line 2: unknown function 'shout'"),
        ("a\n{{ messages | shout }}", "line 2: unknown filter 'shout'"),
        ("{% if messages %}\n\n{{ messages | shout }}{% endif %}", "line 3: unknown filter 'shout'"),
        ("{% if messages %}\n{{ messages is loud }}{% endif %}", "line 2: unknown test 'loud'"),
        ("a\n{% generation %}", "line 2: Unexpected end of template"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
    ],
)
def test_a_broken_template_names_the_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=f"^chat template(, |: ){message}"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro hi(name) %}hi {{ caller() }}{% endmacro %}{% call hi('a') %}b{% endcall %}",
        "{% for part in [[1, [2]]] recursive %}{{ loop(part) if part is iterable else part }}{% endfor %}",
        "{% if shout is defined %}{{ shout(messages) }}{% endif %}",
        "{% if 'shout' is filter %}{{ messages | shout }}{% endif %}",
        "{% set today = strftime_now %}{{ today('%Y') }}",
        "{% set ns = namespace(n=0) %}{% for i in range(2) %}{% set ns.n = ns.n + cycler(1, 2).next() %}{% endfor %}",
    ],
)
def test_what_a_template_defines_or_looks_for_itself_is_known(source: str) -> None:
    ChatTemplate(source).render(HELLO, add_generation_prompt=True, now=NOW)


def test_a_generation_block_is_its_body() -> None:
    template = ChatTemplate(
        "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ messages[0].content }}{% endgeneration %}{{ a }}"
    )
    assert template.render(HELLO, add_generation_prompt=True, now=NOW) == "Hello1"


@pytest.mark.parametrize(
    "source",
    ["{{ 1 // 0 }}", "{{ messages[0].content + 1 }}", "{{ messages[3].content }}", "{% include 'other' %}"],
)
def test_a_template_that_fails_is_reported(source: str) -> None:
    with pytest.raises(TemplateError, match="the model's chat template failed on these messages"):
        ChatTemplate(source).render(HELLO, add_generation_prompt=True, now=NOW)


def test_a_refusal_has_the_templates_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('No system role here.') }}")
    with pytest.raises(TemplateRefusedError, match=r"^No system role here\.$"):
        template.render(HELLO, add_generation_prompt=True, now=NOW)


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("{% if messages[0].role == 'developer' %}x{% endif %}", True),
        ("{% if messages[0].role in ['system', \"developer\"] %}x{% endif %}", True),
        ("As the developer said: {{ messages }}", False),
    ],
)
def test_the_developer_role_is_known_by_a_rule_not_by_the_word(source: str, known: bool) -> None:
    assert ChatTemplate(source).knows_developer is known
