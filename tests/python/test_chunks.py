"""Programs that run several steps of each row at a time: the LSTM operator of ONNX, on a live server. Requests of random
lengths at once get NumPy's answer to each alone. Only counts are asserted, never times."""

import numpy as np
import onnx_bytes
import pytest
import tritonclient.grpc as triton
from clients import ask_all
from conftest import serving

INPUT, HIDDEN = 3, 5
REQUESTS = 200
TOLERANCE = 1e-5
RNG = np.random.default_rng(5)
W, R, B = (RNG.standard_normal(shape).astype(np.float32) / 2 for shape in
           ((1, 4 * HIDDEN, INPUT), (1, 4 * HIDDEN, HIDDEN), (1, 8 * HIDDEN)))  # fmt: skip

CONFIG = """
inputs: [{{ name: x, dtype: FP32, dims: [-1, {input}] }}]
outputs:
- {{ name: y, dtype: FP32, dims: [-1, 1, {hidden}] }}
- {{ name: last, dtype: FP32, dims: [1, {hidden}] }}
- {{ name: state, dtype: FP32, dims: [1, {hidden}] }}
max_batch_size: 1
{more}
cells:
  rnn:
    program: rnn.onnx
    batch_sizes: [16]
    batch_axes: {{ X: 1, h0: 1, c0: 1, Y: 2, hn: 1, cn: 1 }}
unfold:
- chain: {{ cell: rnn, over: x, as: X, {state}: {{ h0: hn, c0: cn }}, chunk: {chunk}, {keys}
           emit: {{ y: all(Y), last: last(Y), state: last(hn) }} }}
"""

#: By name: what the configuration has besides.
MODELS = {
    "cellular": {"more": "batching: { policy: cellular }"},
    "lazy": {"more": "batching: { policy: lazy, latency_objective_ms: 200 }"},
    "auto": {},
    "paper": {"more": "batching: { policy: cellular, cellular: { mode: paper } }"},
    "short": {"more": "batching: { policy: cellular, cellular: { max_chunk_ms: 0.000001 } }"},
    "reversed": {"keys": "reverse: true,"},
    "equal": {"chunk": "{}"},
}


def rnn(has_lengths):
    """X [k, b, in], h0 and c0 [1, b, h], lens [b] → Y [k, 1, b, h], hn and cn [1, b, h]."""
    state = (1, "batch", HIDDEN)
    lengths = [onnx_bytes.port("lens", "INT32", ("batch",))] if has_lengths else []
    inputs = [onnx_bytes.port("X", "FP32", ("steps", "batch", INPUT)), onnx_bytes.port("h0", "FP32", state),
              onnx_bytes.port("c0", "FP32", state), *lengths]  # fmt: skip
    outputs = [onnx_bytes.port("Y", "FP32", ("steps", 1, "batch", HIDDEN)), onnx_bytes.port("hn", "FP32", state),
               onnx_bytes.port("cn", "FP32", state)]  # fmt: skip
    given = ["X", "W", "R", "B", "lens" if has_lengths else "", "h0", "c0"]
    made = onnx_bytes.node("LSTM", given, ["Y", "hn", "cn"], hidden_size=HIDDEN)
    weights = [onnx_bytes.constant(name, value) for name, value in (("W", W), ("R", R), ("B", B))]
    return onnx_bytes.model([made], inputs, outputs, weights)


def write(folder, name, more="", chunk="{ lengths: lens }", keys="", state="carry"):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "rnn.onnx").write_bytes(rnn(chunk != "{}"))
    config = CONFIG.format(input=INPUT, hidden=HIDDEN, more=more, chunk=chunk, keys=keys, state=state)
    (folder / name / "model.yaml").write_text(config)


def lstm(x, h=0.0, c=0.0):
    """Returns the hidden state after each step, and the last cell state, in double precision."""
    w, r, b = W[0].astype(float), R[0].astype(float), B[0].astype(float)
    h, c, states = np.full(HIDDEN, h), np.full(HIDDEN, c), []
    for step in x:
        i, o, f, g = np.split(w @ step + r @ h + b[: 4 * HIDDEN] + b[4 * HIDDEN :], 4)
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        states.append(h)
    return np.array(states), c


def request(x):
    given = triton.InferInput("x", [1, *x.shape], "FP32")
    return [given.set_data_from_numpy(x[np.newaxis].astype(np.float32))]


def check(result, x, is_reversed=False, h=0.0, c=0.0):
    states, _ = lstm(x[::-1] if is_reversed else x, h, c)
    last = states[-1]
    for name, expected in (("y", (states[::-1] if is_reversed else states)[:, np.newaxis]),
                           ("last", last[np.newaxis]), ("state", last[np.newaxis])):  # fmt: skip
        found = result.as_numpy(name)[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    for name, given in MODELS.items():
        write(folder, name, **given)
    write(folder, "kept", more="sequence_batching: { max_sequence_idle_us: 600000000 }", state="keep")
    with serving(folder, program=program) as running:
        yield running


@pytest.mark.parametrize("model", MODELS)
def test_requests_of_any_length_at_once_are_what_they_are_alone(server, model):
    rng = np.random.default_rng(7)
    given = [rng.standard_normal((int(rng.integers(1, 40)), INPUT)).astype(np.float32) for _ in range(REQUESTS)]
    answers, _ = ask_all(server, model, [request(x) for x in given], in_flight=64)
    for number, (result, error) in answers.items():
        assert error is None
        check(result, given[number], is_reversed=model == "reversed")


def test_a_lone_request_runs_all_its_steps_at_once_and_where_chunks_are_short_one_by_one(server):
    x = np.random.default_rng(3).standard_normal((20, INPUT)).astype(np.float32)
    with triton.InferenceServerClient(server.grpc) as client:
        ran = {}
        for model in ("cellular", "equal", "paper", "short"):
            client.infer(model, request(x))
            before = tasks(client, model)
            check(client.infer(model, request(x)), x)
            ran[model] = tasks(client, model) - before
    assert ran["cellular"] <= 5 and ran["equal"] <= 5
    assert ran["paper"] == 20 and ran["short"] == 20


def tasks(client, model):
    """Returns how many tasks have run."""
    return client.get_inference_statistics(model).model_stats[0].execution_count


def test_state_between_requests_is_that_after_the_last_step(server):
    rng = np.random.default_rng(9)
    h = c = 0.0
    with triton.InferenceServerClient(server.grpc) as client:
        for number in range(5):
            x = rng.standard_normal((4 + 3 * number, INPUT)).astype(np.float32)
            result = client.infer(
                "kept", request(x), sequence_id=31, sequence_start=number == 0, sequence_end=number == 4
            )
            check(result, x, h=h, c=c)
            states, c = lstm(x, h, c)
            h = states[-1]
