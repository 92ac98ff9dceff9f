"""Decoders with past keys and values as Hugging Face's optimum exports them, with small weights: the three ways in which
graphs know the positions of tokens, and a head of keys for several of queries."""

import numpy as np
import onnx_bytes
from exported_recurrent import Export
from onnx_bytes import node, port

TOKENS, WIDTH, HEADS, HEAD, LAYERS, POSITIONS = 23, 16, 4, 4, 2, 64
PAST = [f"past_key_values.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


class Decoder(Export):
    """A graph of layers with attention over all tokens so far."""

    def __init__(self, seed, key_heads=HEADS):
        super().__init__(seed)
        self.key_heads, self.outputs = key_heads, []

    def length(self, value, axis):
        return self.add("Gather", self.add("Shape", value), self.const(axis), axis=0)

    def projected(self, x, width):
        return self.add("MatMul", x, self.weight(WIDTH, width))

    def by_heads(self, x, heads):
        split = self.add("Reshape", x, self.const([0, 0, heads, HEAD]))
        return self.turned(split, 0, 2, 1, 3)

    def normalised(self, x):
        one, zero = (self.const(np.full(WIDTH, value, np.float32)) for value in (1, 0))
        return self.add("LayerNormalization", x, one, zero, axis=-1)

    def rotated(self, x, positions):
        """Rotary embeddings of [batch, heads, tokens, width]."""
        rates = self.const((10.0 ** -np.arange(HEAD // 2))[None, None].astype(np.float32))
        places = self.add("Unsqueeze", self.add("Cast", positions, to=onnx_bytes.ELEMENT["FP32"]), self.const([2]))
        angles = self.add("Mul", places, rates)
        angles = self.add("Unsqueeze", self.add("Concat", angles, angles, axis=-1), self.const([1]))
        low, high = self.add("Split", x, self.const([HEAD // 2] * 2), outputs=2, axis=-1)
        turned = self.add("Concat", self.add("Neg", high), low, axis=-1)
        straight = self.add("Mul", x, self.add("Cos", angles))
        return self.add("Add", straight, self.add("Mul", turned, self.add("Sin", angles)))

    def allowed(self):
        """Which keys each token may read: those up to its own place that the mask has, [batch, 1, tokens, keys]."""
        past, new = self.length(PAST[0], 2), self.length("input_ids", 1)
        keys = self.add("Range", self.const(0), self.add("Add", past, new), self.const(1))
        own = self.add("Unsqueeze", self.add("Range", past, self.add("Add", past, new), self.const(1)), self.const([1]))
        before = self.add("LessOrEqual", keys, own)
        there = self.add("Cast", "attention_mask", to=onnx_bytes.ELEMENT["BOOL"])
        return self.add("And", before, self.add("Unsqueeze", there, self.const([1, 2])))

    def attended(self, x, layer, allowed, rotary):
        query = self.by_heads(self.projected(x, HEADS * HEAD), HEADS)
        key, value = (self.by_heads(self.projected(x, self.key_heads * HEAD), self.key_heads) for _ in range(2))
        if rotary:
            query, key = self.rotated(query, "position_ids"), self.rotated(key, "position_ids")
        all_of = []
        for part, new in (("key", key), ("value", value)):
            name = f"present.{layer}.{part}"
            self.nodes.append(node("Concat", [f"past_key_values.{layer}.{part}", new], [name], axis=2))
            self.outputs.append(port(name, "FP32", ("batch", self.key_heads, "past + tokens", HEAD)))
            if self.key_heads < HEADS:
                shared = self.add("Unsqueeze", name, self.const([2]))
                shared = self.add("Tile", shared, self.const([1, 1, HEADS // self.key_heads, 1, 1]))
                name = self.add("Reshape", shared, self.const([0, HEADS, -1, HEAD]))
            all_of.append(name)
        scores = self.add("MatMul", query, self.turned(all_of[0], 0, 1, 3, 2))
        scores = self.add("Where", allowed, scores, self.const(np.float32(-1e9)))
        mixed = self.turned(self.add("MatMul", self.add("Softmax", scores, axis=-1), all_of[1]), 0, 2, 1, 3)
        return self.projected(self.add("Reshape", mixed, self.const([0, 0, WIDTH])), WIDTH)

    def decoder(self, positions, rotary=False):
        x = self.add("Gather", self.weight(TOKENS, WIDTH), "input_ids", axis=0)
        if positions:
            x = self.add("Add", x, self.add("Gather", self.weight(POSITIONS, WIDTH), positions, axis=0))
        allowed = self.allowed()
        for layer in range(LAYERS):
            x = self.add("Add", x, self.attended(self.normalised(x), layer, allowed, rotary))
            wide = self.add("Tanh", self.projected(self.normalised(x), 2 * WIDTH))
            x = self.add("Add", x, self.add("MatMul", wide, self.weight(2 * WIDTH, WIDTH)))
        self.nodes.append(node("MatMul", [self.normalised(x), self.const(self.head)], ["logits"]))
        inputs = [
            port("input_ids", "INT64", ("batch", "tokens")),
            port("attention_mask", "INT64", ("batch", "past + tokens")),
            *(port(name, "FP32", ("batch", self.key_heads, "past", HEAD)) for name in PAST),
        ]
        if rotary or positions == "position_ids":
            inputs.append(port("position_ids", "INT64", ("batch", "tokens")))
        outputs = [port("logits", "FP32", ("batch", "tokens", TOKENS)), *self.outputs]
        return onnx_bytes.model(self.nodes, inputs, outputs, self.constants)

    @property
    def head(self):
        return self.rng.standard_normal((WIDTH, TOKENS)).astype(np.float32)


def gpt2():
    """Positions come with the request, and each has an embedding."""
    return Decoder(11).decoder("position_ids")


def llama():
    """Positions turn queries and keys, and two heads of queries share one of keys."""
    return Decoder(12, key_heads=2).decoder(None, rotary=True)


def opt(by_mask=True):
    """Positions are counted by the graph: from the mask, or from the length of the past, which padding would change."""
    of = Decoder(13)
    past = of.length(PAST[0], 2)
    if by_mask:
        counted = of.add("Sub", of.add("CumSum", "attention_mask", of.const(1)), of.const(1))
        past = of.add("Unsqueeze", past, of.const([0]))
        places = of.add("Slice", counted, past, of.const([1 << 40]), of.const([1]))
    else:
        end = of.add("Add", past, of.length("input_ids", 1))
        places = of.add("Unsqueeze", of.add("Range", past, end, of.const(1)), of.const([0]))
    return of.decoder(places)


MODELS = {"gpt2": gpt2, "llama": llama, "opt": opt}
