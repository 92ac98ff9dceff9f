"""Dashboard, alerts and autoscalers query series that the server has: names and labels are compared with the metrics
page of a running server."""

import json
import re
import subprocess

import fetch
import open_load
import pytest
from clients import scrape
from conftest import fetched, serving
from manifests import CHART, DEPLOY, only, read, render
from open_load import Served
from server import Server

RULES = DEPLOY / "prometheus" / "rules.yaml"
RULE_TESTS = DEPLOY / "prometheus" / "rules_test.yaml"
ADAPTER = DEPLOY / "prometheus" / "adapter.yaml"
OPERATIONS = DEPLOY.parent / "docs" / "operations.md"
DASHBOARD = DEPLOY / "grafana" / "paternoster.json"

#: Prometheus' own series, and the labels that it adds to all series of a target.
OF_PROMETHEUS = {"up"}
OF_TARGETS = {"namespace", "pod", "service", "job", "instance"}

SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
#: A name that is not a function (no parenthesis follows) and not the exponent of a number.
NAME = re.compile(r"(?<![\w.])[a-zA-Z_:][\w:]*(?![\w:]*\s*\()")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
WORDS = {"and", "or", "unless", "bool", "offset"}


class Page:
    """The series of a metrics page: the labels of each name, and the values of each label."""

    def __init__(self, text):
        self.labels = {}
        for name, labels in SERIES.findall(text):
            of_name = self.labels.setdefault(name, {})
            for label, value in LABEL.findall(labels):
                of_name.setdefault(label, set()).add(value)

    def faults(self, expression):
        """Returns what a PromQL expression queries that the page does not have."""
        plain = re.sub(r"\[[^\]]*\]", "", expression)
        found = []
        for name, matchers in SELECTOR.findall(plain):
            found += [f"{name}{{{' '.join(one)}}}" for one in MATCHER.findall(matchers) if not self.may_match(name, *one)]
        plain = re.sub(r"\{[^}]*\}", "", plain)
        names = set(NAME.findall(GROUPING.sub("", plain))) - WORDS
        found += sorted(names - set(self.labels) - OF_PROMETHEUS) or ([] if names else [f"no series in {expression!r}"])
        grouped = {label.strip() for group in GROUPING.findall(plain) for label in group.split(",")}
        known = OF_TARGETS.union(*(self.labels.get(name, {}) for name in names))
        return found + [f"by ({label})" for label in sorted(grouped - known)]

    def may_match(self, name, label, operator, value):
        """Returns whether a label matcher can hold: Prometheus adds the label, or the server has it with this value."""
        if label in OF_TARGETS:
            return True
        values = self.labels.get(name, {}).get(label)
        wanted = set(value.split("|") if "~" in operator else [value])
        # A variable of the dashboard may have any value.
        return values is not None and (value.startswith("$") or wanted <= values)


@pytest.fixture(scope="module")
def page(program, made_models, stand_in, tmp_path_factory):
    """Returns the metrics pages of a server with a model of several stages, of one whose models requests load, and of one
    with a card: some families exist only with those."""
    networks = made_models("examples", "--only", "minilm", "--minilm", fetch.minilm())
    staged = {"staged": Served("minilm", "stages: 2\nbatching: { policy: diversity }")}
    repository = open_load.write_repository(tmp_path_factory.mktemp("staged"), networks, staged)
    with serving(repository, "--auto-profile=false", program=program) as server:
        staged_page = scrape(server)
    identity = made_models("tests", "--only", "identity")
    on_demand = ["--model-control-mode=on-demand", "--memory-budget-bytes=100000000"]
    with Server(identity, *on_demand, program=program) as server:
        staged_page += scrape(server)
    with Server(identity, "--device=cuda", program=program, environment=stand_in) as server:
        return Page(staged_page + scrape(server))


@pytest.fixture(scope="module")
def alerts():
    return [rule for document in read(RULES) for group in document["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def promtool():
    return fetched(fetch.promtool)


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(nv_inference_request_succes[5m]))",
        'nv_inference_request_failure{reason="REFUSED"}',
        'paternoster_connections{ports="grpc"}',
        "sum by (modle) (nv_inference_pending_request_count)",
        "sum(rate([5m]))",
    ],
)
def test_an_expression_that_no_series_answers_is_found(page, expression):
    assert page.faults(expression)


def test_alerts_ask_for_series_of_the_server(page, alerts):
    assert [(rule["alert"], fault) for rule in alerts for fault in page.faults(rule["expr"])] == []


def test_the_dashboard_asks_for_series_of_the_server(page):
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    assert len(asked) > 30
    assert [(title, fault) for title, expression in asked for fault in page.faults(expression)] == []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            assert page.faults(f"sum by ({label}) ({series})") == [], variable["name"]


def test_prometheus_can_read_what_the_dashboard_asks(promtool, tmp_path):
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    asked = [re.sub(r"\$\w+", "5m", expression) for expression in asked]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    check = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, timeout=120)
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_dashboard_is_whole():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & places, panel["title"]
        places |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]


def test_autoscalers_ask_for_series_of_the_server(page, helm):
    adapter = {rule["name"]["as"]: rule for document in read(ADAPTER) for rule in document["rules"]["custom"]}
    for rule in adapter.values():
        series = rule["seriesQuery"].split("{")[0]
        template = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", "pod")
        assert page.faults(template.replace("<<.LabelMatchers>>", 'pod=~"$pod"')) == []
        assert page.faults(series) == []
    scaler = only(render(helm, CHART / "ci" / "init-container-values.yaml"), "HorizontalPodAutoscaler")
    asked = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
    assert sorted(asked) == sorted(adapter), "the adapter's rules are what the autoscaler asks for"
    triggers = only(render(helm, CHART / "ci" / "image-gpu-values.yaml"), "ScaledObject")["spec"]["triggers"]
    assert len(triggers) == 2
    for trigger in triggers:
        assert page.faults(trigger["metadata"]["query"]) == []
        assert float(trigger["metadata"]["threshold"]) > 0


def test_operators_are_told_what_to_do_about_each_alert(alerts):
    listed = re.findall(r"^\| (Paternoster\w+) \|", OPERATIONS.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(rule["alert"] for rule in alerts)


def test_alerts_fire_when_they_should_and_not_else(promtool, alerts):
    (document,) = read(RULE_TESTS)
    tested = {case["alertname"] for test in document["tests"] for case in test["alert_rule_test"]}
    assert tested == {rule["alert"] for rule in alerts}
    for command in (["check", "rules", "--lint-fatal", RULES], ["test", "rules", RULE_TESTS]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
