"""Ensembles in Triton's form, and models for them: small ONNX graphs with the signatures that the maps of an ensemble
imply, whose outputs depend on every input, and a computation of the same by NumPy."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_bytes
from onnx_bytes import constant, node, port
from tritonclient.utils import triton_to_np_dtype

#: The size of a dimension that varies.
VARYING = 3
#: Values stay below this, so that every datatype has them.
MODULUS = 97


class Kind(NamedTuple):
    datatype: str
    dims: tuple
    optional: bool = False


def kinds(text):
    """Reads tensors such as "WAV FP32[-1] LENGTH? INT32[1]"; a question mark stands for an optional input."""
    words = text.split()
    found = {}
    for name, kind in zip(words[::2], words[1::2], strict=True):
        datatype, dims = kind.rstrip("]").split("[")
        found[name.rstrip("?")] = Kind(datatype, tuple(int(size) for size in dims.split(",")), name.endswith("?"))
    return found


class Step(NamedTuple):
    model: str
    inputs: dict
    outputs: dict
    version: int


def step(model, inputs, outputs, version=-1):
    """The maps are texts such as "port=tensor port=tensor"; a name alone is both."""
    maps = [dict((pair + "=" + pair).split("=")[:2] for pair in text.split()) for text in (inputs, outputs)]
    return Step(model, *maps, version)


class Ensemble(NamedTuple):
    #: The repository that has such a configuration.
    source: str
    #: `max_batch_size`; None if it is not there.
    batch: int | None
    inputs: str
    between: str
    outputs: str
    steps: list
    #: Backends or platforms of models that are not ONNX in the source.
    foreign: dict = {}
    #: Largest batches of models, where they are not that of the ensemble.
    batches: dict = {}
    #: Models that sum up a sequence.
    sequences: tuple = ()
    #: How the text is written: lists of maps, single quotes, commas.
    style: str = "blocks"


class Model(NamedTuple):
    """A model of an ensemble's steps: its signature, with the batch axis left out."""

    inputs: dict
    outputs: dict
    batch: int
    is_sequence: bool = False

    def axes(self, dims):
        return ("batch", *dims) if self.batch else dims


def models_of(ensemble):
    """Derives the models from the steps: a port has the kind of the tensor that is mapped to it."""
    tensors = kinds(f"{ensemble.inputs} {ensemble.between} {ensemble.outputs}")
    models = {}
    for at in ensemble.steps:
        batch = ensemble.batches.get(at.model, ensemble.batch or 0)
        new = Model({}, {}, batch, at.model in ensemble.sequences)
        model = models.setdefault(at.model, new)
        for ports, names in ((model.inputs, at.inputs), (model.outputs, at.outputs)):
            for name, tensor in names.items():
                kind = tensors[tensor]
                if bool(batch) != bool(ensemble.batch):
                    dims = kind.dims[1:] if batch else (-1, *kind.dims)
                    kind = kind._replace(dims=dims)
                ports.setdefault(name, kind)
    return models


def is_elementwise(model, kind):
    """Whether an output has the shape of the first input."""
    return next(iter(model.inputs.values())).dims == kind.dims


def sizes(dims):
    return [VARYING if size < 0 else size for size in dims]


def ramp(kind):
    """What is added to the elements of an output, so that they differ."""
    count = int(np.prod(sizes(kind.dims)))
    return (np.arange(count) % 5 * (kind.datatype != "BOOL")).astype(np.float32).reshape(sizes(kind.dims))


def modulus(kind):
    return 2 if kind.datatype == "BOOL" else MODULUS


def compute(model, inputs, state=0):
    """Returns the outputs by name, and the next state of a sequence; `inputs` lacks what a request left out."""
    read = {name: values.astype(np.float32) for name, values in inputs.items()}
    total = np.float32(0) + state
    for factor, name in enumerate(model.inputs, 1):
        if name in read:
            axes = tuple(range(1, read[name].ndim)) if model.batch else None
            total = total + factor * read[name].max(axis=axes)
    total = np.mod(total, MODULUS)
    outputs = {}
    for number, (name, kind) in enumerate(model.outputs.items(), 1):
        spread = total.reshape(-1, *[1] * len(kind.dims)) if model.batch else total
        first = next(iter(model.inputs))
        added = read.get(first, np.float32(0)) if is_elementwise(model, kind) else ramp(kind)
        values = np.mod(spread + number + added, modulus(kind))
        if kind.datatype == "BYTES":
            outputs[name] = np.array([b"%d" % value for value in values.ravel()], object).reshape(values.shape)
        else:
            outputs[name] = values.astype(triton_to_np_dtype(kind.datatype))
    return outputs, total


