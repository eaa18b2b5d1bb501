#!/usr/bin/env python3
"""Makes tests/golden/chat: conversations, and their tokens by transformers' apply_chat_template.

    pip install transformers && pip install --no-deps trl && tests/golden/make_chat.py

trl has the templates of the models as they are, byte for byte. The vocabulary is that of tests/golden/tokens with the
special tokens of the templates behind it, and Qwen's of tools and thoughts, which are not special. A line of
TEMPLATE.tokens is a conversation of conversations.jsonl, and of those of tools.jsonl that name the template: its
tokens, of which those that do not count are -1 - token. What counts is what the assistant says, and what ends it.
"""
import importlib.metadata
import json
import os
import re

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

golden = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
OTHER = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
          "{% endfor %}")
FILES = {"llama3": "llama3", "llama3.1": "llama3_1", "qwen": "qwen2_5", "qwen3": "qwen3", "qwen3-2507": "qwen3_instruct_2507"}
SAID = re.compile(r"(?:<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n)"
                  r"(.*?(?:<\|im_end\|>|<\|eot_id\|>))", re.S)

CONVERSATIONS = [
    [("user", "What is the first day?"), ("assistant", "It's the first day.")],
    [("system", "Be brief."), ("user", "日本語?"), ("assistant", "中文 😀"), ("user", "def main():\n\treturn"), ("assistant", "")],
    [("user", "\n\n  spaces \u3000\u00a0"), ("assistant", "\n\nTwo lines\n\n"), ("user", ""), ("assistant", " a\x1c\u2003")],
    [("assistant", "I begin."), ("system", "late"), ("user", "12345"), ("user", "again")],
]

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a place, \"now\" \\ in °C\n<b>", "parameters": {
        "type": "object", "properties": {"place": {"type": "string", "enum": ["Köln", "東京"]}, "days": {"type": "integer"}},
        "required": ["place"], "additionalProperties": False, "x": [], "y": {}, "z": None}}}
FLAT = {"name": "time", "parameters": {"b": [1, -2.5, 1e20, 1e-7, 0.1, 123456789.125, 1e15, 5e-324, 1.0, True], "a": "\t\u007f\u0001"}}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


QWENS = ["qwen", "qwen3", "qwen3-2507"]
ALL = ["llama3.1"] + QWENS
TOOLS = [
    (ALL, [WEATHER], [
        turn("system", " Be brief. "), turn("user", " Is it warm in Köln? "),
        turn("assistant", "", tool_calls=[call("weather", {"place": "Köln", "days": 1})]),
        turn("tool", "17.5 °C, \"dry\"\n"), turn("assistant", "Yes.")]),
    (ALL, [WEATHER, FLAT], [
        turn("user", "And now?"), turn("assistant", None, tool_calls=[call("time", {})]),
        turn("tool", "12"), turn("assistant", "Noon."), turn("user", "Thanks"), turn("assistant", "No <tool_call> today")]),
    (ALL, [FLAT], [turn("user", "No call."), turn("assistant", "None.")]),
    (ALL, None, [turn("user", "No list."), turn("assistant", "", tool_calls=[call("f", [1, {"a": None}])]), turn("tool", "x")]),
    (["llama3.1"], None, [turn("user", "Q"), turn("tool", {"a": [1, "ü"]}), turn("assistant", "A")]),
    (QWENS, [FLAT, WEATHER], [
        turn("user", "Two."), turn("assistant", "\nBoth.", tool_calls=[
            {"name": "time", "arguments": {"a": "\\"}}, call("weather", {"place": "東京"}), call("time", {})]),
        turn("tool", "1"), turn("tool", "<tool_response>"), turn("tool", ""), turn("assistant", "Done."),
        turn("tool", "late"), turn("user", "<tool_response>old</tool_response>"), turn("assistant", "\n\nEnd")]),
    (QWENS, [FLAT], [turn("system", ""), turn("user", "Empty.")]),
    (["qwen3"], [FLAT], [
        turn("user", "1"), turn("assistant", "<think>\n\nold\n</think>\n\nfirst"), turn("user", "2"),
        turn("assistant", "<think>\nnew\n\n</think>\n\nsecond", tool_calls=[call("time", {"n": 1})]), turn("tool", "3"),
        turn("assistant", "third", reasoning_content="\nfield\n"), turn("tool", "4"),
        turn("assistant", None, tool_calls=[call("time", {"n": 2})]), turn("tool", "5"), turn("assistant", "last")]),
    (["qwen3"], None, [turn("assistant", "no question"), turn("assistant", "a</think>b</think>\nc")]),
    (["qwen3"], None, [turn("user", "only"), turn("user", "<tool_response>x</tool_response>"),
                       turn("assistant", "x", reasoning_content="")]),
]


def tokens(fast, template, messages, tools):
    text = fast.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False)
    said = [m.span(1) for m in SAID.finditer(text)]
    y = fast(text, add_special_tokens=False, return_offsets_mapping=True)
    return " ".join(str(i if any(b < end and begin < e for b, e in said) else -1 - i)
                    for i, (begin, end) in zip(y["input_ids"], y["offset_mapping"]))


def main():
    folder = os.path.join(golden, "chat")
    os.makedirs(folder, exist_ok=True)
    t = Tokenizer.from_file(os.path.join(golden, "tokens", "tokenizer.json"))
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken(x, special=False, normalized=False) for x in OTHER])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin_of_text|>")
    talks = [[{"role": r, "content": c} for r, c in x] for x in CONVERSATIONS]
    with open(os.path.join(folder, "conversations.jsonl"), "w") as f:
        for i, x in enumerate(talks):
            f.write(json.dumps({"messages": x}, ensure_ascii=i % 2 == 0) + "\n")
    with open(os.path.join(folder, "tools.jsonl"), "w") as f:
        for i, (templates, tools, messages) in enumerate(TOOLS):
            line = {"templates": " ".join(templates) + " ", "messages": messages}
            if tools:
                line["tools"] = tools
            f.write(json.dumps(line, ensure_ascii=i % 2 == 0) + "\n")
    for name in ["chatml"] + list(FILES):
        template = CHATML
        if name in FILES:
            path = importlib.metadata.distribution("trl").locate_file(f"trl/chat_templates/{FILES[name]}.jinja")
            template = open(path).read()
        with open(os.path.join(folder, name + ".tokens"), "w") as f:
            for x in talks:
                f.write(tokens(fast, template, x, None) + "\n")
            for templates, tools, messages in TOOLS:
                if name in templates:
                    f.write(tokens(fast, template, messages, tools) + "\n")


main()
