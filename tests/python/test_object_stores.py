"""Model repositories in object stores: models load from them as from directories, each object is fetched once, and
neither a failing store nor one with strange keys affects models that are served."""

import json
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton
from certificates import Certificates
from clients import eventually, refused, tensor
from onnx_bytes import scale
from repository_on_disk import config, write_model
from server import ServerFailed
from tritonclient.utils import InferenceServerException

pytest.importorskip("moto", reason="there is no moto for this version of Python")

from object_stores import BUCKET, S3, Azure, Google  # noqa: E402

PORTS = {"INPUT0": ("FP32", [16])}
POLL = ["--model-control-mode=poll", "--repository-poll-secs=1"]
EXPLICIT = ["--model-control-mode=explicit"]


@pytest.fixture(params=["s3", "gs", "as"])
def store(request, tmp_path):
    """Starts a store of each kind."""
    made = {"s3": S3, "gs": lambda: Google(tmp_path), "as": Azure}[request.param]()
    yield made
    made.close()


@pytest.fixture
def s3():
    """Starts the store for tests whose subject is the same for all stores."""
    made = S3()
    yield made
    made.close()


@pytest.fixture
def serve(start, tmp_path):
    """Returns a function that starts a server over stores. It has only their credentials, and a folder of its own for
    temporary files."""
    (tmp_path / "tmp").mkdir()

    def start_one(*stores, flags=(), environment=None, until="ready", locations=None):
        first, *others = locations or [store.location for store in stores]
        given = {name: value for store in stores for name, value in store.environment.items()}
        settings = {**settings_of(tmp_path), **given, **(environment or {})}
        more = [f"--model-repository={other}" for other in others]
        return start(first, *more, *flags, environment=settings, until=until)

    return start_one


def settings_of(folder):
    return {"TMPDIR": str(folder / "tmp"), "HOME": str(folder), "NO_PROXY": "127.0.0.1"}


def upload(store, name, factor, version=1, configured=True):
    """Uploads a model that multiplies."""
    if configured:
        store.put(f"models/{name}/config.pbtxt", config(name, PORTS).encode())
    store.put(f"models/{name}/{version}/model.onnx", scale(factor))


def factor(client, model):
    """Returns the factor with which a model multiplies."""
    return client.infer(model, [tensor("INPUT0", np.ones((1, 16), np.float32))]).as_numpy("OUTPUT0")[0, 0]


def index(client):
    return {model.name: (model.version, model.state, model.reason) for model in client.get_model_repository_index().models}


def test_errors_name_the_store_and_no_temporary_file(store, serve, tmp_path):
    store.put("models/broken/1/model.onnx", b"no model")
    store.put("models/worse/config.pbtxt", b"what: is this")
    store.put("models/worse/1/model.onnx", scale(2))
    server = serve(store, flags=["--strict-readiness=false"], until="settled")
    with connected(server) as client:
        reasons = {name: reason for name, (_, _, reason) in index(client).items()}
    for name, file in (("broken", "1/model.onnx"), ("worse", "config.pbtxt")):
        assert f"{store.location}/{name}/{file}" in reasons[name], reasons[name]
        assert str(tmp_path) not in reasons[name] and "snapshots" not in reasons[name], reasons[name]


def connected(server):
    return triton.InferenceServerClient(server.grpc)


def test_models_are_loaded_and_answer(store, serve, tmp_path):
    upload(store, "twice", 2)
    upload(store, "thrice", 3)
    store.put("models/readme.txt", b"no model")
    server = serve(store)
    with connected(server) as client:
        assert (factor(client, "twice"), factor(client, "thrice")) == (2, 3)
        assert set(index(client)) == {"twice", "thrice"}
    assert [folder.name[:19] for folder in (tmp_path / "tmp").iterdir()] == ["paternoster-models-"]
    assert server.stop() == 0
    assert list((tmp_path / "tmp").iterdir()) == [], "what was fetched is removed at the end"
    assert server.complaints() == []
    assert store.secret not in server.log.read_text()


