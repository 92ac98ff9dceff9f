"""ONNX graphs of a few operators, written byte by byte, for models that tests build as they need them.

A protobuf message is a sequence of fields: a key (field number and wire type) and a number or a length-prefixed text.
The field numbers are those of onnx.proto.
"""

import numpy as np

#: TensorProto.DataType by the name of the datatype on the wire.
ELEMENT = {
    "FP32": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BYTES": 8, "BOOL": 9, "FP16": 10,
    "FP64": 11, "UINT32": 12, "UINT64": 13, "BF16": 16,
}  # fmt: skip
IR_VERSION = 8
OPSET = 17


def varint(number):
    # Negative numbers are those of 64 bits.
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def port(name, datatype, dims):
    """Returns a ValueInfoProto; a dimension is a size, or a symbol such as "batch". Without dims, the file does not say
    the rank."""
    if dims is None:
        return text(1, name) + text(2, text(1, number(1, ELEMENT[datatype])))
    shape = b"".join(text(1, number(1, size) if isinstance(size, int) else text(2, size)) for size in dims)
    tensor = number(1, ELEMENT[datatype]) + text(2, shape)
    return text(1, name) + text(2, text(1, tensor))


def node(operator, inputs, outputs, domain="", **attributes):
    """Returns a NodeProto. Attributes are integers, lists of them, texts, or graphs."""
    named = b"".join(text(1, name) for name in inputs) + b"".join(text(2, name) for name in outputs) + text(4, operator)
    named += text(7, domain) if domain else b""
    return named + b"".join(text(5, attribute(name, value)) for name, value in attributes.items())


def attribute(name, value):
    if isinstance(value, int):
        return text(1, name) + number(3, value) + number(20, 2)
    if isinstance(value, str):
        return text(1, name) + text(4, value) + number(20, 3)
    if isinstance(value, bytes):
        return text(1, name) + text(6, value) + number(20, 5)
    return text(1, name) + b"".join(number(8, one) for one in value) + number(20, 7)


def constant(name, values):
    """Returns a tensor of FP32, or of INT64 or FP16 if the values are integers or halves."""
    values = np.asarray(values)
    if np.issubdtype(values.dtype, np.integer):
        datatype, kind = "INT64", "<i8"
    else:
        datatype, kind = ("FP16", "<f2") if values.dtype == np.float16 else ("FP32", "<f4")
    sizes = b"".join(number(1, size) for size in values.shape)
    return sizes + number(2, ELEMENT[datatype]) + text(8, name) + text(9, values.astype(kind).tobytes())


def sizes(name, values):
    """Returns a tensor of INT64."""
    data = np.array(values, "<i8").tobytes()
    return number(1, len(values)) + number(2, ELEMENT["INT64"]) + text(8, name) + text(9, data)


def external(name, shape, location, offset=None, length=None, datatype="FP32"):
    """Returns a tensor whose elements are in another file."""
    entries = {"location": location, "offset": offset, "length": length}
    given = [text(13, text(1, key) + text(2, str(value))) for key, value in entries.items() if value is not None]
    sizes = b"".join(number(1, size) for size in shape)
    return sizes + number(2, ELEMENT[datatype]) + text(8, name) + b"".join(given) + number(14, 1)


def sparse(name, value, size):
    """Returns a vector of zeros but for its first element, of which only that is stored."""
    return text(1, constant(name, [value])) + text(2, constant("places", [0])) + number(3, size)


def graph(nodes, inputs, outputs, constants=(), sparse_constants=()):
    """Returns a GraphProto: the graph of a model, or the body of a loop, which may read values of the graph around
    it."""
    made = b"".join(text(1, one) for one in nodes) + text(2, "test")
    made += b"".join(text(5, one) for one in constants) + b"".join(text(15, one) for one in sparse_constants)
    return made + b"".join(text(11, one) for one in inputs) + b"".join(text(12, one) for one in outputs)


def model(nodes, inputs, outputs, constants=(), sparse_constants=()):
    made = graph(nodes, inputs, outputs, constants, sparse_constants)
    return number(1, IR_VERSION) + text(7, made) + text(8, number(2, OPSET))


def identity(datatype="FP32", dims=("batch", 16)):
    """OUTPUT0 = INPUT0."""
    return model(
        [node("Identity", ["INPUT0"], ["OUTPUT0"])], [port("INPUT0", datatype, dims)], [port("OUTPUT0", datatype, dims)]
    )


def scale(factor, width=16):
    """OUTPUT0 = INPUT0 · factor, FP32 [batch, width]: answers show which factor was used."""
    return scale_by(constant("factor", [float(factor)]), width)


def scale_by(factor, width=16):
    """OUTPUT0 = INPUT0 · a tensor called factor."""
    dims = ("batch", width)
    return model(
        [node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
        [port("INPUT0", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
        [factor],
    )


def product(factor, width):
    """OUTPUT0 = INPUT0 · factor with its columns reversed, FP32 [batch, width], as a product with a matrix."""
    dims = ("batch", width)
    return model(
        [node("MatMul", ["INPUT0", "matrix"], ["OUTPUT0"])],
        [port("INPUT0", "FP32", dims)],
        [port("OUTPUT0", "FP32", dims)],
        [constant("matrix", np.fliplr(np.eye(width, dtype=np.float32)) * float(factor))],
    )


def blown_up(elements):
    """OUTPUT0 = the one element of each row of INPUT0, as often as this, FP32 [batch, elements]."""
    return model(
        [node("Expand", ["INPUT0", "shape"], ["OUTPUT0"])],
        [port("INPUT0", "FP32", ("batch", 1))],
        [port("OUTPUT0", "FP32", ("batch", elements))],
        [sizes("shape", [1, elements])],
    )


def calls_itself():
    """Returns a model whose only function only calls itself."""
    call = text(1, "INPUT0") + text(2, "OUTPUT0") + text(4, "f") + text(7, "own")
    body = text(1, "x") + text(2, "y") + text(4, "f") + text(7, "own")
    sets = number(2, OPSET), text(1, "own") + number(2, 1)
    function = text(1, "f") + text(4, "x") + text(5, "y") + text(7, body) + text(9, sets[1]) + text(10, "own")
    dims = ("batch", 16)
    made = graph([call], [port("INPUT0", "FP32", dims)], [port("OUTPUT0", "FP32", dims)])
    return number(1, IR_VERSION) + text(7, made) + b"".join(text(8, one) for one in sets) + text(25, function)


def nested_ifs(depth):
    """OUTPUT0 = INPUT0, selected by `depth` nested branches."""
    dims = ("batch", 16)
    ports = [port("INPUT0", "FP32", dims)], [port("OUTPUT0", "FP32", dims)]
    copied = node("Identity", ["INPUT0"], ["level0"])
    for level in range(depth):
        branch = graph([copied], [], [port(f"level{level}", "FP32", dims)])
        other = graph([node("Identity", ["INPUT0"], [f"other{level}"])], [], [port(f"other{level}", "FP32", dims)])
        copied = node("If", ["yes"], [f"level{level + 1}"], then_branch=branch, else_branch=other)
    yes = number(2, ELEMENT["BOOL"]) + text(8, "yes") + text(9, b"\x01")
    return model([copied, node("Identity", [f"level{depth}"], ["OUTPUT0"])], *ports, [yes])
