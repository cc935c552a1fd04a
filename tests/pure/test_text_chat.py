"""Chat templates in the sandbox, their limits, and the checking of messages (R27, R30)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from octavo.base.errors import RequestError, TemplateError
from octavo.text import ChatTemplate, normalize_messages

USER = [{"role": "user", "content": "hi"}]
CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}"
)


def render(source: str, messages: Any = USER, **more: Any) -> str:
    return ChatTemplate(source, time_limit_s=2.0).render(messages, **more)


def test_chatml_with_blocks_trimmed() -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n"
    assert render(CHATML) == text + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == text


def test_what_templates_use() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
        "{% if loop.last %}{% break %}{% endif %}{{ m.role | upper }}:{{ m.content | trim }};"
        "{% endfor %}{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ messages[1:] | length }}"
        "{% macro show(x, sep=', ') %}{{ x | join(sep) }}{% endmacro %}{{ show(['a', 'b']) }}"
        "{% generation %}{{ 'g' ~ 1 }}{% endgeneration %}{{ messages | selectattr('role', "
        "'equalto', 'user') | map(attribute='content') | list | tojson }}"
        "{{ 'a-b'.split('-')[-1] }}{{ '%s/%d' % ('x', 3) }}{{ '{}!'.format(5) }}{{ custom }}"
        "{{ '**%s** 20250101%%' % 'b' }}{{ '{:>4}20250101'.format(7) }}"
        "{{ strftime_now('%Y') | length }}{{ eos_token }}{{ 'x' in 'xyz' and tools is none }}"
        "{{ {'a': 1}.items() | list }}{{ 'a\nb' | indent(2) }}{{ 2 ** 10 }}{{ [1] + [2] }}"
        "{{ missing }}{{ none }}"
    )
    messages = [{"role": "user", "content": f" {i} "} for i in range(3)]
    text = ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        messages, extra={"custom": "c"}
    )
    assert text == (
        '<s>USER:0;32a, bg1[" 0 ", " 1 ", " 2 "]bx/35!c**b** 20250101%   7202501014</s>'
        "True[('a', 1)]a\n  b1024[1, 2]None"
    )


def test_tojson_is_hugging_face_s() -> None:
    tools = [{"type": "function", "z": "<é>", "a": [1, None, True]}]
    assert render("{{ tools[0] | tojson }}", tools=tools) == (
        '{"type": "function", "z": "<é>", "a": [1, null, true]}'
    )
    assert render("{{ {'a': [1]} | tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'


DOUBLE = "{% set ns = namespace(x=START, y=START) %}{% for i in range(64) %}STEP{% endfor %}END"


def doubling(start: str, step: str, end: str = "{{ ns.x }}") -> str:
    return DOUBLE.replace("START", start).replace("STEP", step).replace("END", end)


NEST = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
HOSTILE = {
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loop in a filter": "{% for i in range(90000) %}{{ range(90000) | list | length }}{% endfor %}",
    "recursive macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "string product": "{{ 'a' * 10**9 }}",
    "product reversed": "{{ 10**9 * 'a' }}",
    "list product": "{{ ([1] * 10**9) | length }}",
    "power": "{{ 9 ** (10 ** 9) }}",
    "squares": doubling("9", "{% set ns.x = ns.x * ns.x %}"),
    "doubling +": doubling("'a'", "{% set ns.x = ns.x + ns.x %}"),
    "doubling ~": doubling("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
    "doubling %": doubling("'a'", "{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    "doubling format": doubling("'a'", "{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "doubling join": doubling("'a'", "{% set ns.x = [ns.x, ns.x] | join %}"),
    "doubling str.join": doubling("'a'", "{% set ns.x = ''.join([ns.x, ns.x]) %}"),
    "doubling list": doubling("[1]", "{% set ns.x = ns.x + ns.x %}", "{{ ns.x | length }}"),
    "doubling block": doubling(
        "'a'", "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"
    ),
    "doubling macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    + doubling("'a'", "{% set ns.x = m(ns.x) %}"),
    "doubling replace": doubling("'a'", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "doubling replace filter": doubling("'a'", "{% set ns.x = ns.x | replace('a', 'aa') %}"),
    "shared lists written": doubling("[1]", NEST),
    "shared lists as json": doubling("[1]", NEST, "{{ ns.x | tojson }}"),
    "shared lists compared": doubling("[1]", NEST, "{{ ns.x == ns.y }}"),
    "shared lists selected": doubling("[1]", NEST, "{{ [ns.x] | select('eq', ns.y) | list }}"),
    "shared lists tested": doubling("[1]", NEST, "{{ ns.x is eq(ns.y) }}"),
    "slices kept": "{% set s = 'a' * 8000000 %}{% for i in range(90000) %}{% set x = s[1:] %}"
    "{% endfor %}",
    "output": "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
    "wide %": "{{ '%1000000000d' % 1 }}",
    "wide % from a value": "{{ '%*d' % (1000000000, 1) }}",
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "wide format from a value": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_map": "{{ '{a}'.format_map({'a': 1}) }}",
    "indent": "{{ ('\\n' * 10000) | indent(100000) }}",
    "json indent": "{{ [1] | tojson(indent=1000000000) }}",
    "shared lists in a namespace": doubling("[1]", NEST, "{{ ns | upper }}"),
    "shared lists refused": doubling("[1]", NEST, "{{ raise_exception(ns) }}"),
    "shared lists changed": "{% for i in [1, 2] %}"
    + doubling("[1]", NEST, "{{ loop.changed(ns.x) }}")
    + "{% endfor %}",
    "shared lists indexed": doubling("[1]", NEST, "{{ [ns.x].index(ns.y) }}"),
    "shared tuples hashed": doubling("1", "{% set ns.x = (ns.x, ns.x) %}", "{{ {ns.x: 1} }}"),
    "shared tuples looked up": doubling("1", "{% set ns.x = (ns.x, ns.x) %}", "{{ {}[ns.x] }}"),
    "wide % with a name": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "many fields": "{{ ('%(a)s' * 10000) % {'a': 'x' * 10000} }}",
    "too many nodes": "{{ a }}" * 60_000,
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "sum of lists": "{{ [[1]] | sum(start=[]) }}",
    "lipsum": "{{ lipsum(10**9) }}",
    "class": "{{ ''.__class__ }}",
    "class by item": "{{ ''['__class__'] }}",
    "class of a message": "{{ messages.__class__.__base__.__subclasses__() }}",
    "class by filter": "{{ messages | map(attribute='__class__') | list }}",
    "class by attr": "{{ '' | attr('__class__') }}",
    "class by format": "{{ '{0.__class__}'.format('') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "init": "{{ self.__init__ }}",
    "change": "{{ messages.append(1) }}",
    "change a message": "{{ messages[0].update({'role': 'x'}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "a function written": "{{ raise_exception }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "syntax": "{% if %}",
    "undefined": "{{ a.b.c }}",
    "division": "{{ 1 / 0 }}",
    "refusal": "{{ raise_exception('roles must alternate') }}",
    "source too large": "a" * (1 << 20) + "a",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_templates_end_in_an_error(name: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(HOSTILE[name], time_limit_s=0.5).render(USER)
    assert caught.value.param == "messages"
    assert len(str(caught.value)) < 1000


def test_the_time_limit_holds_and_leaves_no_thread() -> None:
    before = threading.active_count()
    template = ChatTemplate(HOSTILE["nested loops"], time_limit_s=0.02)
    with pytest.raises(TemplateError, match=r"longer than 0\.02 s"):
        template.render(USER)
    assert threading.active_count() == before


def test_a_template_serves_on_after_a_failure() -> None:
    template = ChatTemplate("{{ 'a' * messages[0].content | int }}")
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "1000000000"}])
    assert template.render([{"role": "user", "content": "3"}]) == "aaa"


def test_threads_have_budgets_of_their_own() -> None:
    template = ChatTemplate("{% for i in range(3000) %}{{ messages[0].content }}{% endfor %}")
    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda c=c: results.append(template.render([{"role": "user", "content": c}]))
        )
        for c in "abcdef"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [c * 3000 for c in "abcdef"]


def test_output_and_reason() -> None:
    with pytest.raises(TemplateError, match="larger than 100 characters"):
        ChatTemplate("{{ messages[0].content }}", max_output_chars=100).render(
            [{"role": "user", "content": "x" * 101}]
        )
    with pytest.raises(TemplateError, match="roles must alternate"):
        render(HOSTILE["refusal"])


def test_long_chats_are_no_trouble() -> None:
    messages = [{"role": "user", "content": "word " * 200} for _ in range(2000)]
    assert len(render(CHATML, messages)) > 2_000_000


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_a_template_says_what_to_do(source: str | None) -> None:
    with pytest.raises(TemplateError, match=r"/v1/completions.*--chat-template"):
        ChatTemplate(source)


def test_extra_variables_can_not_replace_the_messages() -> None:
    with pytest.raises(RequestError) as caught:
        render(CHATML, extra={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


def test_messages_are_normalised() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = normalize_messages(
        [
            {"role": "system", "content": "s", "name": "n"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "content": "", "tool_call_id": "c1"},
            {"role": "assistant", "audio": None, "annotations": []},
        ]
    )
    assert messages == [
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
            ],
        },
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "wizard", "content": ""}], "messages[0].role"),
        ([{"role": ["user"], "content": ""}], "messages[0].role"),
        ([{"content": ""}], "messages[0].role"),
        ([*USER, {"role": "user", "content": None}], "messages[1].content"),
        ([*USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
            "messages[0].content[1].type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}],
            "messages[0].content[0].x",
        ),
        ([{"role": "user", "content": "", "nmae": "x"}], "messages[0].nmae"),
        ([{"role": "user", "content": "", "name": 1}], "messages[0].name"),
        ([{"role": "user", "content": "", "audio": {"id": 1}}], "messages[0].audio"),
        ([{"role": "user", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_wrong_messages_name_their_place(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalize_messages(messages)
    assert caught.value.param == param
    assert caught.value.status == 400


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean content"):
        normalize_messages([{"role": "user", "contnet": "x"}])
