"""What schemathesis cannot know about a server: its models and their inputs. schemathesis imports this file itself."""

import os
import zlib

import schemathesis
from schemathesis.core.parameters import ParameterLocation

#: Existing models, by their inputs; none if names are to stay as drawn.
INPUTS = {
    "identity": {"INPUT0": ("FP32", [float(number) for number in range(16)])},
    "addsub": {name: ("FP32", [0.5] * 16) for name in ("INPUT0", "INPUT1")},
    "strings": {"INPUT0": ("BYTES", ["a", "\u00e9\u0000"])},
    "repeat": {"INPUT0": ("FP32", [2.0] + [0.0] * 15)},
}
#: The model that is loaded and unloaded, to which no other request goes.
COMES_AND_GOES = "scale"
HAS_MODELS = bool(os.environ.get("OPENAPI_MODELS_ARE_THERE"))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replaces the model and version by existing ones, and gives inference requests inputs that the model accepts."""
    if not HAS_MODELS or "model" not in (case.path_parameters or {}):
        return
    if not is_valid(case, ParameterLocation.PATH):
        return
    path = case.operation.path
    if path.endswith("load"):
        case.path_parameters["model"] = COMES_AND_GOES
        return
    # Chosen by the drawn case, so that a case that is sent again, such as a smaller one, goes to the same model.
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
        # The drawn length is not that of this body.
        case.headers.pop("Inference-Header-Content-Length", None)
    elif "generate" in path:
        # Lists are inputs, and this model has no further ones.
        drawn = {name: value for name, value in case.body.items() if not isinstance(value, list)}
        case.body = {**drawn, **{name: data for name, (_, data) in INPUTS[model].items()}}


def is_valid(case, location):
    """Returns whether a part of the request was drawn to fit the description."""
    part = case.meta.components.get(location) if case.meta else None
    return part is not None and part.mode.is_positive
