"""The step `image` of pipelines, compared with Pillow and NumPy."""

import re
import struct

import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import eventually, metric, refused, tensor
from conftest import serving
from pictures import ask, difference, encoded, interlaced, opened, picture, png
from PIL import Image
from repository_on_disk import write_pipeline
from tritonclient.utils import InferenceServerException

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
#: Most that a pixel may differ from Pillow's: weights are rounded differently. docs/pipelines.md has these numbers.
RESIZED = 1
#: The keys of the step, by the name of a pipeline that has it alone.
STEPS = {
    "whole": "dtype: UINT8, layout: NHWC",
    "gray": "dtype: UINT8, layout: NHWC, color: GRAY",
    "bgr": "dtype: UINT8, color: BGR",
    "floats": f"mean: {[*MEAN]}, std: {[*STD]}",
    "signed": "scale: 0.00784313725490196, mean: [1]",
    "edge": "dtype: UINT8, layout: NHWC, resize: { shortest_edge: 96 }",
    "cropped": "dtype: UINT8, layout: NHWC, crop: { height: 75, width: 120 }",
    "small": "dtype: UINT8, max_pixels: 100000",
    **{f"to_{name}": f"dtype: UINT8, layout: NHWC, resize: {{ height: 96, width: 130 }}, resample: {name}" for name in RESAMPLE},
}


@pytest.fixture(scope="module")
def images_server(tmp_path_factory, program, made_models):
    repository = tmp_path_factory.mktemp("images")
    made_models("examples", "--only", "photos,glance", folder=repository)
    for name, keys in STEPS.items():
        channels = 1 if "GRAY" in keys else 3
        varying = [-1, -1, channels] if "NHWC" in keys else [channels, -1, -1]
        step = f"image: {{ {keys}, inputs: {{ IMAGE: IMAGE }}, outputs: {{ pixels: pixels }} }}"
        dtype = "UINT8" if "UINT8" in keys else "FP32"
        write_pipeline(repository, name, {"IMAGE": ("BYTES", [1])}, {"pixels": (dtype, varying)}, [step])
    with serving(repository, program=program) as running:
        yield running


@pytest.fixture
def client(images_server):
    with triton.InferenceServerClient(images_server.grpc) as connected:
        yield connected


