"""As test_openapi.py, with names of models that are drawn too."""

from test_openapi import described, hold_against_description  # noqa: F401, a fixture


def test_names_of_whatever_is_drawn(described, tmp_path):
    """Model names are drawn too, and percent-encoded. No model has these names, so no request must be accepted."""
    server, operations = described
    flags = ["--max-examples=10", "--exclude-checks=positive_data_acceptance"]
    assert hold_against_description(server, operations, tmp_path, *flags, models_are_there=False) > 20 * operations
