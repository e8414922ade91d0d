"""JSON schemas in a page: what comes satisfies the schema, and what satisfies it can come."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from page_device import PLAYER
from page_kit import Browser, Pages, Site, need
from rows import few
from test_tokenizers import KINDS as TOKENIZERS

from weft.core.errors import UsageError
from weft.models.grammar.schema_refs import INERT
from weft.models.grammar.vocabulary import token_bytes
from weft.models.text.tokenizer import Tokenizer

SCRIPT = Path(__file__).with_name("grammar.mjs")
PIECES = ['{"', '":', '", "', "abc", "12", "}}", "]]", "null", "tru", "e, ", "ü", "🙂", " \n"]
TOKENS = [bytes([i]) for i in range(256)] + [piece.encode() for piece in PIECES]
Schema = dict[str, Any]


def ask(
    cases: list[dict[str, Any]], tokenizers: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """What the player's grammars say of some cases (grammar.mjs)."""
    need()
    given = {"js": str(PLAYER), "cases": cases, "tokenizers": tokenizers or []}
    given["tokens"] = [base64.b64encode(token).decode() for token in TOKENS]
    done = subprocess.run(
        ["node", str(SCRIPT)], input=json.dumps(given), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def checked(schema: Schema, result: dict[str, Any], texts: list[str]) -> int:
    """Checks what was let through; returns how many answers came to their end."""
    checker = jsonschema.Draft202012Validator(schema)
    for text, taken in zip(texts, result["taken"], strict=True):
        assert not taken or checker.is_valid(json.loads(text)), (schema, text)
    ended = [base64.b64decode(data).decode() for data, whole in result["walked"] if whole]
    for text in ended:
        assert checker.is_valid(json.loads(text)), (schema, text)
    return len(ended)


NAMES = ["a", "b", "ab", "é", 'q"', "\\n", "🙂", "\x01"]
VALUES = [None, True, 0, -3, 2.5, "", "a", "é🙂", '"\\\n\x1f', [], [1, "a"], {}, {"a": 1}]


def schema_of(rng: random.Random, depth: int = 3) -> tuple[Any, list[Any]]:
    """A random schema, and values that satisfy it, whose names come in its order."""
    kinds = [numbers, strings, literals]
    if depth:
        kinds += [arrays, objects, objects, choices]
    return rng.choice(kinds)(rng, depth - 1)


def numbers(rng: random.Random, _: int) -> tuple[Any, list[Any]]:
    kind = rng.choice(["integer", "number"])
    if rng.random() < 0.3:
        return {"type": kind}, [0, -7, 123456789]
    low = rng.choice([-120, -7, 0, 3, 99])
    high = low + rng.choice([0, 1, 8, 95, 1003])
    made: Schema = {"type": kind, "minimum": low, "maximum": high}
    values: list[Any] = [low, high, rng.randint(low, high)]
    if kind == "number" and rng.random() < 0.6:
        made = {"type": kind, "minimum": low - 0.75, "exclusiveMaximum": high + 0.5}
        values += [low - 0.75, low - 0.5, high + 0.25, high + 0.375]
    elif rng.random() < 0.4:
        made = {"type": kind, rng.choice(["minimum", "exclusiveMinimum"]): low - 1}
    return made, values


def strings(rng: random.Random, _: int) -> tuple[Any, list[Any]]:
    least = rng.randint(0, 3)
    most = least + rng.randint(0, 4)
    made = {"type": "string", "minLength": least, "maxLength": most}
    return made, ["".join(rng.choices('aé🙂"\\\n\x02/', k=n)) for n in (least, most)]


def literals(rng: random.Random, _: int) -> tuple[Any, list[Any]]:
    values = rng.sample(VALUES, rng.randint(1, 4))
    return rng.choice(
        [({"enum": values}, values), ({"const": values[0]}, values[:1]), (True, VALUES)]
    )


def arrays(rng: random.Random, depth: int) -> tuple[Any, list[Any]]:
    item, values = schema_of(rng, depth)
    least, more = rng.randint(0, 3), rng.randint(0, 3)
    made: Schema = {"type": "array", "items": item, "minItems": least, "maxItems": least + more}
    if rng.random() < 0.3:
        first, others = schema_of(rng, depth)
        made["prefixItems"] = [first]
        return made, [
            [rng.choice(others), *rng.choices(values, k=n - 1)] if n else []
            for n in (least, least + more)
        ]
    return made, [rng.choices(values, k=n) for n in (least, least + more)]


def objects(rng: random.Random, depth: int) -> tuple[Any, list[Any]]:
    names = rng.sample(NAMES, rng.randint(0, 3))
    parts = {name: schema_of(rng, depth) for name in names}
    required = [name for name in names if rng.random() < 0.5]
    made: Schema = {"type": "object", "properties": {n: s for n, (s, _) in parts.items()}}
    made["required"] = rng.sample(required, len(required))
    values = []
    for chance in (0.0, 0.5, 1.0):
        kept = [n for n in names if n in required or rng.random() < chance]
        values.append({name: rng.choice(parts[name][1]) for name in kept})
    more = rng.choice([False, True, {"type": "integer"}])
    if more is not True or rng.random() < 0.5:
        made["additionalProperties"] = more
    if more is not False:
        spare = next(name for name in ("aa", "", "é2", "other") if name not in names)
        values.append({**values[-1], spare: 5})
    return made, values


def choices(rng: random.Random, depth: int) -> tuple[Any, list[Any]]:
    parts = [schema_of(rng, depth) for _ in range(rng.randint(1, 3))]
    values = [value for _, some in parts for value in some]
    kind = rng.random()
    if kind < 0.2:
        return {"allOf": [parts[0][0], {}]}, parts[0][1]
    return {"anyOf": [schema for schema, _ in parts], "title": "either"}, values


def random_case(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    schema, values = schema_of(rng)
    if number % 5 == 0:  # by a reference, to itself too
        inner: Schema = {"anyOf": [schema, {"type": "array", "items": {"$ref": "#/$defs/one"}}]}
        schema, values = {"$ref": "#/$defs/one", "$defs": {"one": inner}}, [*values, values, [[]]]
    schema = {} if schema is True else schema
    return {"schema": schema, "texts": [*map(written, [*values, *VALUES])], "walks": 3,
            "mine": len(values)}  # fmt: skip


@pytest.mark.parametrize("first", few([0, 1000, 2000, 3000, 4000], 0))
def test_what_comes_satisfies_the_schema_and_what_satisfies_it_can_come(first: int) -> None:
    cases = [random_case(number) for number in range(first, first + 200)]
    ended = 0
    for case, result in zip(cases, ask(cases)["results"], strict=True):
        schema, texts = case["schema"], case["texts"]
        assert "error" not in result, (schema, result)
        ended += checked(schema, result, texts)
        checker = jsonschema.Draft202012Validator(schema)
        for text, taken in list(zip(texts, result["taken"]))[: case["mine"]]:
            assert checker.is_valid(json.loads(text)), (schema, text)
            assert taken, (schema, text)
    assert ended > 400


REFUSED = {
    "a pattern": ({"pattern": "(?<=a)"}, 'the pattern "(?<=a)" has (?<=, which JSON schema'),
    "a format": ({"format": "color"}, '# of the JSON schema has the format "color", which is not'),
    "what is unknown": ({"properties": {"a/b": {"few": 2}}},
                        "#/properties/a~1b of the JSON schema has few, which is not"),
    "a step": ({"multipleOf": 0.1}, "has multipleOf 0.1 (readers that compute in binary"),
    "many names": ({"minProperties": 2}, "# of the JSON schema has minProperties, which is not"),
    "what is not said": ({"not": {"additionalProperties": False}},
                         "has not, or oneOf, of additionalProperties, which is not supported"),
    "nothing at all": ({"enum": [1], "type": "string"}, "no text satisfies the JSON schema"),
    "what never ends": ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"},
                        "no text satisfies"),
    "another document": ({"$ref": "http://x/y"}, "expected # or #/ and the way to a schema"),
    "a type": ({"type": "text"}, '#/type of the JSON schema is "text"; expected a type\'s name'),
    "a count": ({"maxItems": -1}, "#/maxItems of the JSON schema is -1; expected an integer from"),
    "depth": ({"items": json.loads('{"items":' * 70 + "{}" + "}" * 70)}, "more than 64 deep"),
    "a list": ([], "a JSON schema is an object; got"),
    "half a character": ({"const": "\ud800"}, "U+D800, half a character"),
}  # fmt: skip


def test_what_is_refused_is_named() -> None:
    results = ask([{"schema": schema} for schema, _ in REFUSED.values()])["results"]
    for (name, (_, said)), result in zip(REFUSED.items(), results, strict=True):
        assert result["error"].startswith("WeftError") and said in result["error"], (name, result)


KINDS = [{"type": "object", "properties": {"kind": {"const": kind}, "n": {"type": "integer"}},
          "required": ["kind"]} for kind in ("a", "b")]  # fmt: skip
JOINED: list[tuple[Schema, list[str], list[str]]] = [
    ({"oneOf": KINDS}, ['{"kind":"b","n":1}', '{"kind":"a"}'], ['{"kind":"c"}', "{}"]),
    ({"allOf": [{"type": ["integer", "null"], "minimum": 3}, {"type": "number", "maximum": 5}]},
     ["3", "5"], ["2", "null", "6", "3.5"]),
    ({"$ref": "#/$defs/x", "maximum": 9, "$defs": {"x": {"type": "integer"}}}, ["9"], ["10"]),
    ({"enum": [1, 20, "a", None], "type": ["integer", "string"], "maximum": 5}, ["1", '"a"'],
     ["20", "null"]),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {
        "type": "integer"}}, ['{"a":"x","b":1}', '{"b":1}'], ['{"b":1,"a":2}', '{"a":1}']),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.5", "1", "1.0", "0.001"],
     ["0", "0.0", "1.1", "-1"]),
    ({"not": {"not": {"prefixItems": [True]}}, "unevaluatedItems": False}, ["[]"], ["[1]"]),
    ({"properties": {"x": {"$ref": "#/properties/y"}, "y": {"type": "null"}}}, ['{"x":null}', "7"],
     ['{"x":1}']),
]  # fmt: skip