@pytest.mark.parametrize("name", RESAMPLE)
def test_resized_images_are_those_of_pillow(client, name):
    for size in ((321, 200), (97, 311), (40, 60), (96, 400)):
        data = encoded(picture(*size))
        (found,) = ask(client, f"to_{name}", data)
        whole = opened(data)
        expected = np.asarray(whole.resize((130, 96), RESAMPLE[name]))
        if name == "nearest":
            # Where a position is exactly between two pixels, the sums of Pillow's may be just below it.
            rows, columns = (((2 * np.arange(to) + 1) * of) // (2 * to) for to, of in ((96, size[0]), (130, size[1])))
            assert (found == expected).mean() > 0.9
            expected = np.asarray(whole)[rows][:, columns]
        if name == "lanczos":
            # Beside sharp edges, what is cut off between rows and columns makes a few pixels differ by more.
            apart = np.abs(found.astype(int) - expected.astype(int))
            assert apart.max() <= 8 and (apart > RESIZED).mean() < 0.001, size
            continue
        assert difference(found, expected) <= (0 if name == "nearest" else RESIZED), size


def test_the_shortest_edge_keeps_the_ratio(client):
    for height, width, expected in ((321, 200, (154, 96)), (200, 321, (96, 154)), (50, 50, (96, 96))):
        data = encoded(picture(height, width))
        (found,) = ask(client, "edge", data)
        assert found.shape == (*expected, 3)
        resized = opened(data).resize(expected[::-1], Image.Resampling.BILINEAR)
        assert difference(found, np.asarray(resized)) <= RESIZED


def test_the_centre_is_kept_and_what_is_missing_is_black(client):
    for height, width in ((80, 131), (75, 120), (101, 90), (60, 121), (1, 1)):
        data = encoded(picture(height, width))
        (found,) = ask(client, "cropped", data)
        whole, expected = np.asarray(opened(data)), np.zeros((75, 120, 3), np.uint8)
        places = []
        for given, wanted in ((height, 75), (width, 120)):
            start, missing = max(given - wanted, 0) // 2, max(wanted - given, 0)
            before, kept = (missing + 1) // 2, min(given, wanted)
            places.append((slice(before, before + kept), slice(start, start + kept)))
        expected[places[0][0], places[1][0]] = whole[places[0][1], places[1][1]]
        np.testing.assert_array_equal(found, expected)


def test_channels_and_normalisation(client):
    data = encoded(picture(33, 50))
    pixels = np.asarray(opened(data))
    np.testing.assert_array_equal(ask(client, "bgr", data)[0], pixels[..., ::-1].transpose(2, 0, 1))
    np.testing.assert_array_equal(ask(client, "gray", data)[0, ..., 0], np.asarray(opened(data, "L")))
    expected = ((pixels * (1 / 255)).astype(np.float32) - np.float32(MEAN)) / np.float32(STD)
    np.testing.assert_allclose(ask(client, "floats", data)[0], expected.transpose(2, 0, 1), rtol=0, atol=1e-6)
    expected = pixels.transpose(2, 0, 1) * np.float32(2 / 255) - 1
    np.testing.assert_allclose(ask(client, "signed", data)[0], expected, rtol=0, atol=1e-6)


def forms():
    """Returns images of each form that is decoded without loss, by name: (bytes, pixels)."""
    base = picture(45, 70)
    alpha = Image.fromarray(np.linspace(0, 255, 45 * 70).astype(np.uint8).reshape(45, 70))
    clear = base.copy()
    clear.putalpha(alpha)
    palette = base.convert("P", palette=Image.Palette.ADAPTIVE, colors=17)
    shades = Image.fromarray(np.random.default_rng(1).integers(0, 1 << 16, (45, 70), np.uint16))
    made = {
        "PNG": encoded(base),
        "PNG with alpha": encoded(clear),
        "PNG, gray with alpha": encoded(clear.convert("LA")),
        "PNG, gray": encoded(base.convert("L")),
        "PNG, black and white": encoded(base.convert("1")),
        "PNG, palette": encoded(palette),
        "PNG, palette of 4 bits": encoded(base.convert("P", palette=Image.Palette.ADAPTIVE, colors=12), bits=4),
        "PNG, palette with transparency": encoded(palette, transparency=bytes(range(0, 170, 10))),
        "PNG, interlaced": interlaced(np.asarray(base)),
        "animated PNG": encoded(base, save_all=True, append_images=[picture(45, 70, 5)], duration=50),
        "WebP": encoded(base, "WEBP", lossless=True),
        "WebP with alpha": encoded(clear, "WEBP", lossless=True, exact=True),
        "animated WebP": encoded(base, "WEBP", lossless=True, save_all=True, append_images=[picture(45, 70, 5)]),
    }
    found = {name: (data, np.asarray(opened(data))) for name, data in made.items()}
    # Pillow cuts 16 bits off at 255.
    rounded = np.repeat(((np.asarray(shades).astype(int) + 128) // 257)[..., np.newaxis], 3, -1)
    found["PNG, 16 bits"] = (encoded(shades), rounded.astype(np.uint8))
    return found


FORMS = forms()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_without_loss_is_decoded_exactly(client, name):
    data, expected = FORMS[name]
    np.testing.assert_array_equal(ask(client, "whole", data)[0], expected)


@pytest.mark.parametrize(
    "form, more, most, mean",
    [
        ("JPEG", {"quality": 95, "subsampling": 0}, 4, 0.1),
        ("JPEG", {"quality": 90, "progressive": True, "subsampling": 0}, 4, 0.1),
        ("JPEG", {"quality": 80, "subsampling": 2}, 8, 0.6),
        ("WEBP", {"quality": 80}, 1, 0.1),
    ],
)
def test_decoders_of_lossy_forms_differ_little_from_those_of_pillow(client, form, more, most, mean):
    data = encoded(picture(240, 331), form, **more)
    (found,) = ask(client, "whole", data)
    expected = np.asarray(opened(data))
    differences = np.abs(found.astype(int) - expected.astype(int))
    assert differences.max() <= most and differences.mean() <= mean, (differences.max(), differences.mean())


def test_jpegs_of_other_colors(client):
    gray = encoded(picture(60, 83).convert("L"), "JPEG", quality=95)
    assert difference(ask(client, "whole", gray)[0], np.asarray(opened(gray))) <= 2
    inks = encoded(picture(60, 83).convert("CMYK"), "JPEG", quality=95, subsampling=0)
    found, expected = ask(client, "whole", inks)[0], np.asarray(opened(inks))
    assert difference(found, expected) <= 4


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_in_the_metadata_is_applied(client, form):
    base = picture(32, 48)
    more = {"JPEG": {"quality": 100, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}}[form]
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(base, form, exif=exif, **more)
        (found,) = ask(client, "whole", data)
        expected = np.asarray(opened(data))
        assert expected.shape[:2] == ((32, 48) if orientation < 5 else (48, 32))
        assert difference(found, expected) <= (3 if form == "JPEG" else 0), orientation


def bomb():
    """60,000 by 60,000 black pixels of one bit, in half a megabyte."""
    return png(60_000, 60_000, 1, 0, bytes(60_000 * 7_501))


def test_what_cannot_be_decoded_is_refused_and_the_step_is_named(client):
    base = picture(300, 300)
    place = r"in pipeline 'small', step 0 \(image\): "
    large = r"expected an image of at most 100000 pixels, but found "
    webp = encoded(base, "WEBP", lossless=True)
    # The canvas says 10 x 10, and the frame within it 16,383 x 16,383.
    frame = b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383) + bytes(40)
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + bytes([9, 0, 0, 9, 0, 0])
    inner = canvas + b"VP8 " + struct.pack("<I", len(frame)) + frame
    wrong = {
        large + "60000 x 60000": bomb(),
        large + "400 x 300": encoded(picture(300, 400)),
        "cut off|cannot be decoded": encoded(base)[:-2000],
        "the image is cut off": encoded(base, "JPEG")[:-1000],
        "cannot be decoded": webp[: len(webp) // 2],
        "expected an image in JPEG, PNG or WebP": encoded(base, "GIF"),
        "the image is cut off, or its header is damaged": b"\xff\xd8\xff\xe0",
        "a frame that is larger than the image": b"RIFF" + struct.pack("<I", len(inner) + 4) + b"WEBP" + inner,
        "has no pixels": png(0, 5, 8, 0, b""),
    }
    wrong["expected an image in JPEG, PNG or WebP "] = b""
    for text, data in wrong.items():
        with pytest.raises(InferenceServerException) as refusal:
            ask(client, "small", data)
        assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT", text
        assert re.match(place + f".*({text.strip()})", refusal.value.message()), refusal.value.message()
    good = encoded(picture(10, 10))
    with refused("INVALID_ARGUMENT", "step 0 (image)", "row 1: expected an image"):
        ask(client, "small", good, b"nothing", good)
    assert ask(client, "small", good).shape == (1, 3, 10, 10)


def test_each_image_of_a_batch_is_a_row_whatever_its_size(client):
    data = [encoded(picture(20 + number, 60 - number, number)) for number in range(5)]
    found = ask(client, "whole", *data)
    assert found.shape == (5, 24, 60, 3), "padded to the largest"
    for number, image in enumerate(data):
        expected = np.asarray(opened(image))
        np.testing.assert_array_equal(found[number, : 20 + number, : 60 - number], expected)
        assert not found[number, 20 + number :].any() and not found[number, :, 60 - number :].any()


def test_photos_are_classified(images_server, client):
    data = [encoded(picture(300, 400, 1), "JPEG", quality=95), encoded(picture(250, 256, 2))]
    pixels = []
    for image in data:
        opened_image = opened(image)
        width, height = opened_image.size
        size = (256 * width // height, 256) if height < width else (256, 256 * height // width)
        resized = np.asarray(opened_image.resize(size, Image.Resampling.BILINEAR))
        top, left = (resized.shape[0] - 224) // 2, (resized.shape[1] - 224) // 2
        kept = resized[top : top + 224, left : left + 224]
        pixels.append(((kept / 255 - MEAN) / STD).astype(np.float32).transpose(2, 0, 1))
    expected = client.infer("glance", [tensor("image", np.stack(pixels))]).as_numpy("logits")
    found = ask(client, "photos", *data, output="logits")
    assert found.shape == (2, 1000)
    spread = expected.std()
    assert np.abs(found - expected).max() < 0.05 * spread, "pixels differ by one at most"
    assert found.argmax(axis=1).tolist() == expected.argmax(axis=1).tolist()


def test_what_there_is_no_memory_for_is_refused(tmp_path, start):
    step = "image: { dtype: UINT8, inputs: { IMAGE: IMAGE }, outputs: { pixels: pixels } }"
    write_pipeline(tmp_path, "whole", {"IMAGE": ("BYTES", [1])}, {"pixels": ("UINT8", [3, -1, -1])}, [step])
    server = start(tmp_path, "--max-pending-bytes=67108864")
    large = png(4096, 4096, 1, 0, bytes(4096 * 513))
    with triton.InferenceServerClient(server.grpc) as client:
        with refused("RESOURCE_EXHAUSTED", "step 0 (image)", "--max-pending-bytes"):
            ask(client, "whole", large)
        assert ask(client, "whole", encoded(picture(100, 100))).shape == (1, 3, 100, 100)
        eventually("all room is free again", lambda: metric(server, "paternoster_pending_bytes") == 0)