def test_a_new_version_is_followed_and_a_model_that_is_gone_is_unloaded(store, serve, tmp_path):
    upload(store, "model", 2)
    upload(store, "other", 7)
    server = serve(store, flags=[*POLL, f"--repository-cache-directory={tmp_path / 'cache'}"])
    with connected(server) as client:
        assert factor(client, "model") == 2
        fetched, _ = store.requests.take()
        assert fetched == {f"models/{name}/{file}": 1 for name in ("model", "other") for file in ("config.pbtxt", "1/model.onnx")}
        upload(store, "model", 5, version=2, configured=False)
        eventually("the new version", lambda: factor(client, "model") == 5)
        upload(store, "model", 6, version=2, configured=False)
        eventually("the new content", lambda: factor(client, "model") == 6)
        fetched, _ = store.requests.take()
        assert fetched == {"models/model/2/model.onnx": 2}, "what did not change is not fetched again"
        for file in ("config.pbtxt", "1/model.onnx"):
            store.delete(f"models/other/{file}")
        eventually("an index without it", lambda: "other" not in index(client))
        assert factor(client, "model") == 6
        eventually("a cache without it", lambda: not list((tmp_path / "cache").glob("*/models/other")))
    assert server.complaints() == []


def test_explicit_loads_fetch_their_model_alone(store, serve):
    upload(store, "wanted", 2)
    upload(store, "other", 3)
    server = serve(store, flags=EXPLICIT)
    with connected(server) as client:
        store.requests.take()
        assert index(client) == {"wanted": ("", "", ""), "other": ("", "", "")}
        # A listing whose connection breaks is repeated, so the number of listings is not asserted.
        assert store.requests.take()[0] == {}, "the index fetches nothing"
        client.load_model("wanted")
        assert factor(client, "wanted") == 2
        fetched, _ = store.requests.take()
        assert fetched == {"models/wanted/config.pbtxt": 1, "models/wanted/1/model.onnx": 1}
        client.load_model("wanted")
        assert store.requests.take()[0] == {}
        with refused("INTERNAL", "failed to load 'nobody'", "no such model directory"):
            client.load_model("nobody")
        store.delete("models/wanted/1/model.onnx")
        with refused("INVALID_ARGUMENT", "no version directory"):
            client.load_model("wanted")
        assert factor(client, "wanted") == 2, "what serves goes on"
        client.unload_model("wanted")
        eventually("an unloaded model", lambda: index(client)["wanted"][1:] == ("UNAVAILABLE", "unloaded"))


def test_a_model_that_is_being_uploaded_is_loaded_once_it_is_whole(s3, serve):
    upload(s3, "first", 1)
    server = serve(s3, flags=POLL)
    uploaded = []

    def upload_more(key):
        """The rest of the model arrives while the server fetches the existing objects."""
        if key == "models/late/1/model.onnx" and not uploaded:
            uploaded.append(key)
            upload(s3, "late", 5, version=2, configured=False)

    s3.requests.before_fetch = upload_more
    with connected(server) as client:
        upload(s3, "late", 4)
        eventually("the whole model", lambda: client.is_model_ready("late"))
        assert uploaded and factor(client, "late") == 5
        log = server.log.read_text()
        assert "the model changed in the store while it was fetched" in log
        assert "loaded model=late versions=[1]" not in log.replace('"', ""), "its half never served"
        assert factor(client, "first") == 1


def test_a_load_of_a_model_that_changes_meanwhile_says_so(s3, serve):
    upload(s3, "model", 2)
    server = serve(s3, flags=EXPLICIT)
    s3.requests.before_fetch = lambda _: upload(s3, "model", 3)
    with connected(server) as client:
        with refused("INTERNAL", "cannot fetch", f"{s3.location}/model", "changed in the store while it was fetched"):
            client.load_model("model")
        s3.requests.before_fetch = None
        client.load_model("model")
        assert factor(client, "model") == 3


