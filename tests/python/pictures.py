"""Images for tests: made, encoded, and decoded by Pillow and by a server's pipelines."""

import io
import struct
import zlib

import numpy as np
from clients import tensor
from PIL import Image, ImageOps

#: The passes of an interlaced PNG: first row and column, and steps down and to the right.
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def picture(height, width, seed=0):
    """Returns pixels with edges, gradients and noise."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (5 + channel)) * np.cos(columns / (9 - channel)) for channel in range(3)]
    pixels = 128 + 90 * np.stack(waves, axis=-1) + draw.normal(0, 12, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 10, 60)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(image, form="PNG", **more):
    file = io.BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


def opened(data, mode="RGB"):
    """Returns an image as Pillow decodes it, the right way up."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth, color, content, interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def interlaced(pixels):
    lines = [b"\0" + line.tobytes() for row, column, down, right in PASSES for line in pixels[row::down, column::right]]
    return png(pixels.shape[1], pixels.shape[0], 8, 2, b"".join(lines), interlace=1)


def ask(client, name, *images, output="pixels", **more):
    sent = tensor("IMAGE", np.array([[image] for image in images], dtype=object))
    return client.infer(name, [sent], **more).as_numpy(output)


def difference(found, expected):
    assert found.shape == expected.shape
    return int(np.abs(found.astype(int) - expected.astype(int)).max())
