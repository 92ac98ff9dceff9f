"""Attacks on models that take texts, by texts that are short and become long, and by answers that are much longer than
what they are made of. `make attacks` runs them with the others."""

import json
import shutil
import time
import urllib.error
import urllib.request

import numpy as np
from attacking import MB, attackers, bystander, counted, memory_of, repeating, suffered, unattacked
from clients import metric, tensor
from onnx_bytes import constant, model, node, port
from repository_on_disk import write_model, write_pipeline

LASTS_S = 10
#: The memory that requests may take together, in bytes.
LIMIT = 256 << 20
#: Bytes of the longest prompt, and tokens of the longest template, that a configuration may have.
PROMPT_BYTES, TEMPLATE_TOKENS = 64 << 10, 1024
CLASSES = 100_000


def tokenizer(template_tokens=0):
    """A tokenizer of two words. With a template, it adds so many tokens to each text."""
    file = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"},
    }
    if template_tokens:
        texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        special = {"m": {"id": "m", "ids": [1] * template_tokens, "tokens": ["m"] * template_tokens}}
        single, mark = texts[:1], {"SpecialToken": {"id": "m", "type_id": 0}}
        file["post_processor"] = {
            "type": "TemplateProcessing", "single": [mark, *single], "pair": [mark, *texts], "special_tokens": special,
        }  # fmt: skip
    return json.dumps(file)


def write_tokenizing(folder, name, file, prompts):
    outputs = {"tokens": ("INT32", [1]), "ids": ("INT64", [-1])}
    step = (
        f"tokenize: {{ max_tokens: 1048576, {prompts}inputs: {{ TEXT: TEXT }}, "
        "outputs: { tokens: tokens, ids: ids } }"
    )
    write_pipeline(folder, name, {"TEXT": ("BYTES", [1])}, outputs, [step], max_batch_size=2048)
    (folder / name / "tokenizer.json").write_text(file)


def classifier():
    """Numbers of 100,000 classes, of a text's largest token."""
    nodes = [
        node("Cast", ["input_ids"], ["numbers"], to=1),
        node("ReduceMax", ["numbers"], ["largest"], axes=[1], keepdims=1),
        node("Mul", ["largest", "weights"], ["logits"]),
    ]
    inputs, outputs = [port("input_ids", "INT64", ("batch", "tokens"))], [port("logits", "FP32", ("batch", CLASSES))]
    weights = np.linspace(0, 1, CLASSES, dtype=np.float32).reshape(1, CLASSES)
    return model(nodes, inputs, outputs, [constant("weights", weights)])


def figures(server, what, client):
    with memory_of(server) as grown, bystander(server) as times, attackers(4, client) as codes:
        time.sleep(LASTS_S)
    yield f"{what}: others", suffered(times)
    held = metric(server, "paternoster_pending_bytes")
    yield f"{what}: the attack", f"{counted(codes)}; {grown():.0f} MB more resident, {held / MB:.0f} MB reserved after it"


def short_texts(given):
    """Texts of one byte to which the configuration adds a prompt of 64 KiB, or a template of 1024 tokens."""
    folder = given.empty()
    shutil.copytree(given.plain / "identity", folder / "identity")
    prompts = f"prompts: {{ long: '{'a ' * (PROMPT_BYTES // 2)}' }}, default_prompt: long, "
    write_tokenizing(folder, "prompted", tokenizer(), prompts)
    write_tokenizing(folder, "templated", tokenizer(TEMPLATE_TOKENS), "")

    with given.serve(folder, f"--max-pending-bytes={LIMIT}") as server:
        yield "others, without the attack", unattacked(server)
        for name, rows in (("prompted", 60), ("prompted", 1500), ("templated", 60), ("templated", 1500)):
            text = tensor("TEXT", np.full((rows, 1), b"a", object))
            yield from figures(server, f"{name}, {rows} texts", repeating(server, name, [text]))


def many_classes(given):
    """Answers with the names and scores of 100,000 classes for each text, which are 30 times as long as the numbers."""
    folder = given.empty()
    shutil.copytree(given.plain / "identity", folder / "identity")
    made = write_model(folder, "classes", classifier())
    (made / "model.yaml").write_text("text: { task: classify }\n")
    (made / "tokenizer.json").write_text(tokenizer())

    def asking(server, texts):
        body = json.dumps({"inputs": [["a"]] * texts}).encode()
        request = urllib.request.Request(f"http://{server.http}/predict", body, {"Content-Type": "application/json"})

        def client(_):
            while True:
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        while answer.read(1 << 20):
                            pass
                        yield "answered"
                except urllib.error.HTTPError as refusal:
                    yield str(refusal.code)

        return client

    with given.serve(folder, f"--max-pending-bytes={LIMIT}") as server:
        yield "others, without the attack", unattacked(server)
        for texts in (1, 8, 256):
            yield from figures(server, f"{texts} texts", asking(server, texts))


ATTACKS = (short_texts, many_classes)
