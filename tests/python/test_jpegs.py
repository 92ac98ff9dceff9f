"""JPEGs and the metadata of cameras in the step `image`, compared with Pillow: what their writers say about colors and
orientation, in all combinations."""

import itertools
import struct

import numpy as np
import pytest
import tritonclient.grpc as triton
from conftest import serving
from pictures import ask, difference, encoded, opened, picture
from PIL import Image
from repository_on_disk import write_pipeline

#: Most that a pixel may differ from Pillow's where colors are not stored at a lower resolution, and where they are.
#: docs/pipelines.md has these numbers.
DECODED, INTERPOLATED = 3, 6


@pytest.fixture(scope="module")
def whole_server(tmp_path_factory, program):
    repository = tmp_path_factory.mktemp("jpegs")
    step = "image: { dtype: UINT8, layout: NHWC, inputs: { IMAGE: IMAGE }, outputs: { pixels: pixels } }"
    write_pipeline(repository, "whole", {"IMAGE": ("BYTES", [1])}, {"pixels": ("UINT8", [-1, -1, 3])}, [step])
    with serving(repository, program=program) as running:
        yield running


@pytest.fixture
def client(whole_server):
    with triton.InferenceServerClient(whole_server.grpc) as connected:
        yield connected


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")


def adobe(transform):
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def segments(data):
    """Returns the segments in front of the data, as (marker, bytes), and the rest."""
    found, place = [], 2
    while data[place + 1] != 0xDA:
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        found.append((data[place + 1], data[place:end]))
        place = end
    return found, data[place:]


def said(data, before=b"", after=b"", names=None):
    """Returns a JPEG that says what is given about its colors: in front of its frame, behind it, and by the names of
    its channels."""
    found, scan = segments(data)
    kept = []
    for marker, content in found:
        if marker in (0xC0, 0xC2):
            frame = bytearray(content)
            if names:
                old, frame[10::3] = frame[10::3], names
                places = range(5, 5 + 2 * scan[4], 2)
                changed = {place: names[old.index(scan[place])] for place in places}
                scan = bytes(changed.get(place, byte) for place, byte in enumerate(scan))
            kept += [bytes(frame), after]
        elif marker not in (0xE0, 0xEE):
            kept.append(content)
    return data[:2] + before + b"".join(kept) + scan


def plain(mode, **more):
    return encoded(picture(40, 52).convert(mode), "JPEG", quality=95, subsampling=0, **more)


def check_colors(client, data, *what):
    found, expected = ask(client, "whole", data)[0], np.asarray(opened(data))
    assert difference(found, expected) <= DECODED, what


def test_the_colors_of_a_jpeg_are_those_that_libjpeg_finds(client):
    names = (b"\1\2\3", b"RGB", b"\0\1\2", b"BGR", b"\1\x22\x23", b"rgb")
    for jfif, transform, name in itertools.product((b"", JFIF), (None, 0, 1, 2, 3, 255), names):
        mark = b"" if transform is None else adobe(transform)
        check_colors(client, said(plain("RGB"), jfif + mark, names=name), jfif[4:8], transform, name)
    for jfif, transform in itertools.product((b"", JFIF), (None, 0, 1, 2, 3, 255)):
        mark = b"" if transform is None else adobe(transform)
        check_colors(client, said(plain("CMYK"), jfif + mark), "inks", jfif[4:8], transform)
        check_colors(client, said(plain("L"), jfif + mark), "gray", jfif[4:8], transform)


def test_all_that_is_said_before_the_data_counts_and_nothing_else(client):
    base = plain("RGB")
    for mark in (adobe(0) + JFIF, adobe(0) + adobe(1), adobe(1) + adobe(0)):
        check_colors(client, said(base, mark), mark)
    # What is too short says nothing.
    short = segment(0xEE, b"Adobe\0\x64\0\0\0\0")
    for mark in (short, JFIF + short, adobe(0) + short, segment(0xE0, b"JFIF\0\1\1") + adobe(0), segment(0xEE, b"Ad")):
        check_colors(client, said(base, mark, names=b"RGB"), mark)
    for mark in (adobe(0), JFIF + adobe(0), adobe(1)):
        check_colors(client, said(base, names=b"RGB", after=mark), "behind the frame", mark)
        check_colors(client, said(plain("CMYK"), after=mark), "behind the frame of inks", mark)
        check_colors(client, said(plain("L"), after=mark), "behind the frame of gray", mark)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [1, 2])