def test_keywords_that_bear_on_each_other() -> None:
    cases = [{"schema": schema, "texts": [*right, *wrong]} for schema, right, wrong in JOINED]
    for (schema, right, wrong), result in zip(JOINED, ask(cases)["results"], strict=True):
        assert result["taken"] == [True] * len(right) + [False] * len(wrong), (schema, result)


def test_tokens_have_the_bytes_that_the_server_gives_them(tmp_path: Path) -> None:
    given, expected = [], []
    for name, make in TOKENIZERS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(make(), encoding="utf-8")
        theirs = Tokenizer(tmp_path / name, 1 << 20, 64)
        given.append({"json": json.loads(theirs.file()), "vocab": theirs.size})
        try:
            tokens, special = token_bytes(theirs, theirs.size)
        except UsageError as e:
            expected.append({"error": str(e).split(";")[0]})
            continue
        expected.append([None if i in special else t for i, t in enumerate(tokens)])
    for want, got in zip(expected, ask([], given)["spelled"], strict=True):
        if isinstance(want, dict):
            assert got["error"].split(": ", 1)[1].startswith(want["error"])
        else:
            assert [t and base64.b64decode(t) for t in got] == want


def test_keywords_that_mean_nothing_are_those_of_the_server() -> None:
    code = f"""import {{ INERT }} from "{PLAYER.as_uri()}/schema_flat.js";
      console.log(JSON.stringify([...INERT]));"""
    command = ["node", "--input-type=module", "-e", code]
    assert set(json.loads(subprocess.check_output(command))) == INERT


