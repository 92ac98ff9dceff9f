"""Attacks on the lanes of a device: ordinary requests that take long, next to a client of another model. `make attacks`
runs them with the others."""

import http.client
import json
import threading
import time
from collections import Counter

import fetch
from attacking import bystander, memory_of, suffered, unattacked

#: A text that is cut to the longest that the model takes, 256 tokens.
TEXT = "a b c d " * 100
TEXTS = (32, 64)


def embed(server, texts, codes):
    """Sends one request with this many texts, and counts its status."""
    connection = http.client.HTTPConnection(*server.http.split(":"), timeout=300)
    try:
        connection.request("POST", "/embed", body=json.dumps({"model": "sentences", "inputs": [TEXT] * texts}))
        answer = connection.getresponse()
        answer.read()
        codes[answer.status] += 1
    finally:
        connection.close()


def one_request(given):
    """One request for 32 texts of 400 words, and one for 64, next to a client of another model; with the limit on the last
    lane and without it."""
    models = given.made("texts", "--only", "sentences,minilm,identity", "--minilm", fetch.minilm())
    for flags in ((), ("--last-lane-limit-ms=0",)):
        how = " ".join(flags) or "by default"
        with given.serve(models, "--auto-profile=false", *flags) as server, memory_of(server) as grown:
            yield f"others, without the attack, {how}", unattacked(server)
            for texts in TEXTS:
                codes = Counter()
                asking = threading.Thread(target=embed, args=(server, texts, codes))
                with bystander(server) as times:
                    began = time.monotonic()
                    asking.start()
                    asking.join()
                    took = time.monotonic() - began
                yield f"others, {texts} texts, {how}", suffered(times)
                yield f"the request, {texts} texts, {how}", f"{dict(codes)} in {took:.1f} s"
            yield f"memory, {how}", f"{grown():.0f} MB more resident at the peak"


ATTACKS = (one_request,)
