"""The server's page, in a real browser: what it shows, that it follows changes, and that it trusts no name."""

import json
import threading

import fetch
import numpy as np
import pytest
import tritonclient.grpc as triton
from browser import Browser
from clients import eventually, tensor
from conftest import fetched
from onnx_bytes import identity
from repository_on_disk import config, write_model
from server import Server

#: A directory's and therefore a model's name that would run as a script if it were inserted as markup.
HOSTILE = '<img src=x onerror="window.broken=1">'
#: A name without places to break it, which must not change the table.
BROKEN_TOO = "broken-" + "x" * 120
PORTS = {"INPUT0": ("FP32", [16])}
WAITS = 'document.querySelector("#status").textContent'

#: Contrast of each element's own text with its background (WCAG 2.2, relative luminance), the lowest first.
CONTRASTS = """
(() => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parsed(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own.length || element.closest('script, noscript, svg')) continue;
    const [one, other] = [light(parsed(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), element.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""


@pytest.fixture(scope="module")
def page_server(program, tmp_path_factory):
    repository = tmp_path_factory.mktemp("page")
    write_model(repository, "identity", identity(), config("identity", PORTS, extra="dynamic_batching { }"))
    write_model(repository, HOSTILE, identity(), config("", PORTS).replace('name: ""\n', ""))
    write_model(repository, "broken", b"no model", config("broken", PORTS))
    # Its name is in the reason, so that this is a long one.
    write_model(repository, BROKEN_TOO, b"no model", config("", PORTS).replace('name: ""\n', ""))
    server = Server(repository, "--auto-profile=false", program=program)
    server.start(until="settled")
    yield server
    assert server.stop() == 0
    server.log.unlink()


@pytest.fixture(scope="module")
def browser():
    with Browser(fetched(fetch.chromium)) as opened:
        yield opened


@pytest.fixture
def busy(page_server):
    """Sends requests to two models, one after the other, for as long as a test runs."""
    over, failures = threading.Event(), []

    def ask():
        try:
            with triton.InferenceServerClient(page_server.grpc) as client:
                rows = np.ones((3, 16), np.float32)
                while not over.is_set():
                    client.infer("identity", [tensor("INPUT0", rows)])
                    client.infer(HOSTILE, [tensor("INPUT0", rows[:1])])
                    over.wait(0.002)
        except Exception as failure:
            failures.append(failure)

    worker = threading.Thread(target=ask)
    worker.start()
    yield
    over.set()
    worker.join()
    assert failures == []


def opened(browser, server, **window):
    """Opens the page and waits until it shows figures."""
    browser.complaints.clear()
    browser.open(f"http://{server.http}/", **window)
    eventually("figures", lambda: browser.value(WAITS).startswith("Live"))


#: The columns of the table of models.
COLUMNS = [
    "Model", "Version", "State", "Requests/s", "Failures/s", "p50 ms", "p99 ms", "Queue ms", "Compute ms", "In flight",
    "Waiting", "Rows per batch", "Memory", "Policy",
]  # fmt: skip


def cells(browser):
    """Returns the rows of the table of models by name: the text of each column."""
    texts = "(row) => [...row.children].map((cell) => cell.querySelector('span').textContent)"
    rows = browser.value(f"[...document.querySelectorAll('#models tr')].map({texts})")
    return {row[0]: dict(zip(COLUMNS, row)) for row in rows}


def choose(browser, control, value):
    """Sets a control as a user would."""
    change = f"control.value = {json.dumps(value)}, control.dispatchEvent(new Event('input'))"
    browser.value(f"((control) => ({change}))(document.querySelector('#{control}'))")


def test_models_states_and_load_are_shown_live(browser, page_server, busy):
    opened(browser, page_server)
    assert browser.value("document.querySelector('h1').textContent") == "Paternoster"
    assert "not ready" in browser.value("document.querySelector('#readiness').textContent"), "one model is broken"
    assert "Requests in flight" in browser.value("document.querySelector('#load').textContent")
    shown = cells(browser)
    assert list(shown) == ["broken", BROKEN_TOO, HOSTILE, "identity"], "those that need attention come first"
    assert shown["identity"]["Version"] == "1" and shown["identity"]["State"] == "READY"
    assert shown["broken"]["State"] == "UNAVAILABLE" and shown["broken"]["Requests/s"] == ""
    assert shown["identity"]["Policy"] == "window"
    eventually("a rate", lambda: float(cells(browser)["identity"]["Requests/s"] or 0) > 0)
    row = cells(browser)["identity"]
    p50, p99, queued, computed = (float(row[column]) for column in ("p50 ms", "p99 ms", "Queue ms", "Compute ms"))
    assert 0 < p50 <= p99 and queued <= p99 and computed <= p99
    assert float(row["Rows per batch"]) == 3 and float(row["Failures/s"]) == 0
    assert "2 of 4 need attention" in browser.value("document.querySelector('#models-summary').textContent")
    line = "document.querySelector('#models tr:last-child .spark').getAttribute('d')"
    eventually("a line of the last seconds", lambda: "L" in browser.value(line))
    assert "triton" not in browser.value("document.querySelector('#server').textContent")
    assert browser.complaints == []


def test_models_are_sorted_and_found(browser, page_server):
    opened(browser, page_server)
    choose(browser, "sort", "name")
    assert list(cells(browser)) == sorted(["broken", BROKEN_TOO, HOSTILE, "identity"])
    choose(browser, "find", "ROKEN-X")
    assert list(cells(browser)) == [BROKEN_TOO], "names are compared without regard to case"
    choose(browser, "find", "no such model")
    assert cells(browser) == {}
    choose(browser, "find", "")
    choose(browser, "sort", "attention")
    assert len(cells(browser)) == 4
    assert browser.complaints == []


def test_a_long_reason_is_cut_until_it_is_opened(browser, page_server):
    opened(browser, page_server, width=1280)
    reason = "document.querySelector('#models tr details')"
    whole = browser.value(f"{reason}.querySelector('summary').textContent")
    assert "model.onnx" in whole or "protobuf" in whole.lower(), whole
    heights = "[...document.querySelectorAll('#models tr')].map((row) => row.offsetHeight)"
    assert max(browser.value(heights)) < 260, "no row takes much room"
    widths = "[...document.querySelectorAll('#columns th')].map((cell) => cell.offsetWidth)"
    before = browser.value(widths)
    browser.value(f"{reason}.open = true")
    assert browser.value(f"{reason}.querySelector('summary').scrollHeight") > 0
    marked = "document.querySelector('#models tr').dataset.seen = 'yes'"
    browser.value(marked)
    counter = "performance.getEntriesByType('resource').length"
    asked = browser.value(counter)
    eventually("further answers", lambda: browser.value(counter) > asked + 1)
    assert browser.value(f"{reason}.open") and browser.value("document.querySelector('#models tr').dataset.seen") == "yes"
    assert browser.value(widths) == before, "the columns stay as wide as they were"
    assert browser.complaints == []


def test_the_last_batches_are_drawn_as_they_run(browser, page_server, busy):
    opened(browser, page_server)
    bars = "document.querySelectorAll('#picture rect').length"
    eventually("bars", lambda: browser.value(bars) > 4)
    heads = "[...document.querySelectorAll('#picture text.head')].map((text) => text.textContent)"
    assert set(browser.value(heads)) == {"identity · version 1", f"{HOSTILE} · version 1", "lanes"}
    before = browser.value("document.querySelector('#picture').innerHTML")
    eventually("another picture", lambda: browser.value("document.querySelector('#picture').innerHTML") != before)
    assert "tasks on" in browser.value("document.querySelector('#timeline-summary').textContent")
    assert "stage 0" in browser.value("document.querySelector('#legend').textContent")
    assert browser.complaints == []


def test_a_models_name_is_text_and_nothing_else(browser, page_server, busy):
    opened(browser, page_server)
    eventually("its bars", lambda: HOSTILE in browser.value("document.querySelector('#picture').textContent"))
    assert HOSTILE in cells(browser)
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("window.broken") is None
    assert browser.complaints == []


def test_the_policy_lets_no_other_script_run_and_nothing_be_fetched_from_elsewhere(browser, page_server):
    opened(browser, page_server)
    made = "Object.assign(document.createElement('script'), { textContent: 'window.added = 1' })"
    assert browser.value(f"document.body.append({made}), window.added") is None
    elsewhere = f"fetch('http://{page_server.metrics}/metrics').then(() => 'fetched', () => 'refused')"
    assert browser.value(elsewhere) == "refused"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_in_narrow_and_wide_windows_by_day_and_night(browser, page_server, busy, width, dark):
    opened(browser, page_server, width=width, dark=dark)
    eventually("bars", lambda: browser.value("document.querySelectorAll('#picture rect').length") > 0)
    assert browser.value("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"
    least, text = browser.value(CONTRASTS)[0]
    assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"
    grounds = browser.value("getComputedStyle(document.body).backgroundColor")
    assert grounds == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert browser.complaints == []


def test_it_has_names_and_roles_for_those_who_do_not_see_it(browser, page_server, busy):
    opened(browser, page_server)
    eventually("bars", lambda: browser.value("document.querySelectorAll('#picture rect').length") > 0)
    eventually("a rate", lambda: float(cells(browser)["identity"]["Requests/s"] or 0) > 0)
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    named = {}
    for node in nodes:
        role, name = node.get("role", {}).get("value"), node.get("name", {}).get("value", "")
        named.setdefault(role, []).append(name)
    assert "Paternoster" in named["heading"] and "Models" in named["heading"]
    assert {"Load", "Models", "Batches of the last seconds"} <= set(named["region"])
    assert named["columnheader"] == COLUMNS
    assert {"Sort by", "Find"} <= {name for names in named.values() for name in names}
    images = named.get("image", []) + named.get("img", [])
    assert any(name.startswith("requests per second in the last minute") for name in images)
    assert len(named["status"]) == 1 and "table" in named
    assert any("tasks on" in name for name in images), named.keys()


def test_it_says_so_when_the_server_does_not_answer(browser, program, tmp_path):
    server = Server(tmp_path, program=program).start()
    try:
        opened(browser, server)
    finally:
        server.stop()
        server.log.unlink()
    eventually("a word about it", lambda: browser.value(WAITS).startswith("The server cannot be asked"))


def test_nothing_is_recorded_before_somebody_looks(program, tmp_path):
    write_model(tmp_path, "identity", identity(), config("identity", PORTS))
    with Server(tmp_path, "--auto-profile=false", program=program) as server:
        with triton.InferenceServerClient(server.grpc) as client:
            client.infer("identity", [tensor("INPUT0", np.ones((1, 16), np.float32))])
            assert json.loads(server.get("/v2/overview")[1])["timeline"]["tracks"] == []

            def seen():
                client.infer("identity", [tensor("INPUT0", np.ones((1, 16), np.float32))])
                return json.loads(server.get("/v2/overview")[1])["timeline"]["tracks"]

            assert eventually("batches", seen)[0]["name"] == "identity · version 1"

