"""What schemathesis cannot know of a server: which models it has, and what they take. It imports this file itself."""

import os
import zlib

import schemathesis
from schemathesis.core.parameters import ParameterLocation

#: Models that are there, by what they take; none where names are to stay as they were drawn.
INPUTS = {
    "identity": {"INPUT0": ("FP32", [float(number) for number in range(16)])},
    "addsub": {name: ("FP32", [0.5] * 16) for name in ("INPUT0", "INPUT1")},
    "strings": {"INPUT0": ("BYTES", ["a", "\u00e9\u0000"])},
    "repeat": {"INPUT0": ("FP32", [2.0] + [0.0] * 15)},
}
#: The model that is loaded and unloaded, which nothing else asks.
COMES_AND_GOES = "scale"
HAS_MODELS = bool(os.environ.get("OPENAPI_MODELS_ARE_THERE"))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Names a model that is there and one of its versions, and gives inference what that model takes."""
    if not HAS_MODELS or "model" not in (case.path_parameters or {}):
        return
    if not is_valid(case, ParameterLocation.PATH):
        return
    path = case.operation.path
    if path.endswith("load"):
        case.path_parameters["model"] = COMES_AND_GOES
        return
    # By what was drawn: a case that is sent again, as when it is made smaller, asks the same model.
    drawn = zlib.crc32(repr((case.path_parameters, case.body)).encode())
    model = sorted(INPUTS)[drawn % len(INPUTS)]
    case.path_parameters["model"] = model
    if "version" in case.path_parameters:
        case.path_parameters["version"] = "1"
    if not is_valid(case, ParameterLocation.BODY) or not isinstance(case.body, dict):
        return
    if path.endswith("infer"):
        inputs = [
            {"name": name, "datatype": datatype, "shape": [1, len(data)], "data": data}
            for name, (datatype, data) in INPUTS[model].items()
        ]
        case.body = {**case.body, "inputs": inputs, "outputs": []}
        # Whatever length was drawn, it is not that of this body.
        case.headers.pop("Inference-Header-Content-Length", None)
    elif "generate" in path:
        # Lists are inputs, and this model has no others.
        drawn = {name: value for name, value in case.body.items() if not isinstance(value, list)}
        case.body = {**drawn, **{name: data for name, (_, data) in INPUTS[model].items()}}


def is_valid(case, location):
    """Whether a part of the request was drawn to fit the description."""
    part = case.meta.components.get(location) if case.meta else None
    return part is not None and part.mode.is_positive
