"""Pendulum images: a thick line on a canvas, drawn with Pillow and reduced with a Lanczos filter."""

import numpy as np

from cru.errors import require_extra
from cru.shapes import Float64, UInt8

CANVAS, IMAGE = 128, 24
LINE_LENGTH, LINE_WIDTH = 55, 8
_TAYLOR = [1 / float(np.prod(np.arange(1.0, n + 1))) * (-1) ** (n // 2) for n in range(1, 22, 2)]


def draw_lines(angle: Float64[np.ndarray, " row"]) -> UInt8[np.ndarray, "row 24 24"]:
    """Draw a line from the centre towards (sin, cos) for each angle. y points down.

    Pillow draws lines between integer pixels, so only 430 different images exist. Each is drawn once.
    """
    end_x = (CANVAS / 2 + LINE_LENGTH * sine(angle)).astype(np.int64)
    end_y = (CANVAS / 2 + LINE_LENGTH * sine(angle + np.pi / 2)).astype(np.int64)
    ends, which = np.unique(end_x * CANVAS + end_y, return_inverse=True)
    tiles = np.stack([_draw(int(end) // CANVAS, int(end) % CANVAS) for end in ends])
    return tiles[which]


def _draw(x: int, y: int) -> UInt8[np.ndarray, "24 24"]:
    Image, ImageDraw = (require_extra(f"PIL.{module}", "experiments") for module in ("Image", "ImageDraw"))
    canvas = Image.new("F", (CANVAS, CANVAS), 0.0)
    ImageDraw.Draw(canvas).line([(CANVAS // 2, CANVAS // 2), (x, y)], fill=1.0, width=LINE_WIDTH)
    small = np.asarray(canvas.resize((IMAGE, IMAGE), Image.Resampling.LANCZOS))
    pixels: np.ndarray = np.clip(np.rint(small * 255), 0, 255).astype(np.uint8)
    return pixels


def sine(x: Float64[np.ndarray, " n"], out: Float64[np.ndarray, " n"] | None = None) -> Float64[np.ndarray, " n"]:
    """Compute sin x to 1e-15 from its Taylor series on [-π/2, π/2].

    The last bit of numpy's sine depends on the processor. A pendulum near the top multiplies this difference by 1e11
    within a sequence.
    """
    half_turns = np.rint(x / np.pi)
    reduced = x - half_turns * np.pi
    square = reduced * reduced
    total: np.ndarray = np.multiply(square, _TAYLOR[-1], out=out)
    for coefficient in _TAYLOR[-2:0:-1]:
        total += coefficient
        total *= square
    total += 1.0
    total *= reduced
    total *= 1 - 2 * (half_turns - 2 * np.floor(half_turns / 2))  # sin(x + kπ) = (-1)^k sin x
    return total
