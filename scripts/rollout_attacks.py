"""Attacks by versions of a model that answer for comparison. `make attacks` runs them with the others."""

import attack_models
from attacking import asked_in_turn, latencies, memory_of
from onnx_bytes import scale
from repository_on_disk import write_model

LASTS_S = 10


def endless_shadow(given):
    """The version that answers for comparison never ends, next to a client of the one that is served."""
    for what, section in (("others, without the attack", ""), ("others", "rollout: { traffic: { 1: 1 }, shadow: 2 }")):
        folder = given.empty()
        write_model(folder, "scale", scale(1))
        write_model(folder, "scale", attack_models.endless(), version=2)
        shown = "version_policy: all" if section else "version_policy: { specific: [1] }"
        (folder / "scale" / "model.yaml").write_text(f"{shown}\n{section}\n")
        with given.serve(folder) as server, memory_of(server) as grown:
            yield what, f"{latencies(asked_in_turn(server, ['scale'], 0, LASTS_S))}, {grown():.0f} MB more resident"


ATTACKS = (endless_shadow,)