def graph(model):
    """Returns the ONNX model that computes the same."""
    constants, nodes, totals = [constant("modulus", [float(MODULUS)])], [], []
    for factor, (name, kind) in enumerate(model.inputs.items(), 1):
        rank = len(model.axes(kind.dims))
        nodes.append(node("Cast", [name], [f"{name}/float"], to=1))
        reduced = {"axes": list(range(1, rank))} if model.batch else {}
        nodes.append(node("ReduceMax", [f"{name}/float"], [f"{name}/max"], keepdims=0, **reduced))
        constants.append(constant(f"{name}/factor", np.float32(factor)))
        nodes.append(node("Mul", [f"{name}/max", f"{name}/factor"], [f"{name}/part"]))
        totals.append(f"{name}/part")
        if kind.optional:
            constants.append(default(name, [1] * rank, kind.datatype))
    inputs = [port(name, kind.datatype, symbols(model, name, kind)) for name, kind in model.inputs.items()]
    outputs = [port(name, kind.datatype, symbols(model, name, kind)) for name, kind in model.outputs.items()]
    if model.is_sequence:
        inputs.append(port("STATE_IN", "FP32", ("batch", 1)))
        outputs.append(port("STATE_OUT", "FP32", ("batch", 1)))
        constants.append(constant("row", np.array([-1])))
        nodes.append(node("Reshape", ["STATE_IN", "row"], ["STATE_IN/part"]))
        totals.append("STATE_IN/part")
    nodes.append(node("Sum", totals, ["sum"]))
    nodes.append(node("Mod", ["sum", "modulus"], ["total"], fmod=1))
    if model.is_sequence:
        constants.append(constant("column", np.array([-1, 1])))
        nodes.append(node("Reshape", ["total", "column"], ["STATE_OUT"]))
    for number, (name, kind) in enumerate(model.outputs.items(), 1):
        elementwise = is_elementwise(model, kind)
        added = np.zeros([1] * len(kind.dims), np.float32) if elementwise else ramp(kind)
        # A model without a batch axis has one total, which has one dimension here.
        shape = [-1, *[1] * len(kind.dims)] if model.batch else [1] * max(len(kind.dims), 1)
        constants += [constant(f"{name}/ramp", added + np.float32(number)), constant(f"{name}/shape", np.array(shape)),
                      constant(f"{name}/modulus", np.float32(modulus(kind)))]  # fmt: skip
        nodes.append(node("Reshape", ["total", f"{name}/shape"], [f"{name}/spread"]))
        terms = [f"{name}/spread", f"{name}/ramp"]
        if elementwise:
            terms.append(f"{next(iter(model.inputs))}/float")
        nodes.append(node("Sum", terms, [f"{name}/sum"]))
        nodes.append(node("Mod", [f"{name}/sum", f"{name}/modulus"], [f"{name}/value"], fmod=1))
        nodes.append(node("Cast", [f"{name}/value"], [name], to=onnx_bytes.ELEMENT[kind.datatype]))
    return onnx_bytes.model(nodes, inputs, outputs, constants)


def symbols(model, name, kind):
    dims = tuple(f"{name}_{axis}" if size < 0 else size for axis, size in enumerate(kind.dims))
    # What an optional input is by default has one row, whatever the batch.
    return (f"{name}_batch", *dims) if model.batch and kind.optional else model.axes(dims)


def default(name, shape, datatype):
    """What an optional input is where a request leaves it out: zero."""
    fields = b"".join(onnx_bytes.number(1, size) for size in shape) + onnx_bytes.number(2, onnx_bytes.ELEMENT[datatype])
    if datatype == "BYTES":
        return fields + onnx_bytes.text(8, name) + onnx_bytes.text(6, "0")
    return (
        fields + onnx_bytes.text(8, name) + onnx_bytes.text(9, bytes(np.dtype(triton_to_np_dtype(datatype)).itemsize))
    )


def run(ensemble, inputs, states=None):
    """Runs the steps on arrays of all axes; returns the outputs. `states` has those of a sequence, and is changed."""
    models, tensors, left = models_of(ensemble), dict(inputs), list(ensemble.steps)
    optional = {name for name, kind in kinds(ensemble.inputs).items() if kind.optional}
    while left:
        known = tensors.keys() | optional
        at = next(at for at in left if all(tensor in known for tensor in at.inputs.values()))
        left.remove(at)
        read = {name: tensors[tensor] for name, tensor in at.inputs.items() if tensor in tensors}
        state = (states or {}).get(at.model, 0)
        outputs, after = compute(models[at.model], read, state)
        if models[at.model].is_sequence and states is not None:
            states[at.model] = after
        tensors.update({tensor: outputs[name] for name, tensor in at.outputs.items()})
    return {name: tensors[name] for name in kinds(ensemble.outputs)}


