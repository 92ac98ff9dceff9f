"""Decoders that are served for the states of their tokens: they were exported with positions, and with the keys and
values of earlier tokens."""

import json
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import statistics, tensor
from onnx_bytes import ELEMENT, constant, model, node, port, sizes
from tokenizers import Tokenizer, models, pre_tokenizers

WIDTH, HEADS, LONGEST = 4, 2, 32
WORDS = ["[UNK]"] + [f"w{number}" for number in range(1, 40)]
DRAWN = np.random.default_rng(5)
OF_WORD = DRAWN.standard_normal((len(WORDS), WIDTH)).astype(np.float32)
OF_PLACE = DRAWN.standard_normal((LONGEST, WIDTH)).astype(np.float32)
POOLING = {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


def embedder(positions="INT64", past=None):
    """States are those of word and place, and the sum of all keys that the mask has: keys are 1 for each token, and
    would be 100 for each earlier one."""
    tokens, all_tokens = ("batch", "tokens"), ("batch", "past + tokens" if past else "tokens")
    inputs = [port("input_ids", "INT64", tokens), port("attention_mask", "INT64", all_tokens)]
    inputs.append(port("position_ids", positions, tokens))
    outputs = [port("last_hidden_state", "FP32", (*tokens, WIDTH))]
    nodes = [
        node("Gather", ["of_word", "input_ids"], ["word"]),
        node("Gather", ["of_place", "position_ids"], ["place"]),
        node("Add", ["word", "place"], ["both"]),
        node("Cast", ["attention_mask"], ["there"], to=ELEMENT["FP32"]),
    ]
    constants = [constant("of_word", OF_WORD), constant("of_place", OF_PLACE), sizes("last", [2]), sizes("heads", [1])]
    kept = "there"
    for part in ("key", "value") if past else ():
        cache = ("batch", HEADS, "past", WIDTH)
        inputs.append(port(f"past_key_values.0.{part}", past, cache))
        outputs.append(port(f"present.0.{part}", past, ("batch", HEADS, "past + tokens", WIDTH)))
        nodes += [
            node("Mul", ["both", "none"], [f"zeros.{part}"]),
            node("Add", [f"zeros.{part}", "one"], [f"ones.{part}"]),
            node("Cast", [f"ones.{part}"], [f"cast.{part}"], to=ELEMENT[past]),
            node("Unsqueeze", [f"cast.{part}", "heads"], [f"head.{part}"]),
            node("Concat", [f"head.{part}"] * HEADS, [f"new.{part}"], axis=1),
            node("Concat", [f"past_key_values.0.{part}", f"new.{part}"], [f"present.0.{part}"], axis=2),
        ]
    if past:
        nodes += [
            node("Cast", ["present.0.key"], ["keys"], to=ELEMENT["FP32"]),
            node("ReduceMean", ["keys"], ["of_tokens"], axes=[1, 3], keepdims=0),
            node("Mul", ["of_tokens", "there"], ["kept"]),
        ]
        constants += [constant("none", np.float32(0)), constant("one", np.float32(1))]
        kept = "kept"
    nodes += [
        node("ReduceSum", [kept, "heads"], ["count"], keepdims=1),
        node("Unsqueeze", ["count", "last"], ["counted"]),
        node("Add", ["both", "counted"], ["last_hidden_state"]),
    ]
    return model(nodes, inputs, outputs, constants)


def right(text):
    """The last token's state."""
    words = text.split()
    return OF_WORD[WORDS.index(words[-1])] + OF_PLACE[len(words) - 1] + len(words)


def write(folder, graph, architecture="Qwen3ForCausalLM", yaml=None, modules=MODULES):
    (folder / "onnx").mkdir(parents=True)
    (folder / "1_Pooling").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(graph)
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    # A table of places has no more than the longest text needs.
    config = {"architectures": [architecture], "max_position_embeddings": LONGEST, "eos_token_id": 2}
    files = {"config.json": config, "generation_config.json": {"eos_token_id": [2]}, "1_Pooling/config.json": POOLING}
    for name, content in {**files, "modules.json": modules}.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if yaml:
        (folder / "model.yaml").write_text(yaml)


TEXTS = [" ".join(WORDS[1 + (start + step) % 39] for step in range(length))
         for start, length in enumerate([1, 5, 20, LONGEST, 2, 31, 9, 1] * 4)]  # fmt: skip


@pytest.mark.parametrize("positions", ["INT64", "INT32"])
@pytest.mark.parametrize("past", [None, "FP32", "FP16"])
def test_an_exported_decoder_embeds_texts_of_many_lengths(start, tmp_path, positions, past):
    write(tmp_path / "embedder", embedder(positions, past))
    write(tmp_path / "model", embedder(positions, past), "Qwen3Model")
    write(tmp_path / "forced", embedder(positions, past), yaml="text: { task: embed, pooling: last }\n", modules=None)
    server = start(tmp_path)
    texts = np.array([[text.encode()] for text in TEXTS], dtype=object)
    with triton.InferenceServerClient(server.grpc) as client:
        for name in ("embedder", "model", "forced"):
            answer = client.infer(name, [tensor("TEXT", texts)]).as_numpy("embedding")
            np.testing.assert_allclose(answer, [right(text) for text in TEXTS], rtol=0, atol=1e-4, err_msg=name)
        batches = statistics(client, "embedder")["batches"]
    assert max(batches) > 1, "texts of different lengths share runs"


def test_what_embeds_is_imported_and_what_generates_stays_a_decoder(start, program, tmp_path):
    source = tmp_path / "source"
    write(source, embedder(past="FP32"))
    repository = tmp_path / "repository"
    command = [program, "import", source, "--model-repository", repository, "--name", "imported"]
    subprocess.run([str(part) for part in command], check=True, timeout=120)
    # The last module of a model that gives scores is another one.
    scoring = [MODULES[0], {**MODULES[1], "type": "sentence_transformers.models.LogitScore"}]
    write(repository / "decoder", embedder(past="FP32"), modules=scoring)
    server = start(repository, until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        answer = client.infer("imported", [tensor("TEXT", np.array([[b"w3 w4"]], dtype=object))])
        np.testing.assert_allclose(answer.as_numpy("embedding"), [right("w3 w4")], rtol=0, atol=1e-4)
        reasons = {entry.name: entry.reason for entry in client.get_model_repository_index().models}
    assert "it cannot generate: it has no output 'logits'" in reasons["decoder"]
