"""Flags of tritonserver that change the behaviour of models and the contents of metrics, and the hook of its test
suites."""

import queue

import numpy as np
import tritonclient.grpc as triton
from clients import ROW, change, eventually, metric, on_page, pending, scrape, statistics, tensor
from conftest import serving
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server

REPEAT = """
backend: "repeat"
max_batch_size: 8
model_transaction_policy { decoupled: true }
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""


def test_the_largest_batch_of_models_that_do_not_say_is_a_flag(start, tmp_path):
    write_model(tmp_path, "silent", identity())
    write_model(tmp_path, "own", identity(), "max_batch_size: 2")
    for flags, expected in [
        ((), (4, 2)),
        (("--backend-config=default-max-batch-size=32",), (32, 2)),
        (
            ("--backend-config=onnxruntime,default-max-batch-size=16", "--backend-config=default-max-batch-size=32"),
            (16, 2),
        ),
        (("--backend-config=default-max-batch-size=0",), (0, 2)),
    ]:
        with triton.InferenceServerClient(start(tmp_path, *flags).grpc) as client:
            found = tuple(client.get_model_config(model).config.max_batch_size for model in ("silent", "own"))
            assert found == expected, flags
            rows = np.array([ROW] * 3)
            np.testing.assert_array_equal(client.infer("silent", [tensor("INPUT0", rows)]).as_numpy("OUTPUT0"), rows)


def test_latencies_are_shown_as_the_flags_say(program, tmp_path):
    write_model(tmp_path, "identity", identity(), config("identity", {"INPUT0": ("FP32", [16])}))
    (tmp_path / "repeat" / "1").mkdir(parents=True)
    first = "nv_inference_first_response_histogram_ms"
    options = "histogram_options { buckets: [ 60000, 1e9 ] }"
    buckets = f'model_metrics {{ metric_control {{ metric_identifier {{ family: "{first}" }} {options} }} }}'
    (tmp_path / "repeat" / "config.pbtxt").write_text(REPEAT + buckets)
    flags = [
        "--metrics-config",
        "summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=counter_latencies=false",
    ]
    with serving(tmp_path, *flags, program=program) as server, triton.InferenceServerClient(server.grpc) as client:
        for _ in range(5):
            client.infer("identity", [tensor("INPUT0", [ROW])])
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("repeat", [tensor("INPUT0", [np.full(16, 3, np.float32)])])
        assert [answers.get(timeout=120)[1] for _ in range(3)] == [None] * 3
        client.stop_stream()
        page = scrape(server)
    for part in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        name = f"nv_inference_{part}_summary_us"
        assert on_page(page, f"{name}_count", model="identity") == 5
        median, tail = (on_page(page, name, model="identity", quantile=quantile) for quantile in ("0.5", "0.99"))
        assert 0 <= median <= tail
    assert on_page(page, "nv_inference_request_summary_us_sum", model="identity") > 0
    assert on_page(page, f"{first}_count", model="repeat") == 1, "one a request, whatever its responses"
    assert on_page(page, f"{first}_bucket", model="repeat", le="1000000000") == 1
    assert on_page(page, f"{first}_count", model="identity") == 5, "of an ordinary model too"
    assert "_duration_us" not in page, "the counters are off"


def test_without_flags_there_are_counters_alone(server):
    page = scrape(server)
    assert "summary_us" not in page and "first_response" not in page
    assert metric(server, "nv_inference_request_duration_us", model="identity") >= 0


HOOK = {"TRITONSERVER_DELAY_SCHEDULER": "6"}


def test_the_hook_of_tritons_test_suites_fills_the_queue_first(program, tmp_path):
    batching = config("identity", {"INPUT0": ("FP32", [16])}, extra="dynamic_batching { } instance_group { count: 1 }")
    write_model(tmp_path, "identity", identity(), batching)
    server = Server(tmp_path, "--allow-test-hooks", program=program, environment=HOOK)
    with server, triton.InferenceServerClient(server.grpc) as client:
        before, answers = statistics(client, "identity"), queue.Queue()

        def ask():
            client.async_infer("identity", [tensor("INPUT0", [ROW])], lambda result, error: answers.put(error))

        for _ in range(5):
            ask()
        eventually("five wait", lambda: pending(server, "identity") == 5)
        assert answers.empty()
        ask()
        assert [answers.get(timeout=120) for _ in range(6)] == [None] * 6
        counted = change(before, statistics(client, "identity"))
        assert (counted["success"], counted["batches"]) == (6, {6: 1}), "all six went as one batch"
        client.infer("identity", [tensor("INPUT0", [ROW])])


def test_the_hook_counts_sequences_with_a_slot_and_the_backlog_apart(program, made_models):
    repository = made_models("tests", "--only", "total")
    environment = {"TRITONSERVER_DELAY_SCHEDULER": "4", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "1"}
    server = Server(repository, "--allow-test-hooks", program=program, environment=environment)
    with server, triton.InferenceServerClient(server.grpc) as client:
        answers = queue.Queue()

        def start(sequence):
            inputs = [tensor("INPUT0", np.array([[sequence]], np.int64))]
            client.async_infer("total", inputs, lambda result, error: answers.put(error), sequence_id=sequence, sequence_start=True, sequence_end=True)

        # Four sequences have a slot.
        for sequence in range(1, 5):
            start(sequence)
        eventually("four wait", lambda: pending(server, "total") == 4)
        assert answers.empty(), "the backlog is empty"
        start(5)
        assert [answers.get(timeout=120) for _ in range(5)] == [None] * 5


def test_without_the_flag_the_hook_is_not_read(program, tmp_path):
    batching = config("identity", {"INPUT0": ("FP32", [16])}, extra="dynamic_batching { }")
    write_model(tmp_path, "identity", identity(), batching)
    server = Server(tmp_path, program=program, environment=HOOK)
    with server, triton.InferenceServerClient(server.grpc) as client:
        client.infer("identity", [tensor("INPUT0", [ROW])])
        assert 'is ignored without --allow-test-hooks variable="TRITONSERVER_DELAY_SCHEDULER"' in server.log.read_text()