FORM: Schema = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0,
                                                            "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
}  # fmt: skip
ANSWERS = """
const { load } = await import(player);
const model = await load(folder, { target: "wasm" });
const written = async (prompt, options) => {
  let [text, finish] = ["", null];
  try {
    for await (const piece of model.generate(prompt, options)) {
      text += piece.text;
      finish = piece.finish;
    }
  } catch (error) { finish = `${error.name}: ${error.message}`; }
  return [text, finish];
};
const most = { maxNewTokens: 300 };
const out = [];
out.push(await written("{", { ...most, schema }));
for (let seed = 0; seed < 4; seed++) {
  out.push(await written("{", { ...most, schema, temperature: 1.5, topK: 40, topP: 0.95, seed }));
}
const openai = { type: "json_schema", json_schema: { name: "it", strict: true, schema } };
out.push(await written("{", { ...most, responseFormat: openai }));
out.push(await written("{", { maxNewTokens: 3, schema }));
for (const options of [{ schema: [] }, { schema: { pattern: "(a)\\\\1" } },
  { schema, responseFormat: openai }, { responseFormat: { type: "xml" } }]) {
  out.push(await written("{", options));
}
model.close();
"""


def answered(answers: list[tuple[str, str]]) -> None:
    greedy, *drawn = answers[:5]
    for text, finish in [greedy, *drawn]:
        jsonschema.validate(json.loads(text), FORM)
        assert finish == "eos"
    assert len(set(map(tuple, drawn))) > 1 and answers[5] == greedy
    assert answers[6][1] == "length"
    said = [
        "schema is []; expected a JSON schema",
        "which JSON schema's readers understand differently",
        "give schema or responseFormat, not both",
        'responseFormat is of the type "xml"',
    ]
    for (text, finish), expected in zip(answers[7:], said, strict=True):
        assert text == "" and finish.startswith("WeftError") and expected in finish


