"""Asks the example repository over gRPC: one inference, and a stream of responses.

    pip install 'tritonclient[grpc]'
    python client.py [localhost:8001]
"""

import queue
import sys

import numpy as np
import tritonclient.grpc as triton


def tensor(name, values):
    given = triton.InferInput(name, values.shape, "FP32")
    given.set_data_from_numpy(values)
    return given


def infer(client):
    sent = np.arange(16, dtype=np.float32).reshape(1, 16)
    answer = client.infer("identity", [tensor("INPUT0", sent)], client_timeout=10)
    same = np.array_equal(answer.as_numpy("OUTPUT0"), sent)
    print(f"identity: {sent.size} numbers, {'as sent' if same else 'others than sent'}")


def stream(client):
    """The model answers as often as the first number says; each answer comes by itself, the last one is marked."""
    answers = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    sent = np.zeros((1, 16), dtype=np.float32)
    sent[0, 0] = 3
    client.async_stream_infer("repeat", [tensor("INPUT0", sent)], enable_empty_final_response=True)
    count, is_last = 0, False
    while not is_last:
        result, error = answers.get(timeout=10)
        if error:
            raise error
        response = result.get_response()
        is_last = response.parameters["triton_final_response"].bool_param
        count += bool(response.outputs)
    client.stop_stream()
    print(f"repeat: {count} responses")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8001"
    with triton.InferenceServerClient(address) as connected:
        infer(connected)
        stream(connected)
