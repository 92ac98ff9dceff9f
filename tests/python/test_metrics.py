"""Metric families of the machine, of cards and of loads, scraped from a real server. The cards are those of the
stand-in for CUDA and NVML (`crates/testing/fake_cuda`)."""

import os
import re

import pytest
import tritonclient.grpc as triton
from clients import eventually, metric, scrape
from conftest import serving
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server

CPU = {"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"}
PINNED = {"nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"}
CARDS = {
    "nv_gpu_utilization": "gauge",
    "nv_gpu_memory_total_bytes": "gauge",
    "nv_gpu_memory_used_bytes": "gauge",
    "nv_gpu_power_usage": "gauge",
    "nv_gpu_power_limit": "gauge",
    "nv_energy_consumption": "counter",
}
#: Identifiers of the stand-in's devices.
FIRST, SECOND = (f"GPU-66616b65-2d63-7564-612d-6465762d30{last}" for last in ("30", "31"))


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "identity", identity(), config("identity", {"INPUT0": ("FP32", [16])}))
    return tmp_path / "models"


def families(server):
    """Returns the types of all families by name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape(server), re.MULTILINE))


def of_card(server, uuid):
    """Returns the samples of one card by family name."""
    found = re.findall(rf'^(\w+)\{{gpu_uuid="{uuid}"\}} (\S+)$', scrape(server), re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_without_a_card_there_are_no_families_of_cards(program, models):
    with serving(models, "--device=cpu", program=program) as server:
        assert not CARDS.keys() & families(server).keys()
        assert CPU | PINNED <= families(server).keys()


def test_families_of_the_processor_can_be_left_out(program, models):
    with serving(models, "--device=cpu", "--allow-cpu-metrics=false", program=program) as server:
        assert not CPU & families(server).keys()
        assert PINNED <= families(server).keys()


def test_each_card_says_what_it_knows(program, models, stand_in):
    flags, environment = ("--device=cuda", "--metrics-interval-ms=0"), {**stand_in, "FAKE_CUDA_DEVICES": "2"}
    with Server(models, *flags, program=program, environment=environment) as server:
        types = families(server)
        assert {name: types.get(name) for name in CARDS} == CARDS
        first, second = of_card(server, FIRST), of_card(server, SECOND)
        assert first.keys() == CARDS.keys()
        assert second.keys() == CARDS.keys() - {"nv_gpu_power_limit"}, "it does not know its limit"
        assert (first["nv_gpu_utilization"], second["nv_gpu_utilization"]) == (0.41, 0.42)
        assert first["nv_gpu_memory_used_bytes"] * 4 == first["nv_gpu_memory_total_bytes"] == 4 << 30
        assert (first["nv_gpu_power_usage"], first["nv_gpu_power_limit"]) == (120.501, 700)
        energy = [of_card(server, FIRST)["nv_energy_consumption"] for _ in range(3)]
        # Each reading of either card adds 1.5 J to the stand-in's counter.
        assert [round(later - earlier, 6) for earlier, later in zip(energy, energy[1:])] == [3, 3]
        assert energy[0] < 100, "counted from the server's start, not the driver's"


def test_cards_that_are_not_used_are_not_shown(program, models, stand_in):
    environment = {**stand_in, "FAKE_CUDA_DEVICES": "2"}
    with Server(models, "--device=cuda:1", program=program, environment=environment) as server:
        assert of_card(server, SECOND) and not of_card(server, FIRST)


def test_a_reading_is_repeated_until_it_is_as_old_as_the_interval(program, models, stand_in):
    flags = ("--device=cuda", "--metrics-interval-ms=3600000")
    with Server(models, *flags, program=program, environment=stand_in) as server:
        energy = {of_card(server, FIRST)["nv_energy_consumption"] for _ in range(3)}
        assert len(energy) == 1, energy


def test_families_of_cards_can_be_left_out(program, models, stand_in):
    flags = ("--device=cuda", "--allow-gpu-metrics=false")
    with Server(models, *flags, program=program, environment=stand_in) as server:
        assert not CARDS.keys() & families(server).keys()
        assert CPU <= families(server).keys()


def test_without_nvml_cards_are_used_and_not_measured(program, models, stand_in, tmp_path):
    folder = tmp_path / "without"
    folder.mkdir()
    for library in os.scandir(stand_in["LD_LIBRARY_PATH"]):
        if library.is_symlink() and "nvidia-ml" not in library.name:
            (folder / library.name).symlink_to(os.readlink(library.path))
    environment = {**stand_in, "LD_LIBRARY_PATH": str(folder)}
    with Server(models, "--device=cuda", program=program, environment=environment) as server:
        assert not CARDS.keys() & families(server).keys()
        assert "there are no metrics of cards" in server.log.read_text()
        assert metric(server, "nv_inference_count", model="identity") == 0


def test_how_long_a_load_took_is_there_as_long_as_the_version(program, models):
    with serving(models, "--model-control-mode=explicit", program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            assert "nv_model_load_duration_secs" not in families(server)
            client.load_model("identity")
            assert families(server)["nv_model_load_duration_secs"] == "gauge"
            took = metric(server, "nv_model_load_duration_secs", model="identity", version="1")
            assert 0 < took < 60
            client.unload_model("identity")
            eventually("the series goes", lambda: "nv_model_load_duration_secs" not in families(server))