def test_a_cache_directory_outlives_the_server(s3, serve, tmp_path):
    upload(s3, "model", 2)
    flags = [f"--repository-cache-directory={tmp_path / 'cache'}"]
    assert serve(s3, flags=flags).stop() == 0
    fetched, _ = s3.requests.take()
    assert sum(fetched.values()) == 2
    upload(s3, "model", 3)
    server = serve(s3, flags=flags)
    with connected(server) as client:
        assert factor(client, "model") == 3
    assert s3.requests.take()[0] == {"models/model/1/model.onnx": 1}
    with pytest.raises(ServerFailed, match="--repository-cache-directory.*another process uses it"):
        serve(s3, flags=flags)


def test_a_bounded_cache_lets_models_go_that_are_not_loaded(s3, serve, tmp_path):
    for name, by in (("one", 2), ("two", 3), ("three", 5)):
        upload(s3, name, by)
    bytes_of_one = len(config("one", PORTS)) + len(scale(2))
    most = 2 * bytes_of_one + bytes_of_one // 2
    bound = [f"--repository-cache-directory={tmp_path / 'cache'}", f"--repository-cache-max-bytes={most}"]
    server = serve(s3, flags=[*EXPLICIT, *bound])

    def copies():
        (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
        return {path.name for path in (folder / "models").iterdir()}

    with connected(server) as client:
        client.load_model("one")
        client.load_model("two")
        with refused("INTERNAL", "failed to load 'three'", f"of the {most} that --repository-cache-max-bytes allows"):
            client.load_model("three")
        assert (factor(client, "one"), factor(client, "two")) == (2, 3)
        client.unload_model("one")
        assert copies() == {"one", "two"}, "it may be loaded again"
        client.load_model("three")
        assert (factor(client, "two"), factor(client, "three"), copies()) == (3, 5, {"two", "three"})
        client.unload_model("two")
        client.load_model("one")
        assert (factor(client, "one"), factor(client, "three"), copies()) == (2, 5, {"one", "three"})


def test_directories_and_stores_go_together(s3, serve, tmp_path):
    azure = Azure()
    try:
        local = tmp_path / "local"
        write_model(local, "here", scale(2), config("here", PORTS))
        write_model(local, "both", scale(2), config("both", PORTS))
        upload(s3, "there", 3)
        upload(s3, "both", 3)
        upload(azure, "elsewhere", 4)
        locations = [local, s3.location, azure.location, f"{s3.location}/"]
        server = serve(s3, azure, locations=locations, until="settled")
        with connected(server) as client:
            assert [factor(client, name) for name in ("here", "there", "elsewhere")] == [2, 3, 4]
            _, state, reason = index(client)["both"]
            assert state == "UNAVAILABLE" and str(local / "both") in reason and f"{s3.location}/both" in reason
    finally:
        azure.close()


@pytest.mark.parametrize("form", ["variable", "url"])
def test_an_endpoint_is_given_in_other_forms(s3, serve, form):
    upload(s3, "model", 2)
    location, environment = {
        "variable": (f"s3://{BUCKET}/models", {"AWS_ENDPOINT_URL": f"http://{s3.address}"}),
        "url": (f"s3://http://{s3.address}/{BUCKET}/models/", {}),
    }[form]
    with connected(serve(s3, locations=[location], environment=environment)) as client:
        assert factor(client, "model") == 2


@pytest.mark.parametrize("place", ["variable", "default", "credential file"])
def test_keys_come_from_a_profile_of_aws(s3, serve, tmp_path, place):
    upload(s3, "model", 2)
    name = "default" if place == "default" else "models"
    keys = f"aws_access_key_id = {s3.key.access_key_id}\naws_secret_access_key = {s3.secret}\n"
    (tmp_path / "shared").write_text(f"[someone]\naws_access_key_id = none\n[{name}]\n{keys}")
    section = name if name == "default" else f"profile {name}"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(f"[{section}]\nregion = us-east-1\n")
    cloud = tmp_path / "cloud.json"
    cloud.write_text(json.dumps({"s3": {"": {"profile": name}}}))
    named = {"variable": {"AWS_PROFILE": name}, "default": {}, "credential file": {"TRITON_CLOUD_CREDENTIAL_PATH": str(cloud)}}
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_DEFAULT_REGION": ""}
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "shared"), **none, **named[place]}
    server = serve(s3, environment=environment)
    with connected(server) as client:
        assert factor(client, "model") == 2
    assert s3.secret not in server.log.read_text()


