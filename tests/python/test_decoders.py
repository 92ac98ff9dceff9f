"""Decoders that were exported with their past keys and values generate tokens as a client does that keeps the keys and
values itself, whatever the lengths and however many requests share a run."""

import json
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import decoders
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import ask_all, eventually, metric, tensor
from conftest import serving
from onnx_bytes import identity
from repository_on_disk import write_model

SENDER = "inputs: [{ name: input_ids, dtype: INT64, dims: [-1] }]\n"
DESCRIBED = {
    "long": {"n_positions": 16},
    "ends": {"eos_token_id": list(range(100))},
    "words": {"eos_token_id": "</s>"},
}
MAX_TOKENS, MAX_LENGTH, END = 12, 40, 7
PROMPTS = [*range(1, 36), 39]


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoders")

    def write(name, graph, configuration):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(graph)
        (folder / name / "model.yaml").write_text(configuration)

    for name, build in decoders.MODELS.items():
        graph = build()
        write(name, graph, f"generate: {{ max_tokens: {MAX_TOKENS} }}\n")
        described = {"eos_token_id": [END, 3], "max_position_embeddings": MAX_LENGTH}
        (folder / name / "config.json").write_text(json.dumps(described))
        write(f"{name}_plain", graph, "max_batch_size: 8\n")
        write(f"{name}_stream", graph, f"decoupled: true\ngenerate: {{ max_tokens: {MAX_TOKENS} }}\n")
        (folder / f"{name}_stream" / "config.json").write_text(json.dumps(described))
    with serving(folder, program=program) as running:
        yield running


def generated(client, model, prompt, most=MAX_TOKENS):
    """Generates as clients of a plain model do: they keep the keys and values, and send them with each token."""
    answer, given, seen = [], list(prompt), 0
    metadata = client.get_model_metadata(f"{model}_plain")
    heads = next(int(one.shape[1]) for one in metadata.inputs if one.name == decoders.PAST[0])
    has_positions = any(one.name == "position_ids" for one in metadata.inputs)
    past = {name: np.zeros((1, heads, 0, decoders.HEAD), np.float32) for name in decoders.PAST}
    while len(answer) < min(most, MAX_LENGTH - len(prompt)):
        inputs = [tensor("input_ids", np.array([given])), *(tensor(name, values) for name, values in past.items())]
        inputs.append(tensor("attention_mask", np.ones((1, seen + len(given)), np.int64)))
        if has_positions:
            inputs.append(tensor("position_ids", np.arange(seen, seen + len(given))[None]))
        result = client.infer(f"{model}_plain", inputs)
        seen += len(given)
        given = [int(result.as_numpy("logits")[0, -1].argmax())]
        answer += given
        past = {name: result.as_numpy(name.replace("past_key_values", "present")) for name in past}
        if given[0] in (END, 3):
            break
    return answer


