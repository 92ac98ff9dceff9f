"""Answers that differ on purpose from the recorded ones of Triton 2.51.

docs/protocol.md has the same tables for readers. A case that is listed as different and is not fails the test, so that
the lists stay true.
"""

#: case -> (status code here, reason)
STATUS = {
    "health_v1.check_nope": (
        "NOT_FOUND",
        "the health protocol asks for NOT_FOUND where a service is unknown; Triton answers every name alike",
    ),
    "health_v1.check_model": (
        "NOT_FOUND",
        "a model is no service: its readiness is ModelReady's; Triton answers every name alike",
    ),
    "explicit.health_v1_check_nope": ("NOT_FOUND", "as health_v1.check_nope"),
    "health_v1.watch": ("OK", "Watch is served, so that clients need not poll"),
    "reflection.v1alpha": ("OK", "server reflection is served, so that grpcurl needs no proto files"),
    "infer.dup_output": ("INVALID_ARGUMENT", "as Triton 2.73, which refuses an output that is requested twice"),
    "infer.huge_dim_overflow": (
        "INVALID_ARGUMENT",
        "dimensions are multiplied with overflow checks, so that this request is refused before it reaches an engine",
    ),
}

#: case -> reason why the answer's content differs although its status is the same
CONTENT = {
    "stats.after_client_deadline": "an expired request leaves the queue or the batch and counts as failed, not as a success",
    "model_config.decoupled": "the model stands in for one of Triton's Python backend, which is not there",
}

#: case -> reason why the message contains other facts
MESSAGE = {
    "infer.batch0": "a batch of 0 is refused as such; Triton's expected size belongs to a batch of 1",
    "infer.negative_dim": "a batch of -1 is refused as such; Triton's expected size comes from an overflow",
    "infer.unknown_dtype": "the datatype is quoted as it was sent; Triton says '<invalid>'",
}

#: Models of the measurement that the replayed repository leaves out: the LSTM has no case of its own.
ABSENT_MODELS = {"lstm_exact", "lstm_pad", "lstm_ragged"}