def test_an_answer_in_node_follows_a_schema(pages: Pages) -> None:
    need()
    where = json.dumps([str(PLAYER / "node.js"), str(pages().folder)])
    given = f"const [player, folder] = {where}; const schema = {json.dumps(FORM)};"
    code = f"{given}\n{ANSWERS}\nconsole.log(JSON.stringify(out));"
    command = ["node", "--input-type=module", "-e", code]
    answered(json.loads(subprocess.check_output(command, timeout=240)))


def test_an_answer_in_a_page_follows_a_schema(browser: Browser, site: Site) -> None:
    """The grammar's code comes only once it is asked for."""
    asked = set(site.files)
    code = f"""
await page.goto(given.url + "blank.html");
return await page.evaluate(async ({{ schema }}) => {{
  const [player, folder] = ["./weft.js", "./"];
  {ANSWERS}
  return out;
}}, given);
"""
    answered(browser.run("schema", code, {"url": site.url, "schema": FORM}))
    assert {"forced.js", "grammar.js", "schema.js"} <= set(site.files) - asked


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_published_suite() -> None:
    """JSON-Schema-Test-Suite's folder draft2020-12, which WEFT_SCHEMA_SUITE names."""
    folder = os.environ.get("WEFT_SCHEMA_SUITE")
    if not folder:
        pytest.skip("WEFT_SCHEMA_SUITE names no tests/draft2020-12 of JSON-Schema-Test-Suite")
    groups = [group for path in sorted(Path(folder).glob("*.json"))
              for group in json.loads(path.read_text())]  # fmt: skip
    cases = [{"schema": group["schema"], "texts": [written(t["data"]) for t in group["tests"]],
              "walks": 4} for group in groups]  # fmt: skip
    refused = 0
    for group, case, result in zip(groups, cases, ask(cases)["results"], strict=True):
        if "error" in result:
            assert result["error"].startswith("WeftError"), (group["description"], result)
            refused += 1
            continue
        wrong = [not test["valid"] for test in group["tests"]]
        assert not any(map(bool.__and__, result["taken"], wrong)), group["description"]
        if "\\p" not in str(case["schema"]):  # Python's expressions lack it
            checked(case["schema"], result, case["texts"])
    assert len(groups) > 350 and refused < 60, refused