@pytest.fixture(scope="module", params=decoders.MODELS)
def expected(server, request):
    """A model, its prompts, and what they generate."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, decoders.TOKENS, length) for length in rng.permutation(PROMPTS)]
    with triton.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: generated(client, request.param, prompt), prompts))
    lengths = {len(answer) for answer in answers}
    assert MAX_TOKENS in lengths and len(lengths) > 3, "answers end by their number, by a token and by the length"
    return request.param, prompts, answers


def test_requests_generate_as_clients_that_keep_keys_and_values(server, expected):
    model, prompts, answers = expected
    results, statistics = ask_all(server, model, [[tensor("input_ids", prompt[None])] for prompt in prompts])
    for number, answer in enumerate(answers):
        result, error = results[number]
        assert error is None, error
        assert result.as_numpy("tokens").tolist() == [answer]
    assert statistics.inference_count == len(prompts)


def test_each_token_is_a_response_where_the_model_is_decoupled(server, expected):
    model, prompts, answers = expected
    for prompt, answer in list(zip(prompts, answers, strict=True))[:5]:
        body = json.dumps({"input_ids": prompt.tolist()}).encode()
        with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}_stream/generate_stream", body) as stream:
            events = stream.read().decode().split("\n\n")
        tokens = [json.loads(event.removeprefix("data: "))["tokens"] for event in events if event]
        assert len(tokens) == len(answer) and np.ravel(tokens).tolist() == answer


def test_responses_that_come_one_by_one_are_measured(server, program):
    command = [program, "bench", "--url", server.grpc, "--model", f"{next(iter(decoders.MODELS))}_stream"]
    command += ["--length=3", f"--integers-below={decoders.TOKENS}", "--concurrency=2", "--seconds=0.5"]
    command += ["--warm-up-seconds=0", "--rounds=1", "--samples=8", "--json"]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (figures,) = json.loads(ended.stdout)["loads"][0]["policies"]
    assert figures["total"]["requests_per_s"] > 0, figures


def test_a_request_may_ask_for_fewer_tokens(server, expected):
    model, prompts, answers = expected
    with triton.InferenceServerClient(server.grpc) as client:
        for most in (1, 3, 1000):
            inputs = [tensor("input_ids", prompts[0][None]), tensor("max_tokens", np.array([[most]], np.int32))]
            assert client.infer(model, inputs).as_numpy("tokens").tolist() == [answers[0][:most]]


@pytest.mark.parametrize(
    ("prompt", "most", "message"),
    [
        ([], 5, "input 'input_ids': expected a length of 1 to 39, but found 0"),
        ([1] * 40, 5, "input 'input_ids': expected a length of 1 to 39, but found 40"),
        ([1, 2], 0, "input 'max_tokens': expected 1 or more, but found 0"),
        ([1, 2], -3, "input 'max_tokens': expected 1 or more, but found -3"),
        ([1, 23], 5, "input 'input_ids' of model 'gpt2': expected indices from -23 to 22, but found 23 at [0, 1]"),
    ],
)
def test_what_cannot_be_generated_is_refused(server, prompt, most, message):
    inputs = [tensor("input_ids", np.array([prompt], np.int64)), tensor("max_tokens", np.array([[most]], np.int32))]
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(triton.InferenceServerException, match="INVALID_ARGUMENT") as refused:
            client.infer("gpt2", inputs)
        assert message in refused.value.message()
        assert client.is_server_live()


@pytest.mark.parametrize("policy", ["auto", "cellular", "lazy"])
def test_settings_of_cells_are_those_of_decoders(start, tmp_path, policy):
    write_model(tmp_path, "chat", decoders.gpt2())
    batching = f"{{ policy: {policy}, queueing: {{ queue: {{ max_queue_size: 50 }} }} }}"
    (tmp_path / "chat" / "model.yaml").write_text(f"generate: {{ max_tokens: 3 }}\nbatching: {batching}\n")
    server = start(tmp_path, "--model-control-mode=explicit", "--load-model=chat")
    with triton.InferenceServerClient(server.grpc) as client:
        answer = client.infer("chat", [tensor("input_ids", [[1, 2]])]).as_numpy("tokens")
        shown = client.get_model_config("chat", as_json=True)["config"]
        client.load_model("chat", config=json.dumps(shown))
        assert client.infer("chat", [tensor("input_ids", [[1, 2]])]).as_numpy("tokens").tolist() == answer.tolist()
        with pytest.raises(triton.InferenceServerException, match="expected a length of 1 to 63, but found 64"):
            client.infer("chat", [tensor("input_ids", [[1] * decoders.POSITIONS])])


def test_directories_as_exports_leave_them(start, tmp_path):
    described = {
        "plain": ("config.json", {"architectures": ["GPT2LMHeadModel"], "n_positions": None, "max_position_embeddings": 9}),
        "listed": ("generation_config.json", {"eos_token_id": [END, 3], "architectures": None}),
        "off": ("generation_config.json", {}),
    }
    for name, (file, content) in described.items():
        (tmp_path / name / "onnx").mkdir(parents=True)
        (tmp_path / name / "onnx" / "model.onnx").write_bytes(decoders.gpt2())
        (tmp_path / name / file).write_text(json.dumps(content))
    (tmp_path / "off" / "model.yaml").write_text("cells: off\n")
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        for name, most in (("plain", 8), ("listed", decoders.POSITIONS - 1)):
            with pytest.raises(triton.InferenceServerException, match=f"expected a length of 1 to {most}, but found 64"):
                client.infer(name, [tensor("input_ids", [[1] * decoders.POSITIONS])])
            assert client.infer(name, [tensor("input_ids", [[1, 2]])]).as_numpy("tokens").size
        assert {one.name for one in client.get_model_metadata("off").outputs} > {"logits"}


def test_a_decoder_that_cannot_generate_is_refused_with_the_reason(start, tmp_path):
    models = {
        "counting": (decoders.opt(by_mask=False), "", "it counts positions by the length of the past"),
        "sender": (decoders.gpt2(), SENDER, "inputs: a decoder that generates has its own: remove this"),
        "wide": (decoders.gpt2(), "max_batch_size: 4\n", "max_batch_size: expected 0 or 1"),
        "window": (decoders.gpt2(), "batching: { policy: window }\n", "the policy 'window' does not go with cells"),
        "long": (decoders.gpt2(), "", "generate.max_length: expected at most the 16 positions of config.json"),
        "ends": (decoders.gpt2(), "", "eos_token_id: expected at most 64 tokens, but found 100"),
        "words": (decoders.gpt2(), "", "eos_token_id: expected whole numbers from 0, or -1 for none, but found"),
        "identity": (identity(), "", "generate: expected a decoder that was exported with its past keys"),
    }
    for name, (graph, configuration, _) in models.items():
        write_model(tmp_path, name, graph)
        section = "{ max_length: 30 }" if name == "long" else "{}"
        (tmp_path / name / "model.yaml").write_text(f"{configuration}generate: {section}\n")
    for name, content in DESCRIBED.items():
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    server = start(tmp_path, until="settled")
    with triton.InferenceServerClient(server.grpc) as client:
        found = {model.name: model.reason for model in client.get_model_repository_index().models}
    for name, (*_, reason) in models.items():
        assert reason in found[name]


def test_requests_run_as_far_as_there_is_memory_for_their_keys_and_values(start, tmp_path):
    """A token has 128 bytes of keys and values. Of 600 kB, state may take 300: that of some answers of 60 tokens, but not
    of all, and not of an answer of 4,000."""
    write_model(tmp_path, "chat", decoders.llama())
    (tmp_path / "chat" / "model.yaml").write_text("generate: { max_tokens: 60 }\n")
    server = start(tmp_path, "--max-pending-bytes=600000")
    prompt = tensor("input_ids", [[1, 2, 3]])
    with triton.InferenceServerClient(server.grpc) as client:
        alone = client.infer("chat", [prompt]).as_numpy("tokens").tolist()
        results, _ = ask_all(server, "chat", [[prompt]] * 32)
        assert [result.as_numpy("tokens").tolist() for result, _ in results.values()] == [alone] * 32
        long = [tensor("input_ids", [[1] * 4_000]), tensor("max_tokens", np.array([[1]], np.int32))]
        with pytest.raises(triton.InferenceServerException, match="RESOURCE_EXHAUSTED") as refused:
            client.infer("chat", long)
        assert "(--max-pending-bytes): " in refused.value.message() and "of 300000 are held" in refused.value.message()
    body = json.dumps({"input_ids": [1] * 4_000}).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server.http}/v2/models/chat/generate", body)
    assert refused.value.code == 413
    eventually("all is given back", lambda: metric(server, "paternoster_pending_bytes") == 0)


@pytest.mark.parametrize("end", [-1, [-1], [END, -1]])
def test_an_end_token_of_minus_1_is_none(start, tmp_path, end):
    for name, file in (("described", "generation_config.json"), ("configured", None)):
        write_model(tmp_path, name, decoders.gpt2())
        given = end if isinstance(end, list) else [end]
        section = "{}" if file else f"{{ end_tokens: {given} }}"
        (tmp_path / name / "model.yaml").write_text(f"generate: {section}\n")
        # What describes the model does not count beside what describes its generation.
        (tmp_path / name / "config.json").write_text(json.dumps({"eos_token_id": list(range(decoders.TOKENS))}))
        if file:
            (tmp_path / name / file).write_text(json.dumps({"eos_token_id": end}))
    server = start(tmp_path)
    with triton.InferenceServerClient(server.grpc) as client:
        for name in ("described", "configured"):
            answer = client.infer(name, [tensor("input_ids", [[1, 2]])]).as_numpy("tokens")[0].tolist()
            assert len(answer) == decoders.POSITIONS - 2 or (end == [END, -1] and answer[-1] == END), answer