def test_colors_at_a_lower_resolution_are_converted_alike(client, subsampling, progressive):
    """The same colors everywhere, which no interpolation changes."""
    for color in ((250, 10, 60), (3, 200, 130), (90, 90, 200)):
        flat = Image.new("RGB", (45, 33), color)
        for mode, mark in (("RGB", JFIF), ("RGB", adobe(0)), ("CMYK", adobe(0)), ("CMYK", adobe(2))):
            base = encoded(flat.convert(mode), "JPEG", quality=95, subsampling=subsampling, progressive=progressive)
            check_colors(client, said(base, mark), color, mode, mark)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_pixels_differ_little_from_those_of_libjpeg(client, subsampling, progressive):
    draw = np.random.default_rng(subsampling)
    for number in range(20):
        height, width = draw.integers(5, 100, 2)
        pixels = np.asarray(picture(height, width, number)).astype(int) + draw.normal(0, 20, (height, width, 3))
        quality = int(draw.choice([10, 30, 60, 75, 90, 100]))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        data = encoded(image, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
        found, expected = ask(client, "whole", data)[0], np.asarray(opened(data))
        most = INTERPOLATED if subsampling else DECODED
        assert difference(found, expected) <= most, (height, width, quality)


# Orientation ---------------------------------------------------------------------------------------------------------


def entry(kind, value, count=1, order="<"):
    return struct.pack(order + "HHI", 0x0112, kind, count) + value


def exif(*entries, order="<", more=b""):
    """Returns metadata with these entries. What they point to lies at 14 + 12 for each entry."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return b"Exif\0\0" + head + struct.pack(order + "H", len(entries)) + b"".join(entries) + bytes(4) + more


def short(value, order="<"):
    return exif(entry(3, struct.pack(order + "HH", value, 0), order=order), order=order)


METADATA = {
    "short": [short(6)],
    "short, big-endian": [short(6, ">")],
    "long": [exif(entry(4, struct.pack("<I", 6)))],
    "long, big-endian": [exif(entry(4, struct.pack(">I", 8), order=">"), order=">")],
    "directory": [exif(entry(13, struct.pack("<I", 5)))],
    "signed byte": [exif(entry(6, b"\6\0\0\0"))],
    "signed short": [exif(entry(8, struct.pack("<HH", 7, 0)))],
    "signed long": [exif(entry(9, struct.pack("<I", 3)))],
    "long of 8 bytes": [exif(entry(16, struct.pack("<I", 26)), more=struct.pack("<Q", 6))],
    "byte": [exif(entry(1, b"\6\0\0\0"))],
    "unknown kind, then short": [exif(entry(99, b"\3\0\0\0"), entry(3, b"\6\0\0\0"))],
    "two shorts": [exif(entry(3, struct.pack("<HH", 6, 3), 2))],
    "three shorts": [exif(entry(3, struct.pack("<I", 26), 3), more=struct.pack("<HHH", 8, 1, 1))],
    "no short": [exif(entry(3, b"\6\0\0\0", 0))],
    "too large": [exif(entry(4, struct.pack("<I", 6 + (1 << 16))))],
    "two entries": [exif(entry(3, b"\6\0\0\0"), entry(3, b"\3\0\0\0"))],
    "cut off behind the entry": [short(6)[:-4]],
    "cut off within the entry": [short(6)[:-6]],
    "name twice": [b"Exif\0\0" + short(6)],
    "another name": [b"Exif\0\1" + short(6)[6:]],
    "twice": [short(6), short(3)],
    "twice, the first without": [exif(), short(3)],
    "twice, the first out of range": [short(9), short(3)],
    "twice, the first empty": [b"Exif\0\0", short(3)],
    "twice, the first broken": [b"Exif\0\0XX*\0" + bytes(10), short(3)],
    "in two parts": [short(6)[:16], b"Exif\0\0" + short(6)[16:]],
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", METADATA)
def test_the_orientation_is_the_one_that_pillow_finds(client, name):
    base = plain("RGB")
    data = base[:2] + b"".join(segment(0xE1, part) for part in METADATA[name]) + base[2:]
    found, expected = ask(client, "whole", data)[0], np.asarray(opened(data))
    assert found.shape == expected.shape
    assert difference(found, expected) <= DECODED


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_an_orientation_in_other_forms_may_be_of_any_kind_too(client, form):
    more = {"lossless": True} if form == "WEBP" else {}
    for content in (exif(entry(4, struct.pack("<I", 6))), short(6), short(6)[6:]):
        data = encoded(picture(40, 52), form, exif=content, **more)
        expected = np.asarray(opened(data))
        assert expected.shape == (52, 40, 3)
        assert difference(ask(client, "whole", data)[0], expected) == 0