def test_a_store_over_tls_is_known_by_its_certificate(serve, tmp_path):
    certificates = Certificates(tmp_path)
    store = S3(tls=certificates.sign("store"))
    try:
        upload(store, "model", 2)
        environment = {"SSL_CERT_FILE": certificates.authority, "SSL_CERT_DIR": ""}
        with connected(serve(store, environment=environment)) as client:
            assert factor(client, "model") == 2
        certificates.make("other", "authority")
        with pytest.raises(ServerFailed, match="cannot read the model repository s3://https://.*certificate"):
            serve(store, environment={**environment, "SSL_CERT_FILE": certificates.file("other.pem")})
    finally:
        store.close()


def test_a_credential_file_goes_before_the_variables(s3, serve, tmp_path):
    upload(s3, "model", 2)
    wrong = {"key_id": "nobody", "secret_key": "nothing"}
    right = {"key_id": s3.key.access_key_id, "secret_key": s3.secret, "region": "us-east-1", "session_token": "", "profile": ""}
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"": wrong, s3.location: right, f"s3://{s3.address}": wrong}}))
    environment = {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "AWS_SECRET_ACCESS_KEY": "wrong"}
    with connected(serve(s3, environment=environment)) as client:
        assert factor(client, "model") == 2


# Stores that fail ----------------------------------------------------------------------------------------------------


WRONG = {
    "s3": {"AWS_SECRET_ACCESS_KEY": "hunter2"},
    "as": {"AZURE_STORAGE_KEY": "aHVudGVyMg=="},
}


@pytest.mark.parametrize("kind", [S3, Azure])
def test_wrong_credentials_end_the_start_with_one_line_and_no_secret(serve, kind):
    store = kind()
    try:
        upload(store, "model", 2)
        with pytest.raises(ServerFailed) as caught:
            serve(store, environment=WRONG[store.scheme])
        complaints = [line for line in str(caught.value).splitlines() if "cannot read the model repository" in line]
        assert len(complaints) == 1, caught.value
        assert store.location in complaints[0] and "the store refuses these credentials (403 " in complaints[0]
        for secret in (*WRONG[store.scheme].values(), store.secret):
            assert secret not in str(caught.value)
    finally:
        store.close()


def test_a_google_credential_of_another_account_is_refused(serve, tmp_path):
    (tmp_path / "other").mkdir()
    google, other = Google(tmp_path), Google(tmp_path / "other")
    try:
        account = json.loads(other.file.read_text())
        account["gcs_base_url"] = f"http://{google.address}"
        other.file.write_text(json.dumps(account))
        with pytest.raises(ServerFailed, match=r"the store refuses these credentials \(403 NotSigned\)") as caught:
            serve(google, environment=other.environment)
        assert other.secret not in str(caught.value)
    finally:
        google.close()
        other.close()


