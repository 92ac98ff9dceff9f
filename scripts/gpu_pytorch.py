"""The networks of `benches/cards` as PyTorch runs them in captured CUDA graphs, for comparison on the same card.

    python3 gpu_pytorch.py FILE [--seconds S] [--cpu]

For each network, precision and number of rows: the median and the 95th percentile of one replay in µs, between events
of the card, over random inputs that rotate among several sets, with each network's whole forward pass in the graph.
`checks` has the deviation of fp32 from fp64 on the CPU. `--cpu` runs small networks, to check this script without a
card.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as functional
from torch import nn

SETS, REPLAYS = 4, 30
PRECISIONS = (("ieee", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16))


class Step(nn.Module):
    """A step of an LSTM (BatchMaker section 2.2)."""

    rows = (1, 8, 32, 64, 256, 512)

    def __init__(self, hidden=1024):
        super().__init__()
        self.hidden, self.gates = hidden, nn.Linear(2 * hidden, 4 * hidden)

    def inputs(self, rows):
        return [torch.randn(rows, self.hidden) for _ in range(3)]

    def forward(self, x, h, c):
        i, f, g, o = self.gates(torch.cat((x, h), 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Layer(nn.Module):
    """A layer of an encoder with its attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.projections, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        rows, tokens, width = x.shape
        parts = self.projections(x).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.joined(attended))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT or MiniLM without its embeddings."""

    rows = (1, 4, 8, 32, 64)

    def __init__(self, layers, width, heads, tokens):
        super().__init__()
        self.shape, self.layers = (tokens, width), nn.Sequential(*(Layer(width, heads) for _ in range(layers)))

    def inputs(self, rows):
        return [torch.randn(rows, *self.shape)]

    def forward(self, x):
        return (self.layers(x),)


class Block(nn.Module):
    """A bottleneck of ResNet, with its normalisation folded into the convolutions."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.narrow, self.middle = nn.Conv2d(inputs, width, 1), nn.Conv2d(width, width, 3, stride, 1)
        self.wide = nn.Conv2d(width, 4 * width, 1)
        has_shape = inputs == 4 * width and stride == 1
        self.direct = nn.Identity() if has_shape else nn.Conv2d(inputs, 4 * width, 1, stride)

    def forward(self, x):
        found = self.wide(torch.relu(self.middle(torch.relu(self.narrow(x)))))
        return torch.relu(found + self.direct(x))


class ResNet(nn.Module):
    rows = (1, 4, 8, 32, 64)

    def __init__(self, depths=(3, 4, 6, 3), size=224):
        super().__init__()
        self.size, self.stem, blocks, inputs = size, nn.Conv2d(3, 64, 7, 2, 3), [], 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for number in range(depth):
                blocks.append(Block(inputs, width, 2 if stage and number == 0 else 1))
                inputs = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, 1000)

    def inputs(self, rows):
        return [torch.randn(rows, 3, self.size, self.size).contiguous(memory_format=torch.channels_last)]

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        return (self.head(self.blocks(x).mean((2, 3))),)


NETWORKS = {
    "lstm, step": lambda: Step(),
    "bert-base, 128 tokens": lambda: Encoder(12, 768, 12, 128),
    "resnet50": lambda: ResNet().to(memory_format=torch.channels_last),
    "minilm, 16 tokens": lambda: Encoder(6, 384, 12, 16),
    "minilm, 128 tokens": lambda: Encoder(6, 384, 12, 128),
    "bert-base, 16 tokens": lambda: Encoder(12, 768, 12, 16),
}
SMALL = {
    "lstm, step": lambda: Step(32),
    "bert-base, 128 tokens": lambda: Encoder(2, 32, 4, 8),
    "resnet50": lambda: ResNet((1, 1), 32),
}


def on_card(inputs, kind):
    return [tensor.cuda().to(kind) for tensor in inputs]


def replays(network, rows, kind):
    """Returns the times of replays in µs, ascending."""
    sets = [on_card(network.inputs(rows), kind) for _ in range(SETS)]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for inputs in sets:
            network(*inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graphs = []
    for inputs in sets:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(*inputs)
        graphs.append(graph)
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
    for number, (begin, end) in enumerate(events):
        begin.record()
        graphs[number % SETS].replay()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) * 1e3 for begin, end in events)


def on_cpu(network, rows):
    inputs = network.inputs(rows)
    network(*inputs)
    begin = time.perf_counter()
    network(*inputs)
    return [(time.perf_counter() - begin) * 1e6]


def deviation(network, place):
    """Returns how far fp32 is from fp64 on the CPU, relative to the largest number."""
    inputs = network.inputs(3)
    expected = network.double()(*(tensor.double() for tensor in inputs))[0]
    found = network.float().to(place)(*(tensor.to(place) for tensor in inputs))[0].double().cpu()
    return float((found - expected).abs().max() / expected.abs().max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    place = "cpu" if given.cpu else "cuda"
    name = "cpu" if given.cpu else torch.cuda.get_device_name()
    found = {"torch": torch.__version__, "card": name, "steps": [], "checks": {}, "skipped": []}
    for name, build in (SMALL if given.cpu else NETWORKS).items():
        if time.monotonic() >= until:
            found["skipped"].append([name, "no time was left"])
            continue
        network = build().eval()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        found["checks"][name] = deviation(network, place)
        for precision, kind in PRECISIONS[: 1 if given.cpu else None]:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            network = network.to(place, kind)
            for rows in network.rows[: 2 if given.cpu else None]:
                if time.monotonic() >= until:
                    found["skipped"].append([f"{name}, {precision}, {rows} rows", "no time was left"])
                    continue
                times = on_cpu(network, rows) if given.cpu else replays(network, rows, kind)
                median, late = times[len(times) // 2], times[int(len(times) * 0.95)]
                step = {"network": name, "precision": precision, "rows": rows}
                found["steps"].append({**step, "microseconds": median, "p95_microseconds": late})
        # What was measured is there if the time is over.
        with open(given.file, "w") as file:
            json.dump(found, file, indent=1)
        print(name, flush=True)


if __name__ == "__main__":
    main()
