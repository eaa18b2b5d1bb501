#!/usr/bin/env python3
"""Makes tests/golden/chat: conversations, and their tokens by transformers' apply_chat_template.

    pip install transformers && tests/golden/make_chat.py

The vocabulary is that of tests/golden/tokens with the special tokens of the templates behind it. A line of
TEMPLATE.tokens is a conversation: its tokens, of which those that do not count are -1 - token. The templates are those
of the models, with generation marks around what the assistant says and the text that ends it.
"""
import json
import os

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

golden = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
SAID = "{% if message.role == 'assistant' %}{% generation %}TEXT{% endgeneration %}{% else %}TEXT{% endif %}"


def said(text):
    return SAID.replace("TEXT", "{{ " + text + " }}")


CHATML = "{{ '<|im_start|>' + message.role + '\\n' }}" + said("message.content + '<|im_end|>'") + "{{ '\\n' }}"
TEMPLATES = {
    "chatml": "{% for message in messages %}" + CHATML + "{% endfor %}",
    "qwen": "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. "
    "You are a helpful assistant.<|im_end|>\\n' }}{% endif %}{% for message in messages %}" + CHATML + "{% endfor %}",
    "llama3": "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    + said("(message.content | trim) + '<|eot_id|>'") + "{% endfor %}",
}
CONVERSATIONS = [
    [("user", "What is the first day?"), ("assistant", "It's the first day.")],
    [("system", "Be brief."), ("user", "日本語?"), ("assistant", "中文 😀"), ("user", "def main():\n\treturn"), ("assistant", "")],
    [("user", "\n\n  spaces \u3000\u00a0"), ("assistant", "\n\nTwo lines\n\n"), ("user", ""), ("assistant", " a\x1c\u2003")],
    [("assistant", "I begin."), ("system", "late"), ("user", "12345"), ("user", "again")],
]


def main():
    folder = os.path.join(golden, "chat")
    os.makedirs(folder, exist_ok=True)
    t = Tokenizer.from_file(os.path.join(golden, "tokens", "tokenizer.json"))
    t.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin_of_text|>")
    talks = [[{"role": r, "content": c} for r, c in x] for x in CONVERSATIONS]
    with open(os.path.join(folder, "conversations.jsonl"), "w") as f:
        for i, x in enumerate(talks):
            f.write(json.dumps({"messages": x}, ensure_ascii=i % 2 == 0) + "\n")
    for name, template in TEMPLATES.items():
        with open(os.path.join(folder, name + ".tokens"), "w") as f:
            for x in talks:
                y = fast.apply_chat_template(x, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
                f.write(" ".join(str(i if m else -1 - i) for i, m in zip(y["input_ids"], y["assistant_masks"])) + "\n")


main()
