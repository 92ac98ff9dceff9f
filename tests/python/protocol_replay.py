"""Sends the recorded requests and converts the answers to the record's form."""

import json
import re
import threading
from pathlib import Path

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

SERVICE = "/inference.GRPCInferenceService"
RECORD = Path(__file__).resolve().parent.parent / "data" / "protocol-cases.json"
QUOTED = re.compile(r"'([^']*)'")
SHAPE = re.compile(r"\[-?\d[-\d,]*\]")
SIZES = re.compile(r"[Ee]xpected (\d+), got (\d+)")
#: The prefix of a message that names the request.
PREFIX = re.compile(r"\[request id: [^\]]*\] ")
PATIENCE_S = 120


def cases():
    """Returns all recorded cases by name."""
    return json.loads(RECORD.read_text())["cases"]


class Answer:
    """The result of one case: the name of a status code, the message, and the response."""

    def __init__(self, code, message="", content=None):
        self.code = code
        self.message = message
        self.content = content


def as_json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def asked(call):
    """Runs a call; returns its `Answer`."""
    try:
        return Answer("OK", content=call())
    except grpc.RpcError as refusal:
        return Answer(refusal.code().name, refusal.details())


def message_names(rpc):
    """Returns the request and response messages of a method."""
    method = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[rpc]
    return getattr(service_pb2, method.input_type.name), getattr(service_pb2, method.output_type.name)


def call(channel, rpc, request, **options):
    """Makes one unary call with a request in JSON form; returns the response message."""
    sent, received = message_names(rpc)
    method = channel.unary_unary(
        f"{SERVICE}/{rpc}", request_serializer=sent.SerializeToString, response_deserializer=received.FromString
    )
    return method(json_format.ParseDict(request, sent()), timeout=PATIENCE_S, **options)


def stream(channel, requests):
    """Makes one ModelStreamInfer call. A request is sent when the previous one has been answered, so that the order of
    answers does not depend on timing. The record spaced its requests in time for the same purpose."""
    answered = threading.Semaphore(0)

    def sending():
        for number, request in enumerate(requests):
            if number > 0:
                answered.acquire()
            yield json_format.ParseDict(request, service_pb2.ModelInferRequest())

    method = channel.stream_stream(
        f"{SERVICE}/ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    responses = []
    for response in method(sending(), timeout=PATIENCE_S):
        responses.append(response)
        answered.release()
    return responses


def replay(channel, case, compressed=False):
    """Sends the request of a recorded case unchanged."""
    rpc, request = case["rpc"], case["request"]
    if rpc == "ModelStreamInfer":
        return asked(lambda: stream(channel, request))
    options = {"compression": grpc.Compression.Gzip} if compressed else {}
    return asked(lambda: call(channel, rpc, request, **options))


# The record's own forms ----------------------------------------------------------------------------------------------


def infer_digest(response):
    """Returns a response in the record's shortened form."""
    return {
        "id": response.id,
        "outputs": [output.name for output in response.outputs],
        "params": as_json(response).get("parameters", {}),
        "raw": [len(raw) for raw in response.raw_output_contents],
        "ver": response.model_version,
    }


def stream_digest(responses):
    digests = []
    for response in responses:
        inner = response.infer_response
        digest = {
            "has_resp": response.HasField("infer_response"),
            "id": inner.id,
            "model": inner.model_name,
            "outs": [output.name for output in inner.outputs],
            "params": as_json(inner).get("parameters", {}),
            "raw": [len(raw) for raw in inner.raw_output_contents],
            "ver": inner.model_version,
        }
        if response.error_message:
            digest["err"] = response.error_message
        digests.append(digest)
    return {"n": len(responses), "responses": digests}


def index_digest(response, absent=()):
    found = [[model.name, model.version, model.state, model.reason] for model in response.models]
    return sorted(one for one in found if one[0] not in absent)


def same_content(case, content):
    """Compares an answer with the record; returns the differences as text, "" if there are none."""
    recorded, rpc = case.get("resp"), case.get("rpc")
    if recorded is None:
        return ""
    if rpc == "ModelStreamInfer":
        return same_stream(recorded, stream_digest(content))
    if rpc == "ModelInfer" and "raw" in recorded:
        return differences(recorded, infer_digest(content))
    if rpc == "ModelConfig":
        return same_config(recorded["config"], as_json(content)["config"])
    return differences(recorded, as_json(content))


def differences(recorded, found):
    return "" if recorded == found else f"recorded {recorded}\n   found {found}"


def same_stream(recorded, found):
    def without_text(digest):
        responses = [{key: value for key, value in one.items() if key != "err"} for one in digest["responses"]]
        return digest["n"], responses, ["err" in one for one in digest["responses"]]

    told = differences(without_text(recorded), without_text(found))
    for before, after in zip(recorded["responses"], found["responses"]):
        missing = missing_facts(before.get("err", ""), after.get("err", ""))
        told += f"the error lacks {missing}: {after.get('err')}" if missing else ""
        told += differences(prefix(before.get("err", "")), prefix(after.get("err", "")))
    return told


#: The fields of a configuration that describe the model. The rest (pinned memory, instances' counts) are hints to
#: Triton's own machinery, which each server fills in by itself.
CONFIG_FACTS = ("name", "backend", "platform", "max_batch_size", "input", "output", "default_model_filename", "version_policy")


def same_config(recorded, found):
    def facts(config):
        return {key: config[key] for key in CONFIG_FACTS if key in config}

    return differences(facts(recorded), facts(found))


def prefix(message):
    """Returns the prefix of a message that names its request; "" if it has none."""
    named = PREFIX.match(message)
    return named.group() if named else ""


def missing_facts(recorded, found):
    """Returns the facts (models, tensors, shapes, sizes) that the recorded message contains and the other one does
    not."""
    if recorded.startswith("onnx runtime error") or recorded.startswith("load failed"):
        return []
    named = set(QUOTED.findall(recorded)) | set(SHAPE.findall(recorded)) | {size for pair in SIZES.findall(recorded) for size in pair}
    request_id = re.match(r"\[request id: (?!<id_unknown>)([^\]]+)\]", recorded)
    if request_id:
        named.add(request_id.group(1))
    return sorted(fact for fact in named if fact not in found)
