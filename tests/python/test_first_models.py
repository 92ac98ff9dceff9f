"""docs/recipes.md and docs/first-model.md: the models that they write are served, and answer as they say."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import tensor
from conftest import ROOT, serving

onnx = pytest.importorskip("onnx", reason="it has no version for this Python")

#: Stand for networks: three numbers of an image, and 16 boxes with a score each.
NETWORK = "network (float[N, 3, 8, 8] image) => (float[N, 3] logits) {{ logits = ReduceMean<axes = [2, 3], keepdims = 0>({}) }}"
DETECTOR = """detector (float[N, 3, 8, 8] image) => (float[N, 16, 4] boxes, float[N, 1, 16] scores) {
    begin = Constant<value_ints = [0]>()
    middle = Constant<value_ints = [64]>()
    end = Constant<value_ints = [80]>()
    one = Constant<value_ints = [1]>()
    as_boxes = Constant<value_ints = [0, 16, 4]>()
    as_scores = Constant<value_ints = [0, 1, 16]>()
    flat = Flatten(image)
    first = Slice(flat, begin, middle, one)
    boxes = Reshape(first, as_boxes)
    second = Slice(flat, middle, end, one)
    scores = Reshape(second, as_scores)
}"""


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def written(page, folder, is_run=lambda program: True, changes=()):
    """Runs the programs of a page in a folder, with these replacements, and writes the files whose names are in their
    first lines. Returns the programs' names."""
    names, before = {}, Path.cwd()
    os.chdir(folder)
    try:
        for program in filter(is_run, blocks(page, "python")):
            for old, new in changes:
                program = program.replace(old, new)
            exec(compile(program, page, "exec"), names)
        for text in blocks(page, "yaml"):
            path = Path(re.match(r"# (\S+)\n", text)[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    finally:
        os.chdir(before)
    return names


def check(program, repository):
    return subprocess.run([str(program), "check", str(repository)], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def recipes(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    names = written("recipes.md", folder)
    os.chdir(folder)
    try:
        names["write"]("network", NETWORK.format("image"), "max_batch_size: 8")
        names["write"]("larger", NETWORK.replace("{{", "{{ negative = Neg(image)").format("negative"))
        names["write"]("detector", DETECTOR)
    finally:
        os.chdir(ROOT)
    checked = check(program, folder / "models")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "14 of 14 can be served" in checked.stdout
    with serving(folder / "models", program=program) as running, triton.InferenceServerClient(running.grpc) as client:
        yield client


@pytest.fixture
def images():
    made = np.random.default_rng(4).random((3, 3, 8, 8), np.float32)
    made[0, 0] += 5
    return made


def logits_of(images):
    return images.mean(axis=(2, 3))


def test_labels(recipes, images):
    answer = recipes.infer("animals", [tensor("image", images)])
    names, logits = np.array([b"cat", b"dog", b"bird"]), logits_of(images)
    best = np.argsort(-logits, axis=1)[:, :2]
    assert answer.as_numpy("label").tolist() == names[best].tolist()
    all_of = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(answer.as_numpy("probability"), np.take_along_axis(all_of, best, 1), rtol=1e-5)


def test_thresholds(recipes, images):
    answer = recipes.infer("careful", [tensor("image", images)]).as_numpy("logits")
    logits = logits_of(images)
    np.testing.assert_allclose(answer, [logits[0], -logits[1], -logits[2]], rtol=1e-5)


def overlap(one, other):
    top_left, bottom_right = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    both = np.prod(np.maximum(bottom_right - top_left, 0))
    return both / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - both)


def test_boxes(recipes, images):
    flat = images.reshape(3, -1)
    boxes = flat[:, :64].reshape(3, 16, 4)
    # From the upper left to the lower right corner.
    boxes = np.concatenate([np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], 2)
    flat[:, :64] = boxes.reshape(3, 64)
    answer = recipes.infer("boxes", [tensor("image", flat.reshape(images.shape))])
    longest = 0
    for row in range(3):
        kept = []
        for box in np.argsort(-flat[row, 64:80]):
            if flat[row, 64 + box] > 0.25 and all(overlap(boxes[row, box], boxes[row, other]) <= 0.5 for other in kept):
                kept.append(box)
        longest = max(longest, len(kept))
        np.testing.assert_allclose(answer.as_numpy("boxes")[row, : len(kept)], boxes[row, kept])
        np.testing.assert_allclose(answer.as_numpy("score")[row, : len(kept)], flat[row, 64:80][kept])
        assert not answer.as_numpy("score")[row, len(kept) :].any(), "padding"
    assert answer.as_numpy("class").shape == (3, longest)


def test_crops(recipes):
    image = np.arange(2 * 3 * 20 * 30, dtype=np.float32).reshape(2, 3, 20, 30)[:1]
    boxes = np.array([[0, 0, 8, 8], [4, 6, 20, 14], [0, 0, 30, 20]], np.float32)
    answer = recipes.infer("crops", [tensor("image", image), tensor("boxes", boxes)]).as_numpy("logits")
    np.testing.assert_allclose(np.diff(answer, axis=1), np.full((3, 2), 600), rtol=1e-4, err_msg="its channels")
    # The mean of a plane over a box is its value in the middle; pixels are half a pixel from their corners.
    x1, y1, x2, y2 = boxes[1]
    np.testing.assert_allclose(answer[1, 0], 30 * ((y1 + y2) / 2 - 0.5) + (x1 + x2) / 2 - 0.5, rtol=1e-4)


def test_ctc(recipes):
    steps = [[1, 1, 0, 1, 2, 2, 3], [0, 0, 3, 3, 3, 0, 0]]
    answer = recipes.infer("read", [tensor("logits", np.eye(4, dtype=np.float32)[steps])]).as_numpy("letters")
    assert answer.tolist() == [[b"a", b"a", b"b", b"c"], [b"c", b"", b"", b""]]


def test_first_models(program, tmp_path):
    """Those of PyTorch take gigabytes of packages, and their exporters' forms are in test_exported_recurrent.py."""
    is_run = lambda text: "torch" not in text and "triton" not in text  # noqa: E731
    names = written("first-model.md", tmp_path, is_run, [("n_estimators=500", "n_estimators=50")])
    assert names["trees"].n_estimators == 50
    models = tmp_path / "models"
    checked = check(program, models)
    assert checked.returncode == 1 and "resnet18" in checked.stdout, "the program of photo is not there"
    shutil.rmtree(models / "photo")
    checked = check(program, models)
    assert checked.returncode == 0 and "3 of 3 can be served" in checked.stdout, checked.stdout
    requests = re.findall(r"^curl localhost:8000(\S+) --json '(.*)'$", (ROOT / "docs/first-model.md").read_text(), re.M)
    with serving(models, program=program) as running:
        answers = {}
        for path, body in requests:
            name = path.split("/")[3] if path.startswith("/v2/models/") else ""
            if name in ("iris", "flowers"):
                request = urllib.request.Request(f"http://{running.http}{path}", body.encode())
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answers[name] = json.load(answer), [json.loads(body)["X"]]
    (iris, row), (flowers, other) = answers["iris"], answers["flowers"]
    np.testing.assert_allclose(iris["probabilities"], names["forest"].predict_proba(row)[0], atol=1e-5)
    assert iris["label"] == names["forest"].predict(row)[0]
    np.testing.assert_allclose(flowers["forest"], names["forest"].predict_proba(other)[0], atol=1e-5)
    np.testing.assert_allclose(flowers["trees"], names["trees"].predict_proba(other)[0], atol=1e-5)


def test_a_check_without_a_model_fails(program, tmp_path):
    checked = check(program, tmp_path)
    expected = f"'{tmp_path}' has no model: expected a directory for each, as in 'NAME/1/model.onnx'\n"
    assert (checked.returncode, checked.stdout) == (1, expected)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert check(program, tmp_path).stdout == f"{expected[:-1]}, but 'model.onnx'\n"
    assert check(program, tmp_path / "missing").returncode == 1
