"""ONNX's backend tests through the server, compared with ONNX Runtime. Started by `make conformance`.

    .cache/conformance/bin/python scripts/conformance.py [--only PART_OF_A_NAME] [--verbose] [--binary PROGRAM]

Each model of the package `onnx` that ONNX Runtime runs is loaded without a configuration and asked over gRPC and HTTP,
once as the file is and once without the shapes of its outputs, which the server then has to find. Replies must have
the values, shapes and datatypes that ONNX Runtime computes, of the same version as the server's. Models that the server
cannot serve are listed with the reason; any other refusal, or more than the expected number of those, fails the sweep.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pins
import tritonclient.grpc
import tritonclient.http
from onnx import numpy_helper
from server import Server, binary
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DATA = Path(onnx.backend.test.__file__).parent / "data"
#: Most models that may be left out. The protocol rules them out, so a new version of ONNX alone adds to them.
LEFT_OUT_MAX = 40
NO_TYPE, NO_INPUTS = "no protocol type", "no inputs"
PROTOCOLS = {"gRPC": tritonclient.grpc, "HTTP": tritonclient.http}
#: Element types that the protocol has, as ONNX Runtime names them.
TYPES = {
    "tensor(bool)", "tensor(uint8)", "tensor(uint16)", "tensor(uint32)", "tensor(uint64)", "tensor(int8)",
    "tensor(int16)", "tensor(int32)", "tensor(int64)", "tensor(float16)", "tensor(float)", "tensor(double)",
    "tensor(string)", "tensor(bfloat16)",
}  # fmt: skip


def options():
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    return made


def read(path, kind):
    """Returns the value of a test's input file, whose type is `kind`."""
    content = path.read_bytes()
    if kind.HasField("tensor_type"):
        return numpy_helper.to_array(onnx.TensorProto.FromString(content))
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))


class Case:
    """A model, the inputs of its test, and what ONNX Runtime makes of them; `expected` is `None` if it runs it not."""

    def __init__(self, path):
        self.name = path.parent.name
        self.model = onnx.load(path)
        self.expected = None
        try:
            self.session = onnxruntime.InferenceSession(str(path), options(), providers=["CPUExecutionProvider"])
        except Exception:  # Its errors have no common class.
            return
        self.inputs = {}
        given = list((path.parent / "test_data_set_0").glob("input_*.pb"))
        given.sort(key=lambda one: int(one.stem.split("_")[1]))
        for declared, file in zip(self.model.graph.input, given):
            self.inputs[declared.name] = read(file, declared.type)
        names = [output.name for output in self.session.get_outputs()]
        try:
            first, second = (self.session.run(names, self.inputs) for _ in range(2))
        except Exception:
            return
        self.expected = dict(zip(names, first))
        if self.left_out() is None:
            #: Outputs that differ from run to run, because they are random.
            self.random = {name for name, one, other in zip(names, first, second) if not same(one, other)}

    def left_out(self):
        """Returns why the protocol cannot carry the model's tensors; `None` if it can."""
        ports = [*self.session.get_inputs(), *self.session.get_outputs()]
        if any(port.type not in TYPES for port in ports):
            return NO_TYPE
        if not self.session.get_inputs():
            return NO_INPUTS
        return None

    def bare(self):
        """Returns the model without the shapes of its outputs."""
        bare = onnx.ModelProto.FromString(self.model.SerializeToString())
        for output in bare.graph.output:
            output.type.tensor_type.ClearField("shape")
        return bare


def same(found, expected):
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype.kind in "fc":
        return np.array_equal(found, expected, equal_nan=True)
    return np.array_equal(found, expected)


def on_the_wire(array):
    """Returns an array as a client sends it, and as it gets it: a scalar has one dimension, strings are bytes."""
    array = np.asarray(array).reshape(1) if np.ndim(array) == 0 else array
    if array.dtype.kind in "OSU":
        encode = [one if isinstance(one, bytes) else str(one).encode() for one in array.flatten()]
        return np.array(encode, dtype=object).reshape(array.shape)
    return array


