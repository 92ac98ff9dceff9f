"""Line and bar plots as SVG files, for tables from several runs of the program."""

import colorsys
import math
from html import escape

SIZE = (720, 400)
#: Margins: left, right, above and below.
LEFT, RIGHT, ABOVE, BELOW = 70, 20, 34, 50
NAME_HEIGHT = 18
#: The colours of the program's own plots.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#6e6e6e", "#d62728", "#9467bd", "#17becf", "#8c564b")
#: Share of a turn between the hues of two further colours: the golden angle, so that no two of them coincide.
GOLDEN_TURN = 0.381966
#: Total width of the bars of a group; groups are 1 apart.
GROUP = 0.92


def ticks(most):
    """Returns four to ten round numbers from 0 to at least `most`."""
    step = 10.0 ** (math.floor(math.log10(most)) - 1) if most > 0 else 0.25
    while most / step > 8:
        step *= 2 if most / step <= 16 else 5
    count = max(1, math.ceil(most / step - 1e-9))
    return [place * step for place in range(count + 1)]


def text(x, y, words, anchor="middle", turn=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'


class Plot:
    """A frame with a vertical axis from 0, for lines or bars."""

    def __init__(self, title, x_name, y_name, most, names):
        self.ys, self.names = ticks(most), names
        self.width, self.height = SIZE[0] - LEFT - RIGHT, SIZE[1] - ABOVE - BELOW
        total = SIZE[1] + NAME_HEIGHT * len(names)
        self.drawn = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE[0]}" height="{total}" font-family="sans-serif" font-size="13">',
            f'<rect width="{SIZE[0]}" height="{total}" fill="white"/>',
            text(SIZE[0] / 2, 20, title),
            text(LEFT + self.width / 2, SIZE[1] - 12, x_name),
            text(16, ABOVE + self.height / 2, y_name, turn=f' transform="rotate(-90 16 {ABOVE + self.height / 2})"'),
        ]

    def across(self, share):
        """Returns the coordinate of a fraction of the horizontal axis."""
        return LEFT + share * self.width

    def up(self, y):
        """Returns the coordinate of a value on the vertical axis."""
        return ABOVE + self.height - y / self.ys[-1] * self.height

    def draw_values(self):
        """Draws the values of the vertical axis, with a horizontal line for each."""
        for y in self.ys:
            at = self.up(y)
            self.drawn.append(f'<path d="M{self.across(0):.1f} {at:.1f}H{self.across(1):.1f}" stroke="#ddd"/>')
            self.drawn.append(text(LEFT - 8, at + 4, f"{y:g}", "end"))

    def draw_names(self):
        """Draws the names of the series, below the plot."""
        for number, name in enumerate(self.names):
            at = SIZE[1] + NAME_HEIGHT * number + 4
            self.drawn.append(f'<path d="M{LEFT} {at}h14" stroke="{colour(number)}" stroke-width="2"/>')
            self.drawn.append(text(LEFT + 20, at + 4, name, "start"))

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*self.drawn, "</svg>", ""]))


def colour(number):
    """Returns the colour of a series; no two series have the same."""
    if number < len(COLOURS):
        return COLOURS[number]
    further = number - len(COLOURS)
    red, green, blue = colorsys.hls_to_rgb(further * GOLDEN_TURN % 1, (0.3, 0.62)[further % 2], 0.75)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def write_lines(path, title, x_name, y_name, series):
    """Draws {name: [(x, y), …]} with both axes from 0 and each point marked."""
    points = [point for line in series.values() for point in line]
    plot = Plot(title, x_name, y_name, max(y for _, y in points), list(series))
    xs = ticks(max(x for x, _ in points))
    foot = plot.up(0)
    for x in xs:
        at = plot.across(x / xs[-1])
        plot.drawn += [f'<path d="M{at:.1f} {ABOVE}V{foot:.1f}" stroke="#ddd"/>', text(at, foot + 18, f"{x:g}")]
    plot.draw_values()
    # The first series is the subject: it is drawn over the others.
    for number, line in reversed(list(enumerate(series.values()))):
        places = [(plot.across(x / xs[-1]), plot.up(y)) for x, y in line]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        plot.drawn.append(f'<polyline points="{joined}" fill="none" stroke="{colour(number)}" stroke-width="2"/>')
        plot.drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(number)}"/>' for x, y in places]
    plot.draw_names()
    plot.write(path)


def write_bars(path, title, x_name, y_name, groups, series):
    """Draws {name: [height or None, …]} as bars, one for each series in every group, with their heights above them."""
    plot = Plot(title, x_name, y_name, max(height for bars in series.values() for height in bars if height), list(series))
    plot.draw_values()
    foot, width = plot.up(0), GROUP / len(series) / len(groups)
    for place, group in enumerate(groups):
        middle = (place + 0.5) / len(groups)
        for line, words in enumerate(group.split("\n")):
            plot.drawn.append(text(plot.across(middle), foot + 14 + 14 * line, words))
        # A series without a bar in this group leaves no gap.
        present = [(number, bars[place]) for number, bars in enumerate(series.values()) if bars[place] is not None]
        for rank, (number, height) in enumerate(present):
            left, top = plot.across(middle + (rank - len(present) / 2) * width), plot.up(height)
            size = f'width="{width * plot.width:.1f}" height="{foot - top:.1f}"'
            plot.drawn.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour(number)}"/>')
            shown = text(left + width * plot.width / 2, top - 3, f"{height:.2f}")
            plot.drawn.append(shown.replace("<text", '<text font-size="10"', 1))
    plot.draw_names()
    plot.write(path)
