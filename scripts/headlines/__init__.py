"""The headlines of the four papers, each with our figure: the table of docs/headlines.md."""

from headlines import adaptive, batchmaker, dvabatch, lazybatching  # noqa: F401, each adds its own
