"""The headlines of the four papers compared with the kept figures: the table of docs/headlines.md."""

from collections import namedtuple

from figure_tables import table

#: A claim of a paper: where it is made, the paper's figure, the function that returns ours and whether it is reached,
#: why they differ, and the command that draws ours.
Headline = namedtuple("Headline", "paper claim where theirs ours why command")

PAPERS = ("BatchMaker", "LazyBatching", "DVABatch", "Adaptive batching")
HEADLINES = []


def headline(paper, claim, where, theirs, why, drawn_by):
    """Keeps the function that returns ours; it is drawn by figures, by a command, or not at all."""
    command = drawn_by if " " in drawn_by or not drawn_by else f"make figures ONLY={drawn_by}"

    def keep(ours):
        HEADLINES.append(Headline(paper, claim, where, theirs, ours, why, command))
        return ours

    return keep


def reached(*fractions):
    """Says whether each of ours, as a fraction of theirs, is reached, and if not, whether it is nearly."""
    if min(fractions) >= 1:
        return "yes"
    if min(fractions) >= 0.9:
        return "nearly"
    return "partly" if max(fractions) >= 1 else "no"


def fewer(value, base):
    """Formats a change in per cent, without decimals."""
    return f"{100 * (value / base - 1):+.0f}".replace("-", "−")


def ratios(values, digits=2):
    return " / ".join(f"{value:.{digits}f}" for value in values) + " ×"


def spans(values):
    """Formats the least and the greatest change in per cent, of fractions."""
    changes = sorted(values, key=lambda value: abs(value - 1))
    return f"{fewer(changes[0], 1)} to {fewer(changes[-1], 1)} %"


@table("headlines")
def headlines():
    found = [["paper", "claim", "where", "theirs", "ours", "reached", "why they differ", "drawn by"]]
    for each in sorted(HEADLINES, key=lambda each: PAPERS.index(each.paper)):
        command = f"`{each.command.removeprefix('make figures ONLY=')}`" if each.command else "–"
        found.append([each.paper, each.claim, each.where, each.theirs, *each.ours(), each.why, command])
    return found
