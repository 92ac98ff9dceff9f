"""The JSON schema of model.yaml takes what the server takes, and refuses misspelt keys."""

import json
import re
import subprocess

import jsonschema
import pytest
import yaml
from conftest import ROOT

PAGES = [ROOT / "docs" / "model-configuration.md", ROOT / "docs" / "engines.md"]
CORPUS = sorted((ROOT / "tests" / "corpus" / "yaml").glob("ok_*.yaml"))
#: Models that the program writes, each with a model.yaml.
MODELS = ["--only", "lstm,seq2seq,tree-lstm,lstm-sequence", "--quarter"]


class Loader(yaml.SafeLoader):
    """Reads numbers such as 5e-1 as YAML 1.2 does, and the server."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789"))


@pytest.fixture(scope="module")
def schema(program):
    done = subprocess.run([program, "schema"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    schema = json.loads(done.stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def with_text_keys(value):
    """A value whose mappings have text as keys, as JSON has them."""
    if isinstance(value, dict):
        return {str(key): with_text_keys(entry) for key, entry in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def faults(schema, text):
    """What the schema refuses of a model.yaml."""
    document = with_text_keys(yaml.load(text, Loader) or {})
    return [f"{fault.json_path}: {fault.message}" for fault in schema.iter_errors(document)]


def examples(page):
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_the_documentation_fit(schema, page):
    shown = examples(page)
    assert shown
    for text in shown:
        assert faults(schema, text) == [], text


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_the_server_reads_fits(schema, path):
    assert faults(schema, path.read_text()) == []


def test_the_example_models_fit(schema, program, tmp_path):
    subprocess.run([str(program), "models", "--out", str(tmp_path), *MODELS], check=True, capture_output=True, timeout=300)
    written = sorted(tmp_path.glob("*/model.yaml"))
    assert len(written) >= 4
    for path in written:
        assert faults(schema, path.read_text()) == [], path


@pytest.mark.parametrize(
    "text",
    [
        "max_batchsize: 4",
        "inputs: [ { name: x, dimz: [1] } ]",
        "batching: { policy: lzy }",
        "batching: { lazy: { max_dept: 2 } }",
        "batching: { diversity: { input: { group: 2 } } }",
        "unfold: [ { chain: { cell: c, emit: { y: last(h) }, max_steps: 5 } } ]",
        "unfold: [ { chain: { cell: c } } ]",
        "cells: { c: { programm: c.onnx } }",
        "max_batch_size: -1",
        "batching: { weight: 0 }",
        "engine: tensorrt",
        "name:",
    ],
)
def test_what_is_misspelt_or_out_of_bounds_is_refused(schema, text):
    assert faults(schema, text)
