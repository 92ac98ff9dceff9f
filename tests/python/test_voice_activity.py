"""Silero VAD, in the variants that its package has, without any configuration. Its states are in its signature, so
clients pass them on; a configuration makes them states of sequences."""

import shutil

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import tensor
from conftest import fetched, serving

RATE, WINDOW, CONTEXT, WINDOWS = 16_000, 512, 64, 8
#: What ONNX Runtime 1.32 answers from Python, window by window.
PROBABILITIES = [0.00167, 0.00617, 0.38989, 0.40026, 0.57252, 0.82296, 0.65790, 0.66668]
#: Those of the variant of half of the rate, which takes the windows for longer ones.
HALF = [0.01201, 0.02467, 0.64738, 0.74826, 0.74836, 0.77547, 0.77803, 0.94652]
TOLERANCE = 1e-3
STREAMING = {
    "silero_vad": PROBABILITIES,
    "silero_vad_16k_op15": PROBABILITIES,
    "silero_vad_op18_ifless": PROBABILITIES,
    "silero_vad_openvino_16k": PROBABILITIES,
    "silero_vad_half": HALF,
}
#: The variant that takes all windows at once.
AT_ONCE = "silero_vad_16k_sequence"
#: The variant whose recurrent layer is cut into other operators.
WITHOUT_LAYER = "silero_vad_op18_ifless"

SEQUENCES = """
max_batch_size: 0
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  state [ { input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [ 2, 1, 128 ]
            initial_state: { data_type: TYPE_FP32 dims: [ 2, 1, 128 ] zero_data: true name: "silence" } } ]
}
"""


def windows():
    """Silence, and then a tone with harmonics that swells as a voice does."""
    time = np.arange(WINDOWS * WINDOW) / RATE
    voice = sum(np.sin(2 * np.pi * 140 * k * time + k) / k for k in range(1, 12)) * (1 + np.sin(8 * np.pi * time))
    samples = np.concatenate([np.zeros(CONTEXT), 0.2 * voice * (time > 0.06)]).astype(np.float32)
    return np.stack([samples[at : at + WINDOW + CONTEXT] for at in range(0, WINDOWS * WINDOW, WINDOW)])


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    files = fetched(fetch.silero)
    folder = tmp_path_factory.mktemp("silero")
    for name in (*STREAMING, AT_ONCE, "sequences"):
        (folder / name / "1").mkdir(parents=True)
        file = "silero_vad_openvino_16k" if name == "sequences" else name
        shutil.copy(files / f"{file}.onnx", folder / name / "1" / "model.onnx")
    (folder / "sequences" / "config.pbtxt").write_text(SEQUENCES)
    with serving(folder, program=program) as running:
        yield running


def inputs_of(client, name, window):
    rate = [tensor("sr", np.array([RATE]))] if "sr" in [one.name for one in client.get_model_metadata(name).inputs] else []
    return [tensor("input", window[np.newaxis]), *rate]


@pytest.mark.parametrize("name", STREAMING)
def test_clients_pass_the_state_on(server, name):
    state, found = np.zeros((2, 1, 128), np.float32), []
    with triton.InferenceServerClient(server.grpc) as client:
        for window in windows():
            answer = client.infer(name, [*inputs_of(client, name, window), tensor("state", state)])
            state = answer.as_numpy("stateN")
            found.append(answer.as_numpy("output").item())
    np.testing.assert_allclose(found, STREAMING[name], atol=TOLERANCE)


@pytest.mark.parametrize("length", range(1, WINDOWS + 1))
def test_all_windows_may_come_at_once(server, length):
    start = [tensor(name, np.zeros((1, 1, 128), np.float32)) for name in "hc"]
    with triton.InferenceServerClient(server.grpc) as client:
        answer = client.infer(AT_ONCE, [tensor("input", windows()[:length]), *start])
    np.testing.assert_allclose(answer.as_numpy("speech_probs"), PROBABILITIES[:length], atol=TOLERANCE)


def test_sequences_keep_the_state(server):
    found = {1: [], 2: []}
    with triton.InferenceServerClient(server.grpc) as client:
        for number, window in enumerate(windows()):
            for sequence, probabilities in found.items():
                flags = {"sequence_start": number == 0, "sequence_end": number == WINDOWS - 1}
                answer = client.infer("sequences", [tensor("input", window[np.newaxis])], sequence_id=sequence, **flags)
                probabilities.append(answer.as_numpy("output").item())
    for probabilities in found.values():
        np.testing.assert_allclose(probabilities, PROBABILITIES, atol=TOLERANCE)


def test_the_log_says_why_they_stay_whole(server):
    lines = [line for line in server.log.read_text().splitlines() if "recurrent layers are served as a whole" in line]
    assert len(lines) == len(STREAMING)
    for name in {*STREAMING, AT_ONCE} - {WITHOUT_LAYER}:
        (line,) = [line for line in lines if f'model="{name}"' in line]
        assert 'reason="the model has no batch axis"' in line
