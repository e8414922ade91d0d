"""Chat templates with what the templates of well-known families are made of, in short forms written
for these tests, and conversations to play them with."""

from __future__ import annotations

from typing import Any

CHATML = """
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
LLAMA2 = """
{% if messages[0]['role'] == 'system' %}
  {% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}
  {% set loop_messages = messages %}{% set system = false %}
{% endif %}
{% for m in loop_messages %}
  {% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('turns must alternate, user first') }}
  {% endif %}
  {% if loop.index0 == 0 and system != false %}
    {% set content = '<<S>>\n' + system + '\n<</S>>\n\n' + m['content'] %}
  {% else %}{% set content = m['content'] %}{% endif %}
  {% if m['role'] == 'user' %}{{ bos_token + '[I] ' + content.strip() + ' [/I]' }}
  {% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not date is defined %}
  {%- if strftime_now is defined %}{%- set date = strftime_now("%d %b %Y") %}
  {%- else %}{%- set date = "1 Jan" %}{%- endif %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
  {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|h|>system<|/h|>\n\n" }}
{%- if tools is not none %}{{- "Environment: tools\n" }}{%- endif %}
{{- "Date: " + date + "\n" + system + "<|e|>" }}
{%- for message in messages %}
  {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|h|>' + message['role'] + '<|/h|>\n\n' + message['content'] | trim + '<|e|>' }}
  {%- elif 'tool_calls' in message %}
    {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call") }}{%- endif %}
    {%- set call = message.tool_calls[0].function %}
    {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|/h|>\n\n' }}{%- endif %}
"""
QWEN3 = """
{%- if messages[0].role == 'system' %}{{- '<s>' + messages[0].content + '</s>\n' }}{%- endif %}
{%- set ns = namespace(multi=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages | length - 1) - loop.index0 %}
  {%- if ns.multi and message.role == 'user' and message.content is string and
      not (message.content.startswith('<r>') and message.content.endswith('</r>')) %}
    {%- set ns.multi = false %}{%- set ns.last = index %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.content is string %}{%- set content = message.content %}
  {%- else %}{%- set content = '' %}{%- endif %}
  {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
    {{- '<u>' + message.role + '\n' + content + '</u>' }}
  {%- elif message.role == 'assistant' %}
    {%- set thought = '' %}
    {%- if message.thought is string %}{%- set thought = message.thought %}
    {%- elif '</think>' in content %}
      {%- set thought = content.split('</think>')[0].rstrip('\n') %}
      {%- set thought = thought.split('<think>')[-1].lstrip('\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
      {{- '<a>\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
    {%- else %}{{- '<a>\n' + content }}{%- endif %}
    {{- '</a>\n' }}
  {%- elif message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<u>' }}{%- endif %}
    {{- '\n<r>\n' + content + '\n</r>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '</u>\n' }}{%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<a>\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %}
"""
MISTRAL = """
{%- if messages[0]["role"] == "system" %}
  {%- set system = messages[0]["content"] %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- set users = turns | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in turns %}
  {%- if message.role == "user" or (message.role == "assistant" and message.calls is not defined) %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
      {{- raise_exception("turns alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
  {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
  {%- if message["role"] == "user" %}
    {%- if message == users[-1] and system is defined %}
      {{- "[I]" ~ system ~ "\n\n" ~ message["content"] ~ "[/I]" }}
    {%- else %}{{- "[I]" + message.content + "[/I]" }}{%- endif %}
  {%- elif message["role"] == "assistant" %}
    {%- generation %}{{- " " + message["content"] | trim + eos_token }}{%- endgeneration %}
  {%- else %}{{- raise_exception("no such role: " ~ message.role) }}{%- endif %}
{%- endfor %}
"""
GEMMA = """
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
  {%- if messages[0]['content'] is string -%}
    {%- set before = messages[0]['content'] + '\n\n' -%}
  {%- else -%}{%- set before = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
  {%- set turns = messages[1:] -%}
{%- else -%}{%- set before = "" -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}
  {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
  {{ '<t>' + role + '\n' + (before if loop.first) }}
  {%- if message['content'] is string -%}{{ message['content'] | trim }}
  {%- elif message['content'] is iterable -%}
    {%- for item in message['content'] -%}
      {%- if item['type'] == 'image' -%}{{ '<image>' }}
      {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
    {%- endfor -%}
  {%- else -%}{{ raise_exception("no such content") }}{%- endif -%}
  {{ '</t>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<t>model\n' }}{%- endif -%}
"""
PHI3 = """
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}
{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}
{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}
"""
SMOL3 = """
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- if messages[0].role == "system" -%}
  {%- set system = messages[0].content -%}
  {%- if "/no_think" in system -%}{%- set mode = "/no_think" -%}
  {%- elif "/think" in system -%}{%- set mode = "/think" -%}
  {%- else -%}{%- set mode = "/think" if enable_thinking else "/no_think" -%}{%- endif -%}
  {%- set custom = system.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- else -%}{%- set mode = "/think" if enable_thinking else "/no_think" -%}{%- endif -%}
{{- "<s>system\n" -}}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "Date: " ~ today ~ "\nMode: " ~ mode ~ "\n" -}}
{%- if custom -%}{{- custom + "\n\n" -}}
{%- elif mode == "/think" -%}{{- "Think first.\n" -}}{%- endif -%}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<s>" + message.role + "\n" + content + "</s>\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if mode == "/think" -%}{{ "<s>assistant\n" + content.lstrip("\n") + "</s>\n" }}
    {%- else -%}{{ "<s>assistant\n<think>\n\n</think>\n" + content.lstrip("\n") + "</s>\n" }}
    {%- endif -%}
    {% endgeneration %}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<s>assistant\n" }}{%- if mode == "/no_think" -%}{{ "<think>\n\n</think>\n" }}{%- endif -%}
{%- endif -%}
"""
OSS = """
{%- macro kind(spec, required=false) -%}
  {%- if spec.type == "array" -%}
    {%- if spec['of'] -%}{{- kind(spec['of']) + "[]" -}}{%- else -%}any[]{%- endif -%}
  {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
    {{- spec.type | join(" | ") -}}
  {%- elif spec.type == "object" -%}
    {{- "{" }}
    {%- for name, inner in spec.properties.items() -%}
      {{- name -}}{%- if name not in (spec.required or []) -%}?{%- endif -%}
      {{- ": " }}{{ kind(inner, required=name in (spec.required or [])) }}
      {%- if not loop.last %}, {% endif -%}
    {%- endfor -%}
    {{- "}" }}
  {%- else -%}{{- spec.type or "any" -}}{%- endif -%}
  {%- if required %}!{% endif -%}
{%- endmacro -%}
{%- macro header(effort) -%}
  {%- if identity is not defined %}{%- set identity = "A model." %}{%- endif %}
  {{- identity + "\n" }}{{- "Date: " + strftime_now("%Y-%m-%d") + "\n" }}
  {{- "Effort: " + effort + "\n" }}
{%- endmacro -%}
{%- if effort is not defined %}{%- set effort = "medium" %}{%- endif %}
{{- "<|start|>system<|message|>" }}{{- header(effort) }}{{- "<|end|>" }}
{%- if messages[0].role in ["developer", "system"] %}
  {%- set developer = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set developer = "" %}{%- set rest = messages %}{%- endif %}
{%- if developer or tools %}
  {{- "<|start|>developer<|message|>" }}{{- developer }}
  {%- for tool in tools or [] %}
    {%- set f = tool.function %}
    {{- "\ntype " + f.name + " = (_: " }}{{- kind(f.parameters) }}{{- ") => any;" }}
    {{- " // " ~ f.parameters | tojson }}
  {%- endfor %}
  {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest %}
  {%- if message.role == 'assistant' %}
    {%- if "<|channel|>" in message.content %}{{- raise_exception("a channel") }}{%- endif %}
    {%- set future = namespace(found=false) %}
    {%- for after in rest[loop.index:] if after.role == 'assistant' %}
      {%- set future.found = true %}{%- break %}
    {%- endfor %}
    {%- if message.musing and not future.found %}
      {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.musing + "<|end|>" }}
    {%- endif %}
    {%- set last.name = none %}
    {{- "<|start|>assistant<|channel|>final<|message|>" + message.content }}
    {{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
  {%- elif message.role == 'user' %}
    {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
MIXED = """
{#- a comment -#}
{%- set roles = messages | map(attribute='role') | list -%}
{{- roles | join(',') }}|{{ roles | map('upper') | join(' ') }}|{{ messages | length }}
{{ roles | reject('equalto', 'user') | list | length }}|{{ (roles | first) | capitalize }}
{% set text %}[{{ messages[-1].content | default('nothing', true) }}]{% endset %}
{{ text | trim }}
{% for c in text %}{% if loop.index > 3 %}{% continue %}{% endif %}{{ c }}{% endfor %}
{% for message in messages | reverse %}
{{ loop.revindex }}:{{ message.role.upper() }}:{{ message.content[:3] }}:{{ message.content[-2:] }}
{% else %}
nobody
{% endfor %}
{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}
{{ messages[0].get('name', 'nameless') }} {{ messages[0].name }}
{{ 7 // 2 }} {{ -7 % 3 }} {{ 1 < 2 <= 2 }}
{{ messages | tojson }}
{{ messages[0] | tojson(indent=2) }}
{{ {'a': [1, true, none], 'b': ''} | tojson }} {{ (1, 2) | join('-') }}
{{ 'x' * 3 }} {{ none }}{{ 5 }}
{%- raw %} {{ raw }} {% endraw %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}assistant:{% endif %}
"""
TEMPLATES = {
    "chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL,
    "gemma": GEMMA, "phi3": PHI3, "smol3": SMOL3, "oss": OSS, "mixed": MIXED,
}  # fmt: skip


def _turns(*contents: str, **more: Any) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": c, **more} for n, c in enumerate(contents)]


SYSTEM = [{"role": "system", "content": "  Be brief. /no_think "}]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    _turns("Hello"),
    _turns(""),
    _turns("  spaces \n around\t\x1c", "\n\nAn answer. ", "and 'quotes' \"double\" <b>&amp;</b>"),
    SYSTEM + _turns("Is it so?"),
    SYSTEM
    + _turns(
        "Why?", "Because.", "And then?", "<think>\nhm\n</think>\n\nSo.", "日本語 👩‍🚀 e\u0301ß"
    ),
    _turns("one", "<think>a</think>two", "<r>three</r>", "<think>\nb\n\n</think>\nfour"),
    _turns("two", "answers", "{% not %} {{ a }} template", "\x85\xa0\u3000wide\u2003"),
    [{"role": "assistant", "content": "first"}],
    [{"role": "system", "content": ""}, *_turns("after an empty one")],
    [*_turns("x"), {"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}],
    [*_turns("x", "y"), {"role": "assistant", "content": "z", "musing": "deep"}],
    _turns("a", "b", name="Ann"),
    [{"role": "user", "content": [{"type": "text", "text": " parts "}, {"type": "image"}]}],
]
_PROPERTIES = {
    "city": {"type": "string"}, "days": {"type": ["integer", "null"]},
    "tags": {"type": "array", "of": {"type": "string"}}, "any": {"type": "array"},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Über 'das' Wetter",
     "parameters": {"type": "object", "properties": _PROPERTIES, "required": ["city"]}}},
]  # fmt: skip
VARIABLES: list[dict[str, Any]] = [
    {}, {"add_generation_prompt": False}, {"enable_thinking": False}, {"enable_thinking": True},
    {"tools": TOOLS}, {"effort": "high", "identity": "Me"},
]  # fmt: skip
REFUSED = {
    "{% include 'x' %}": "Include", "{{ messages|sort }}": "filter sort",
    "{{ messages.append(1) }}": "method append", "{{ ''.__class__ }}": "attribute __class__",
    "{{ 1.5 }}": "fraction", "{{ 1 / 2 }}": "Div", "{{ loop.cycle(1, 2) }}": "method cycle",
    "{% for a in b recursive %}{% endfor %}": "recursive", "{{ x is callable }}": "test callable",
    "{{ strftime_now('%j') }}": "time", "{{ strftime_now(x) }}": "time",
    "{{ message.items }}": "attribute items", "{{ message['items'] }}": "item 'items'",
    "{{ f(*x) }}": "calls with", "{{ cycler(1) }}": "cycler", "{{ x|safe|trim }}": "filter safe",
    "{% call f() %}{% endcall %}": "CallBlock", "{{ messages|map('safe')|list }}": "map with",
    "{{ x|tojson(sort_keys=true) }}": "tojson with sort_keys",
    "{{ messages|selectattr('items')|list }}": "attribute",
    "{{ loop.depth }}": "loop.depth", "{{ 2 ** 9 }}": "Pow",
}  # fmt: skip