@pytest.mark.parametrize(
    ("location", "environment", "fact"),
    [
        ("s3://127.0.0.1:1/bucket", {}, "the store cannot be reached or understood: "),
        ("s3://bucket//models", {}, "empty, relative or unprintable part"),
        ("ftp://host/models", {}, "is no location of a repository: expected s3://bucket/path"),
        ("https://host/models", {}, "is no location of a repository: expected s3://bucket/path"),
        ("s3://https://me:hunter2@host/bucket", {}, "'@'"),
        ("s3://bucket", {"TRITON_CLOUD_CREDENTIAL_PATH": "/nowhere.json"}, "TRITON_CLOUD_CREDENTIAL_PATH: cannot read /nowhere.json"),
        ("gs://bucket", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}, "cannot read /nowhere.json"),
        ("as://account/bucket", {"AZURE_STORAGE_KEY": "hunter2!"}, "not in base64"),
        ("as://account/bucket", {"AZURE_STORAGE_KEY": "aHVudGVyMg==", "AZURE_STORAGE_ACCOUNT": "other"}, "another account's"),
    ],
)
def test_what_cannot_be_opened_ends_the_start_with_the_reason(serve, location, environment, fact):
    environment = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hunter2", **environment}
    with pytest.raises(ServerFailed) as caught:
        serve(locations=[location], environment=environment)
    assert fact in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_said_to_be_missing(s3, serve):
    with pytest.raises(ServerFailed, match=r"no such bucket, container or object \(404 NoSuchBucket\)"):
        serve(s3, locations=[f"s3://{s3.address}/nothing/models"])


def test_a_store_that_is_away_leaves_models_serving(s3, serve):
    upload(s3, "model", 2)
    server = serve(s3, flags=POLL)

    def warnings():
        return [line for line in server.log.read_text().splitlines() if "its models stay as they are" in line]

    with connected(server) as client:
        s3.requests.answer = (503, f"<Error><Code>SlowDown</Code><Message>{s3.secret}</Message></Error>".encode())
        eventually("a warning", warnings, timeout_s=120)
        assert factor(client, "model") == 2 and client.is_server_ready()
        with_code = [line for line in warnings() if s3.location in line and "503 SlowDown" in line]
        assert len(warnings()) == len(with_code) == 1, "one warning for one cause"
        upload(s3, "model", 5, version=2, configured=False)
        s3.requests.answer = None
        eventually("the new version", lambda: factor(client, "model") == 5, timeout_s=120)
    assert s3.secret not in server.log.read_text()


def test_without_a_store_a_server_told_to_go_on_is_not_live_until_it_comes(s3, serve):
    upload(s3, "model", 2)
    s3.requests.answer = (403, b"<Error><Code>AccessDenied</Code></Error>")
    server = serve(s3, flags=[*POLL, "--exit-on-error=false"], until="started")
    with connected(server) as client:
        # The ports are open before the store has answered, and until then the server is live.
        eventually("the store's refusal", lambda: not client.is_server_live())
        s3.requests.answer = None
        eventually("a live server", client.is_server_live)
        eventually("its model", lambda: client.is_model_ready("model"))


def test_a_load_that_a_store_refuses_says_why_without_a_secret(s3, serve):
    upload(s3, "model", 2)
    server = serve(s3, flags=EXPLICIT)
    body = f"<Error><Code>AccessDenied</Code><Message>{s3.secret}</Message></Error>".encode()
    with connected(server) as client:
        s3.requests.answer = (403, body)
        with refused("INTERNAL", "failed to load 'model'", s3.location, "refuses these credentials (403 AccessDenied)"):
            client.load_model("model")
        assert s3.secret not in server.log.read_text()
        s3.requests.answer = None
        client.load_model("model")
        assert factor(client, "model") == 2