def ask(protocol, client, name, inputs, outputs):
    """Sends one request over a protocol, and returns the outputs."""
    tensors = []
    for port, array in inputs.items():
        array = on_the_wire(array)
        tensors.append(protocol.InferInput(port, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    answer = client.infer(name, tensors)
    return {output: answer.as_numpy(output) for output in outputs}


def difference(case, found):
    """Returns how outputs differ from ONNX Runtime's; `None` if they do not."""
    for name, expected in case.expected.items():
        expected, given = on_the_wire(expected), found[name]
        found_type, wanted = (f"{one.dtype} {list(one.shape)}" for one in (given, expected))
        if found_type != wanted:
            return f"'{name}' is {found_type}, expected {wanted}"
        if name not in case.random and not same(given, expected):
            return f"'{name}' has other values"
    return None


class Sweep:
    def __init__(self, repository, server, verbose):
        self.repository, self.verbose = repository, verbose
        self.clients = {
            "gRPC": tritonclient.grpc.InferenceServerClient(server.grpc),
            "HTTP": tritonclient.http.InferenceServerClient(server.http, network_timeout=120, connection_timeout=120),
        }
        self.served, self.refused, self.wrong = 0, collections.defaultdict(list), []

    def add(self, case, name, model):
        """Loads a model, asks it over both protocols, and unloads it."""
        folder = self.repository / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        control = self.clients["gRPC"]
        try:
            control.load_model(name)
        except InferenceServerException as refusal:
            self.refused[name].append(refusal.message())
            return
        for protocol, client in self.clients.items():
            try:
                found = ask(PROTOCOLS[protocol], client, name, case.inputs, case.expected)
                fault = difference(case, found)
            except InferenceServerException as refusal:
                fault = refusal.message()
            if fault:
                self.wrong.append(f"{name} over {protocol}: {fault}")
        control.unload_model(name)
        self.served += 1
        if self.verbose:
            print(name, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print each model that was served")
    parser.add_argument("--binary", type=Path, default=binary(), help="the server's binary")
    chosen = parser.parse_args()
    if onnxruntime.__version__ != pins.ONNXRUNTIME.version:
        sys.exit(
            f"ONNX Runtime is {onnxruntime.__version__} in tests/conformance-requirements.txt, but the server's is "
            f"{pins.ONNXRUNTIME.version}"
        )
    onnxruntime.set_default_logger_severity(4)
    paths = [path for path in sorted(DATA.glob("*/*/model.onnx")) if chosen.only in path.parent.name]
    not_run, left_out = 0, collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        repository = Path(scratch)
        with Server(repository, "--model-control-mode=explicit", program=chosen.binary) as server:
            sweep = Sweep(repository, server, chosen.verbose)
            for path in paths:
                case = Case(path)
                if case.expected is None:
                    not_run += 1
                elif reason := case.left_out():
                    left_out[reason].append(case.name)
                else:
                    sweep.add(case, case.name, case.model)
                    sweep.add(case, f"{case.name}-bare", case.bare())
    versions = f"onnx {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}"
    print(f"{len(paths)} models of {versions}, which does not run {not_run} of them")
    for reason, names in left_out.items():
        print(f"{len(names)} left out, {reason}: {', '.join(names)}")
    for name, reasons in sweep.refused.items():
        print(f"REFUSED {name}: {'; '.join(reasons)}")
    for fault in sweep.wrong:
        print(f"WRONG {fault}")
    too_many = sum(map(len, left_out.values())) > LEFT_OUT_MAX
    if too_many:
        print(f"expected at most {LEFT_OUT_MAX} models to be left out")
    print(f"{sweep.served} served with equal values, with and without the shapes of their outputs")
    return 1 if sweep.refused or sweep.wrong or too_many else 0


if __name__ == "__main__":
    sys.exit(main())
