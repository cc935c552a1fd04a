"""Every wrong request is refused by name, and the engine serves the next one."""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

import pytest

from octavo.server import fields
from tests.support.server import Server

GOOD = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
V = 288  # any id from here on is outside of no bound by itself; the vocabulary's size is read below


@pytest.fixture(scope="module")
def vocab(server: Server) -> int:
    _, body = server.json("/v1/completions", {**GOOD, "prompt": [10**6]})
    return int(body["error"]["message"].rpartition(" ")[2].rstrip(")"))


def refused(server: Server, body: Any, param: str | None, *, chat: bool = False) -> dict[str, Any]:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    status, reply = server.json(path, body)
    assert status == 400, reply
    error = reply["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert len(error["message"]) < 600
    return dict(error)


COMPLETION_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"top_logrpobs": 3}, "top_logrpobs"),
    ({"top_p": 1.5}, "top_p"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"best_of": 2}, "best_of"),
    ({"n": 5_000_000}, "n"),
    ({"n": 2}, "n"),
    ({"max_tokens": 2**70}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "3"}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"seed": "x"}, "seed"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1000000": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop_token_ids": [10**6], "min_tokens": 2}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop": ["x"] * 40}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"bad_words": ["a"] * 10_000}, "bad_words"),
    ({"min_tokens": 9}, "min_tokens"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["x"] * 1000}, "prompt"),
    ({"prompt": [5] * 600}, "prompt"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options"),
    ({"suffix": "x"}, "suffix"),
    ({"echo": True}, "echo"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"guided_json": {}}, "guided_json"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"priority": 3}, "priority"),
    ({"user": 5}, "user"),
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"request_id": "a b"}, "request_id"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
]


@pytest.mark.parametrize(("change", "param"), COMPLETION_ERRORS, ids=lambda v: str(v)[:40])
def test_a_wrong_completion_field_is_400(
    server: Server, change: dict[str, Any], param: str
) -> None:
    refused(server, {**GOOD, **change}, param)


CHAT_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [5]}, "messages[0]"),
    ({"top_logprobs": 10**9, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ({"prompt": "x"}, "prompt"),
]


@pytest.mark.parametrize(("change", "param"), CHAT_ERRORS, ids=lambda v: str(v)[:40])
def test_a_wrong_chat_field_is_400(server: Server, change: dict[str, Any], param: str) -> None:
    refused(server, {**CHAT, **change}, param, chat=True)


def test_the_nearest_name_is_given(server: Server) -> None:
    assert "'top_p'" in refused(server, {**GOOD, "topp": 1}, "topp")["message"]
    assert (
        "'top_logprobs'"
        in refused(server, {**CHAT, "top_logrpobs": 1}, "top_logrpobs", chat=True)["message"]
    )


def test_ids_at_the_vocabularys_end(server: Server, vocab: int) -> None:
    good = {**GOOD, "logit_bias": {str(vocab - 1): 1}, "stop_token_ids": [vocab - 1]}
    assert server.json("/v1/completions", good)[0] == 200
    for bias in (vocab, vocab + 5):
        error = refused(server, {**GOOD, "logit_bias": {str(bias): 1}}, "logit_bias")
        assert str(bias) in error["message"]
        assert str(vocab) in error["message"]


def test_many_ids_and_strings_work(server: Server, vocab: int) -> None:
    ids = [i % vocab for i in range(2000)]
    bias = {str(i % vocab): 0.5 for i in range(300)}
    body = {**GOOD, "allowed_token_ids": ids, "logit_bias": bias, "stop": ["q", "x", "zz", "y"]}
    assert server.json("/v1/completions", body)[0] == 200


def test_content_parts_are_joined_text(server: Server) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    bodies = [{"messages": [{"role": "user", "content": c}]} for c in (parts, "hello")]
    first, second = (server.json("/tokenize", body)[1]["count"] for body in bodies)
    assert abs(first - second) <= 1  # parts may be joined by a newline
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    body = {**CHAT, "messages": [{"role": "user", "content": image}]}
    assert server.json("/v1/chat/completions", body)[0] == 400


def test_truncation_is_done_on_request_only_and_said(server: Server) -> None:
    body = {**GOOD, "prompt": [7] * 600, "truncate_prompt_tokens": 100}
    status, reply = server.json("/v1/completions", body)
    assert status == 200
    assert reply["usage"]["prompt_tokens"] == 100
    assert reply["usage"]["prompt_tokens_details"]["truncated_tokens"] == 500


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b'"x"', 400),
        (b"null", 400),
        (b'{"model": NaN}', 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400),
        (b"[" * 100_000, 400),
        (b'{"prompt": "' + b"a" * (9 * 2**20) + b'"}', 413),
    ],
    ids=lambda v: repr(v)[:24],
)
def test_a_body_that_is_no_request(server: Server, raw: bytes, status: int) -> None:
    found, _, data = server.request("/v1/completions", raw=raw)
    assert found == status
    assert json.loads(data)["error"]["message"]


