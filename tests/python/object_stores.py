"""Object stores for tests, on the loopback address: S3 as implemented by moto, and stand-ins for the parts of Google
Cloud Storage (the XML API) and of Azure's blobs that a client reads. Each rejects requests that are not signed with its
credential, and records its requests."""

import base64
import email.utils
import hashlib
import hmac
import json
import threading
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

HOST = "127.0.0.1"
BUCKET = "bucket"


class Requests:
    """The requests to a store, and answers that replace the true ones."""

    def __init__(self):
        self.lock = threading.Lock()
        self.fetched = []
        self.listings = 0
        #: Called with each key before its object is sent.
        self.before_fetch = None
        #: Called before a listing is answered.
        self.before_listing = None
        #: (status, body) of every answer, if set.
        self.answer = None

    def note(self, key):
        """Records a request for an object, or for a listing if there is no key."""
        with self.lock:
            if key is None:
                self.listings += 1
                hook = self.before_listing
            else:
                self.fetched.append(key)
                hook = self.before_fetch and (lambda: self.before_fetch(key))
        if hook:
            hook()

    def take(self):
        """Returns how often each object was fetched since the last call, and how many listings there were."""
        with self.lock:
            fetched, listings = Counter(self.fetched), self.listings
            self.fetched, self.listings = [], 0
        return fetched, listings