def request(ensemble, rng, rows=2, without=()):
    """Returns the inputs of a request by name."""
    arrays = {}
    for name, kind in kinds(ensemble.inputs).items():
        if name in without:
            continue
        shape = ([rows] if ensemble.batch else []) + sizes(kind.dims)
        values = rng.integers(0, 2 if kind.datatype == "BOOL" else 20, shape)
        if kind.datatype == "BYTES":
            arrays[name] = np.array([b"%d" % value for value in values.ravel()], object).reshape(shape)
        else:
            arrays[name] = values.astype(triton_to_np_dtype(kind.datatype))
    return arrays


def tensors_text(kind, ports, quote='"', colon=""):
    entries = []
    for name, (datatype, dims, optional) in ports.items():
        element = "STRING" if datatype == "BYTES" else datatype
        more = " optional: true" if optional else ""
        entries.append(f"{{ name: {quote}{name}{quote} data_type: TYPE_{element} dims: {list(dims)}{more} }}")
    return f"{kind}{colon} [ {', '.join(entries)} ]"


def reshaped(text, dims, reshape):
    """Has the tensors of a config.pbtxt that have these dims reshaped."""
    return text.replace(f"dims: {list(dims)}", f"dims: {list(dims)} reshape {{ shape: {list(reshape)} }}")


def ensemble_text(name, ensemble, prefix=""):
    """Writes the config.pbtxt in its style; `prefix` is that of its models' names."""
    quote = "'" if ensemble.style == "quotes" else '"'
    colon = ":" if ensemble.style == "colons" else ""
    comma = "," if ensemble.style == "commas" else ""

    def entries(kind, names):
        made = [f"{{ key: {quote}{key}{quote}{comma} value: {quote}{value}{quote} }}" for key, value in names.items()]
        if ensemble.style == "lists":
            return f"{kind} [ {', '.join(made)} ]"
        return f"{comma} ".join(f"{kind} {entry}" for entry in made)

    steps = [
        f"{{ model_name: {quote}{prefix}{at.model}{quote}{comma} model_version: {at.version}{comma}"
        f" {entries('input_map', at.inputs)}{comma} {entries('output_map', at.outputs)} }}"
        for at in ensemble.steps
    ]
    batch = "" if ensemble.batch is None else f"max_batch_size:{ensemble.batch} # as much as it takes"
    return "\n".join([
        f"name: {quote}{name}{quote}", f"platform: {quote}ensemble{quote}", batch,
        tensors_text("input", kinds(ensemble.inputs), quote, colon),
        tensors_text("output", kinds(ensemble.outputs), quote, colon),
        f"ensemble_scheduling {{ step{colon} [ {', '.join(steps)} ] }}", "",
    ])  # fmt: skip


#: A state that a model keeps for each sequence.
STATE = """sequence_batching {
  max_sequence_idle_microseconds: 600000000
  oldest { max_candidate_sequences: 16 }
  state [ { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ]
            initial_state: { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true name: "zero" } } ]
}"""


def model_text(name, model, backend="onnxruntime"):
    """Writes the config.pbtxt of a step's model."""
    runs = "platform" if backend in ("tensorrt_plan", "tensorflow_graphdef") else "backend"
    lines = [f'name: "{name}"', f'{runs}: "{backend}"', f"max_batch_size: {model.batch}",
             tensors_text("input", model.inputs), tensors_text("output", model.outputs),
             STATE if model.is_sequence else ""]  # fmt: skip
    return "\n".join(lines) + "\n"


def write(repository, name, ensemble, foreign=()):
    """Writes an ensemble and its models, whose names begin with its own. `foreign` has backends by model."""
    prefix = f"{name}_"
    for model_name, model in models_of(ensemble).items():
        folder = Path(repository) / (prefix + model_name)
        (folder / "1").mkdir(parents=True)
        backend = dict(foreign).get(model_name, "onnxruntime")
        (folder / "config.pbtxt").write_text(model_text(prefix + model_name, model, backend))
        file, contents = ("model.py", b"") if backend == "python" else ("model.plan", b"")
        if backend == "onnxruntime":
            file, contents = "model.onnx", graph(model)
        (folder / "1" / file).write_bytes(contents)
    write_text(repository, name, ensemble_text(name, ensemble, prefix))


def write_text(repository, name, text):
    """Writes an ensemble's config.pbtxt, and the version directory that Triton asks for."""
    (Path(repository) / name / "1").mkdir(parents=True)
    (Path(repository) / name / "config.pbtxt").write_text(text)
