"""Lines over a common axis as an SVG file, for tables that come from several runs of the program."""

from html import escape

SIZE = (720, 400)
#: Space left, right, above and below the lines.
LEFT, RIGHT, ABOVE, BELOW = 70, 20, 34, 50
NAME_HEIGHT = 18
#: Those of the program's own plots.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#a0a0a0", "#d62728", "#9467bd", "#17becf", "#8c564b")


def ticks(most):
    """Round numbers from 0 to at least `most`, four to ten of them."""
    step = 10.0 ** (len(f"{most:.0f}") - 2) if most >= 1 else 0.1
    while most / step > 8:
        step *= 2 if most / step <= 16 else 5
    count = int(-(-most // step))
    return [place * step for place in range(count + 1)]


def write_svg(path, title, x_name, y_name, series):
    """Draws {name: [(x, y), …]} from 0 on both axes, each point marked."""
    points = [point for line in series.values() for point in line]
    xs, ys = (ticks(max(point[axis] for point in points)) for axis in (0, 1))
    width, height = SIZE[0] - LEFT - RIGHT, SIZE[1] - ABOVE - BELOW

    def place(x, y):
        return LEFT + x / xs[-1] * width, ABOVE + height - y / ys[-1] * height

    def text(x, y, words, anchor="middle", turn=""):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'

    total = SIZE[1] + NAME_HEIGHT * len(series)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE[0]}" height="{total}" font-family="sans-serif" font-size="13">',
        f'<rect width="{SIZE[0]}" height="{total}" fill="white"/>',
        text(SIZE[0] / 2, 20, title),
        text(LEFT + width / 2, SIZE[1] - 12, x_name),
        text(16, ABOVE + height / 2, y_name, turn=f' transform="rotate(-90 16 {ABOVE + height / 2})"'),
    ]
    for x in xs:
        (at, _), (_, foot) = place(x, 0), place(0, 0)
        drawn += [f'<path d="M{at:.1f} {ABOVE}V{foot:.1f}" stroke="#ddd"/>', text(at, foot + 18, f"{x:g}")]
    for y in ys:
        (begin, at), (end, _) = place(0, y), place(xs[-1], y)
        drawn += [f'<path d="M{begin:.1f} {at:.1f}H{end:.1f}" stroke="#ddd"/>', text(LEFT - 8, at + 4, f"{y:g}", "end")]
    for number, (name, line) in enumerate(series.items()):
        colour, at = COLOURS[number % len(COLOURS)], SIZE[1] + NAME_HEIGHT * number + 4
        places = [place(*point) for point in line]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        drawn += [f'<path d="M{LEFT} {at}h14" stroke="{colour}" stroke-width="2"/>', text(LEFT + 20, at + 4, name, "start")]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*drawn, "</svg>", ""]))