def test_routes_and_methods(server: Server) -> None:
    assert server.json("/v1/nothing")[0] == 404
    assert server.json("/v1/completions")[0] == 405
    assert server.json("/health", {})[0] == 405
    status, reply = server.json("/v1/completions", raw=b"x", headers={"content-type": "text/plain"})
    assert status == 400
    assert "content-type" in reply["error"]["message"]


def exchange(server: Server, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Raw bytes in, raw bytes out until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionError:
            pass
        return received


def test_a_huge_head_is_431(server: Server) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    reply = exchange(server, head, *[b"x-%d: " % i + b"a" * 20_000 + b"\r\n" for i in range(50)])
    assert reply.startswith(b"HTTP/1.1 431") or reply == b""
    assert server.request("/health")[0] == 200


def test_a_body_that_drips_is_408(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    assert exchange(server, head).startswith(b"HTTP/1.1 408")


def test_what_is_no_http_gets_an_error_in_openais_shape(server: Server) -> None:
    reply = exchange(server, b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_paths_can_forge_neither_log_lines_nor_metrics(server: Server) -> None:
    for index in range(20):
        server.request(f"/v1/models/x{index}")
        server.request(f"/v1/models/x{index}%0AFORGED%1b[31m")
    log = server.log.read_text()
    assert "\nFORGED" not in log
    assert "\x1b" not in log
    _, _, page = server.request("/metrics")
    assert page.count(b'route="/v1/models/{model}",status="404"') == 1
    assert page.count(b'route="/v1/models/{model}"') == page.count(b'route="/v1/models/')
    assert b"FORGED" not in page


def test_a_long_chat_names_its_messages(server: Server) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "hello " * 600}]}
    error = refused(server, body, "messages", chat=True)
    assert error["code"] == "context_length_exceeded"


def test_request_ids_go_in_and_out(server: Server) -> None:
    _, headers, _ = server.request("/health", headers={"x-request-id": "abc-1"})
    assert headers["x-request-id"] == "abc-1"
    for bad in ("a b", "é", "x" * 200):
        encoded = bad.encode().decode("latin-1")
        _, headers, _ = server.request("/health", headers={"x-request-id": encoded})
        assert headers["x-request-id"] not in (bad, encoded)
    _, body = server.json("/v1/completions", GOOD, headers={"x-request-id": "abc-2"})
    assert body["id"] == "cmpl-abc-2"
    _, body = server.json("/v1/completions", {**GOOD, "request_id": "mine"})
    assert body["id"] == "cmpl-mine"


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1.5,
    -0.1,
    1e308,
    2**31,
    2**63,
    -(2**70),
    "",
    "x",
    "1",
    "\u0000",
    "👋🏽" * 50,
    [],
    [1],
    [0, -1, 2**40],
    ["a", 1],
    [[1], [2]],
    [None],
    {},
    {"a": 1},
    {"1": 2},
    {"type": "text"},
    [{"role": "user", "content": "x"}],
]


def test_hostile_requests_never_stop_the_engine(server: Server) -> None:
    """Each field takes each value, alone and in random company; a good request succeeds after."""
    rng = random.Random(5)
    cases: list[tuple[str, dict[str, Any]]] = []
    for path, base, names in (
        ("/v1/completions", GOOD, (*fields.COMPLETION, *fields.REFUSED, *fields.INERT)),
        ("/v1/chat/completions", CHAT, (*fields.CHAT, *fields.REFUSED, *fields.INERT)),
    ):
        for name in dict.fromkeys(names):
            cases += [(path, {**base, name: value}) for value in rng.sample(VALUES, 9)]
        for _ in range(150):
            some = {name: rng.choice(VALUES) for name in rng.sample(list(names), 3)}
            cases.append((path, {**base, **some}))
    assert len(cases) > 500
    expected = server.json("/v1/completions", GOOD)[1]["choices"][0]["text"]
    outcomes: dict[int, int] = {}
    for index, (path, body) in enumerate(cases):
        status, _, data = server.request(path, body)
        assert status in (200, 400, 404), (status, body, data)
        outcomes[status] = outcomes.get(status, 0) + 1
        if status != 200:
            assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}
        if index % 3 == 0:
            status, reply = server.json("/v1/completions", GOOD)
            assert status == 200, body
            assert reply["choices"][0]["text"] == expected
    assert outcomes[400] > 200
    assert outcomes[200] > 50
    server.wait_idle()