class S3:
    """A bucket of moto's, which checks the signature and permission of requests as AWS does."""

    scheme = "s3"

    def __init__(self, tls=None):
        """`tls` has the files of a certificate and its key, if requests come over HTTPS."""
        import moto.backends
        from moto.core.authorization import enable_iam_authentication
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        account = "123456789012"
        users = moto.backends.get_backend("iam")[account]["global"]
        self.backend = moto.backends.get_backend("s3")[account]["aws"]
        users.reset()
        self.backend.reset()
        users.create_user("us-east-1", "reader")
        allowed = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
        users.put_user_policy("reader", "read", json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
        self.key = users.create_access_key("reader")
        self.backend.create_bucket(BUCKET, "us-east-1")
        self.requests = Requests()
        self.app = DomainDispatcherApplication(create_backend_app)
        self.authentication = enable_iam_authentication()
        self.authentication.__enter__()
        self.server = make_server(HOST, 0, self.answer, threaded=True, ssl_context=tls)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.address = f"{HOST}:{self.server.server_port}"
        self.scheme_of_requests = "https://" if tls else ""

    def answer(self, environment, start):
        if self.requests.answer:
            status, body = self.requests.answer
            start(f"{status} Injected", [("Content-Type", "application/xml")])
            return [body]
        _, _, key = environment["PATH_INFO"].lstrip("/").partition("/")
        self.requests.note(None if "list-type" in environment["QUERY_STRING"] else key)
        return self.app(environment, start)

    @property
    def location(self):
        return f"s3://{self.scheme_of_requests}{self.address}/{BUCKET}/models"

    @property
    def secret(self):
        return self.key.secret_access_key

    @property
    def environment(self):
        return {
            "AWS_ACCESS_KEY_ID": self.key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def put(self, key, content):
        self.backend.put_object(BUCKET, key, content)

    def delete(self, key):
        self.backend.delete_object(BUCKET, key)

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.authentication.__exit__(None, None, None)


class StandIn:
    """Objects in memory behind an HTTP server. The subclasses have what differs between stores."""

    def __init__(self):
        self.objects = {}
        self.requests = Requests()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                store.get(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer((HOST, 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.address = f"{HOST}:{self.server.server_port}"

    def put(self, key, content):
        self.objects[key] = content

    def delete(self, key):
        del self.objects[key]

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def get(self, handler):
        path, _, query = handler.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query))
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if self.requests.answer:
            return self.reply(handler, *self.requests.answer)
        if not self.is_signed(handler, path, query):
            return self.reply(handler, 403, b"<Error><Code>NotSigned</Code></Error>")
        if bucket != BUCKET:
            return self.reply(handler, 404, b"<Error><Code>NoSuchBucket</Code></Error>")
        self.requests.note(key or None)
        if not key:
            return self.reply(handler, 200, self.listing(query.get("prefix", ""), query.get("delimiter")).encode())
        if key not in self.objects:
            return self.reply(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        self.reply(handler, 200, self.objects[key], [("ETag", f'"{self.tag(key)}"')])

    def reply(self, handler, status, body, headers=()):
        handler.send_response(status)
        for name, value in [("Content-Length", len(body)), ("Last-Modified", email.utils.formatdate(0, usegmt=True)), *headers]:
            handler.send_header(name, str(value))
        handler.end_headers()
        handler.wfile.write(body)

    def tag(self, key):
        return hashlib.md5(self.objects[key]).hexdigest()

    def listed(self, prefix, delimiter):
        """Returns (keys, folders) below a prefix."""
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        if not delimiter:
            return keys, []
        ends = {key: key.find(delimiter, len(prefix)) for key in keys}
        folders = sorted({key[: end + 1] for key, end in ends.items() if end >= 0})
        return [key for key, end in ends.items() if end < 0], folders


class Google(StandIn):
    """Accepts tokens that are signed by the key of its service account."""

    scheme = "gs"

    def __init__(self, folder):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        super().__init__()
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.secret = pem.decode().splitlines()[5]
        self.file = folder / "google.json"
        account = {
            "type": "service_account",
            "private_key": pem.decode(),
            "private_key_id": "one",
            "client_email": "reader@example.com",
            "gcs_base_url": f"http://{self.address}",
        }
        self.file.write_text(json.dumps(account))
        self.location = f"gs://{BUCKET}/models"
        self.environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(self.file)}

    def is_signed(self, handler, _path, _query):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        kind, _, token = handler.headers.get("Authorization", "").partition(" ")
        head, _, signature = token.rpartition(".")
        try:
            signed = base64.urlsafe_b64decode(signature + "==")
            self.key.public_key().verify(signed, head.encode(), padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, ValueError):
            return False
        claims = json.loads(base64.urlsafe_b64decode(head.split(".")[1] + "=="))
        return kind == "Bearer" and claims["iss"] == "reader@example.com"

    def listing(self, prefix, delimiter):
        keys, folders = self.listed(prefix, delimiter)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f'<LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>"{self.tag(key)}"</ETag></Contents>'
            for key in keys
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        return f"<ListBucketResult>{contents}{prefixes}</ListBucketResult>"


class Azure(StandIn):
    """Accepts requests that are signed by the key of its account, as Microsoft describes it ("Shared Key")."""

    scheme = "as"
    account = "account"

    def __init__(self):
        super().__init__()
        self.secret = base64.b64encode(b"a key of an account in Azure").decode()
        self.location = f"as://{self.account}/{BUCKET}/models"
        self.environment = {
            "AZURE_STORAGE_ACCOUNT": self.account,
            "AZURE_STORAGE_KEY": self.secret,
            "AZURE_STORAGE_ENDPOINT": f"http://{self.address}",
        }

    def is_signed(self, handler, path, query):
        names = [
            "Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date",
            "If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
        ]  # fmt: skip
        plain = [handler.headers.get(name, "") for name in names]
        # A length of zero is signed as an empty field.
        plain[2] = "" if plain[2] == "0" else plain[2]
        own = sorted((name.lower(), value) for name, value in handler.headers.items() if name.lower().startswith("x-ms-"))
        resource = [f"/{self.account}{path}", *(f"{name.lower()}:{value}" for name, value in sorted(query.items()))]
        lines = ["GET", *plain, *(f"{name}:{value}" for name, value in own), *resource]
        key = base64.b64decode(self.secret)
        digest = base64.b64encode(hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()).decode()
        return handler.headers.get("Authorization") == f"SharedKey {self.account}:{digest}"

    def listing(self, prefix, delimiter):
        keys, folders = self.listed(prefix, delimiter)
        blobs = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>Thu, 01 Jan 1970 00:00:00 GMT</Last-Modified>"
            f"<Content-Length>{len(self.objects[key])}</Content-Length><Content-Type>text/plain</Content-Type>"
            f"<Etag>{self.tag(key)}</Etag></Properties></Blob>"
            for key in keys
        )
        prefixes = "".join(f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in folders)
        return f"<EnumerationResults><Blobs>{blobs}{prefixes}</Blobs><NextMarker/></EnumerationResults>"