def test_a_store_that_vanishes_fails_the_loads_that_requests_began_and_no_others(s3, serve):
    for number, name in enumerate(("first", "second"), start=2):
        upload(s3, name, number)
    server = serve(s3, flags=["--model-control-mode=on-demand", "--repository-poll-secs=1"])
    with connected(server) as client:
        assert factor(client, "first") == 2
        s3.requests.answer = (403, f"<Error><Code>AccessDenied</Code><Message>{s3.secret}</Message></Error>".encode())
        with refused("UNAVAILABLE", "model 'second' could not be loaded", s3.location, "is tried again after"):
            factor(client, "second")
        assert factor(client, "first") == 2 and client.is_server_ready()
        s3.requests.answer = None

        def answers():
            try:
                return factor(client, "second") == 3
            except InferenceServerException as error:
                assert "is tried again after" in error.message(), error
                return False

        eventually("an answer, once the time to wait is over", answers, timeout_s=120)
    assert s3.secret not in server.log.read_text()


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("models/evil/../../../escaped", "cannot be a file"),
        ("models/evil/1/../model.onnx", "cannot be a file"),
        ("models/evil/1//model.onnx", "cannot be a file"),
        ("models/evil//etc/passwd", "cannot be a file"),
        ("models/evil/1/model\x7f.onnx", "cannot be a file"),
        ("models/evil/1/model.onnx/weights", "the key '1/model.onnx' cannot be a file: other keys need a folder"),
        (f"models/evil/{'x' * 300}", "a part of it is too long"),
    ],
)
def test_keys_that_cannot_be_files_refuse_their_model_alone(s3, serve, tmp_path, key, fact):
    upload(s3, "good", 2)
    upload(s3, "evil", 3)
    s3.put(key, b"evil")
    cache = tmp_path / "cache"
    server = serve(s3, flags=[*POLL, f"--repository-cache-directory={cache}"], until="settled")
    with connected(server) as client:
        assert factor(client, "good") == 2
        _, state, reason = index(client)["evil"]
        assert state == "UNAVAILABLE" and fact in reason, reason
        assert f"{s3.location}/evil" in reason and reason.isprintable()
        (folder,) = (path for path in cache.iterdir() if path.is_dir())
        assert [path.name for path in (folder / "models").iterdir()] == ["good"]
        files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
        assert not {"escaped", "passwd", "weights"} & set(files), "nothing of it is anywhere"
        complaints = [line for line in server.complaints() if "evil" in line]
        assert len(complaints) == 1, "one line for one cause, however often it is looked at"
        s3.delete(key)
        eventually("the model without it", lambda: client.is_model_ready("evil"))
        assert factor(client, "evil") == 3


def test_a_cache_that_cannot_be_made_ends_the_start(s3, serve, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ServerFailed, match="cannot use the folder for fetched models .--repository-cache-directory.: "):
        serve(s3, flags=[f"--repository-cache-directory={tmp_path / 'file'}"])


@pytest.mark.parametrize("key", ["models//readme.txt", "models/./x", "models/../x", "models/bad\nname/1/model.onnx"])
@pytest.mark.parametrize("flags", [[], POLL], ids=["none", "poll"])
def test_a_stray_key_beside_the_models_leaves_them_readable(store, serve, key, flags):
    upload(store, "good", 2)
    store.put(key, b"stray")
    server = serve(store, flags=flags, until="settled")
    with connected(server) as client:
        assert factor(client, "good") == 2
        assert set(index(client)) <= {"good", "bad\nname"}


def test_ports_are_open_while_a_store_is_listed(s3, serve):
    upload(s3, "good", 2)
    listed = threading.Event()
    s3.requests.before_listing = listed.wait
    try:
        server = serve(s3, until="live")
        with connected(server) as client:
            assert client.is_server_live() and not client.is_server_ready()
            with refused("UNAVAILABLE", "still being loaded"):
                factor(client, "good")
            for named in ({}, {"model": "good"}):
                request = urllib.request.Request(f"http://{server.http}/embed", json.dumps({"inputs": "a", **named}).encode())
                with pytest.raises(urllib.error.HTTPError, match="503") as refusal:
                    urllib.request.urlopen(request, timeout=60)
                assert json.load(refusal.value)["error_type"] == "Unhealthy"
            listed.set()
            eventually("a ready server", client.is_server_ready)
            assert factor(client, "good") == 2
    finally:
        listed.set()
