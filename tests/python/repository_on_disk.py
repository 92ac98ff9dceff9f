"""Model directories that tests write."""

import shutil
from pathlib import Path


def config(name, inputs, outputs=None, max_batch_size=8, extra=""):
    """Returns a config.pbtxt. `inputs` and `outputs` map names to (datatype, dims without the batch); outputs default
    to the inputs with INPUT replaced by OUTPUT."""
    outputs = outputs or {port.replace("INPUT", "OUTPUT"): described for port, described in inputs.items()}
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {max_batch_size}"]
    for kind, ports in (("input", inputs), ("output", outputs)):
        for port, (datatype, dims) in ports.items():
            element = "STRING" if datatype == "BYTES" else datatype
            lines.append(f'{kind} [ {{ name: "{port}" data_type: TYPE_{element} dims: {list(dims)} }} ]')
    return "\n".join([*lines, extra]) + "\n"


def write_model(repository, name, graph, text=None, version=1):
    """Writes one version of a model: its graph as bytes and, if given, its config.pbtxt."""
    folder = Path(repository) / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(graph)
    if text is not None:
        (folder.parent / "config.pbtxt").write_text(text)
    return folder.parent


def write_pipeline(repository, name, inputs, outputs, steps, max_batch_size=8):
    """Writes a pipeline as model.yaml. `inputs` and `outputs` map names to (datatype, dims without the batch); each step
    is a line of YAML."""
    lines = [f"max_batch_size: {max_batch_size}"]
    for kind, ports in (("inputs", inputs), ("outputs", outputs)):
        described = (f"{{ name: {port}, dtype: {datatype}, dims: {list(dims)} }}" for port, (datatype, dims) in ports.items())
        lines.append(f"{kind}: [{', '.join(described)}]")
    folder = Path(repository) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text("\n".join([*lines, "pipeline:", *(f"  - {step}" for step in steps)]) + "\n")
    return folder


#: The files beside an encoder's weights, as sentence-transformers writes them.
DESCRIPTIONS = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
)  # fmt: skip


def lay_out(folder, graph, minilm):
    """Writes a directory of MiniLM as Hugging Face has it, of the example model `graph` and the checkpoint's files."""
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").hardlink_to(graph / "1" / "model.onnx")
    for name in DESCRIPTIONS:
        shutil.copy(minilm / name, folder / name)
    shutil.copytree(minilm / "1_Pooling", folder / "1_Pooling")
